"""The examples that users copy run as they stand, against an echo service."""

import json
import os
import subprocess
import sys
from pathlib import Path

from google.protobuf import json_format, message_factory

import octavo
from octavo.v1 import inference_pb2
from tests.fakes.inference_server import FakeInferenceServer

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "client" / "examples"
SERVICE = """
import sys
from tests.fakes.local_service import main
sys.exit(main(["serve", *sys.argv[1:]]))
"""


def run_example(*arguments: str, path: tuple[Path, ...] = (), folder: Path = ROOT) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(one) for one in path)},
    ).stdout


def test_stream_prints_an_answer(server: FakeInferenceServer) -> None:
    output = run_example(str(EXAMPLES / "stream.py"), server.target, "Hello there")
    assert output == "echo answers:\nYou said: Hello there\n(eos, 21 tokens)\n"


def test_async_stream_prints_every_answer(server: FakeInferenceServer) -> None:
    lines = run_example(str(EXAMPLES / "async_stream.py"), server.target).splitlines()
    assert "Name a colour. You said: Name a colour." in lines
    assert "[Name a colour.] 'colour.'" in lines
    assert len(server.generations) == 3


def test_offline_prints_every_result(tmp_path: Path) -> None:
    for package in ("scheduler_svc", "torch"):  # an echo in place of the service
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "scheduler_svc" / "__main__.py").write_text(SERVICE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    output = run_example(
        str(EXAMPLES / "offline.py"), "model", path=(tmp_path, ROOT), folder=tmp_path
    )
    assert "'Dear Sir or Madam,' -> 'You said: Dear Sir or Ma' (length)" in output
    assert "sum-2: 'You said: 2 plus one is'" in output


def test_the_other_languages_ask_for_what_the_contract_has() -> None:
    shell = (EXAMPLES / "grpcurl.sh").read_text()
    for name in ("Generate", "GenerateUnary", "GetModelInfo"):
        assert f"octavo.v1.InferenceService/{name}" in shell
    assert subprocess.run(["bash", "-n", EXAMPLES / "grpcurl.sh"], check=False).returncode == 0


def test_every_call_of_the_contract_has_an_example_that_is_a_request_of_it() -> None:
    requests = json.loads((EXAMPLES / "requests.json").read_text(encoding="utf-8"))
    methods = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods_by_name
    assert set(requests) == set(methods)
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name, request in requests.items():
        kind = message_factory.GetMessageClass(methods[name].input_type)
        json_format.ParseDict(request, kind())
        assert f"octavo.v1.InferenceService/{name}\n" in page
    python = (EXAMPLES / "calls.py").read_text(encoding="utf-8")
    for name in methods:
        if hasattr(octavo.Client, name.lower()):
            assert f'    "{name}": ' in python, f"calls.py shows no {name}"
