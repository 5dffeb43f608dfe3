"""The `octavo` command against an echo service: what it prints, and with which status it ends."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import octavo
from octavo.cli.main import main
from tests.fakes.inference_server import FakeInferenceServer, Refusal


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeInferenceServer]:
    """A service where the command looks for one."""
    with FakeInferenceServer() as server:
        monkeypatch.setenv("OCTAVO_TARGET", server.target)
        yield server


def test_a_question_is_answered_with_its_speed_beside(
    server: FakeInferenceServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--seed", "7", "--system", "Be kind.", "Hello you"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "You said: Be kind. Hello you\n"
    assert "first token after" in captured.err
    assert "28 tokens, seed 7" in captured.err
    assert "note: an echo" in captured.err


def test_sampling_flags_and_a_key_reach_the_service(
    server: FakeInferenceServer, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("k\n")
    chosen = "--temperature=0.5 --top-k=3 --top-p=0.9 --min-p=0.1 --max-tokens=4 --stop=x --stop=y"
    assert main(["generate", *chosen.split(), "--api-key-file", str(tmp_path / "key"), "abc"]) == 0
    (generation,) = server.generations
    assert generation.prompt.text == "abc"
    assert generation.sampling.top_k == 3
    assert round(generation.sampling.min_p, 3) == 0.1
    assert generation.stopping.max_tokens == 4
    assert list(generation.stopping.stop) == ["x", "y"]
    assert server.metadata[0]["authorization"] == "Bearer k"


def test_generate_continues_a_text_from_stdin(
    server: FakeInferenceServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a file"))
    assert main(["generate", "--max-tokens", "8", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "You said\n"
    assert "cut at the length limit" in captured.err


def test_a_conversation_remembers_until_it_is_reset(
    server: FakeInferenceServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n/reset\nthree\n/exit\nfour\n"))
    assert main(["chat"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "You said: one",
        "You said: one You said: one two",
        "You said: three",
    ]
    roles = [message.role for message in server.generations[1].prompt.chat.messages]
    assert roles == ["user", "assistant", "user"]
    assert all(generation.output.split_reasoning for generation in server.generations)


def test_a_conversation_ends_with_its_input(
    server: FakeInferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
    assert main(["chat"]) == 0
    assert len(server.generations) == 1


def test_nobody_at_the_address_is_said_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["chat", "--target", "127.0.0.1:1", "--timeout", "0.5", "Hello"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "127.0.0.1:1" in captured.err
    assert "`octavo serve` starts one" in captured.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--target", "localhost"], "host:port"),
        (["--timeout", "0"], "timeout"),
        (["--tls-ca", "/nowhere/ca.pem"], "/nowhere/ca.pem"),
        (["--tls-cert", "client.pem"], "--tls-key"),
        (["--api-key-file", "/nowhere/key"], "--api-key-file /nowhere/key"),
        (["--json-schema", "/nowhere/schema.json"], "/nowhere/schema.json"),
    ],
)
def test_a_wrong_flag_is_named(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *flags, "a"]) in (1, 2)
    assert text in capsys.readouterr().err


def test_an_answer_may_be_given_a_form(server: FakeInferenceServer, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}', encoding="utf-8")
    assert main(["chat", "--json-schema", str(schema), "Hello"]) == 0
    assert main(["generate", "--regex", "[0-9]+", "Hello"]) == 0
    first, second = (generation.structured_output for generation in server.generations)
    assert first.json_schema == '{"type": "integer"}'
    assert second.regex == "[0-9]+"


def test_what_the_service_refuses_is_said_field_by_field(
    server: FakeInferenceServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse(
        Refusal(
            code=grpc.StatusCode.INVALID_ARGUMENT,
            message="not valid",
            violations=(("generation.sampling.top_p", "must be 0 to 1, got 7"),),
        )
    )
    assert main(["generate", "--top-p", "7", "a"]) == 2
    assert "generation.sampling.top_p: must be 0 to 1, got 7" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error_message(server: FakeInferenceServer) -> None:
    command = f"yes | head -c 200000 | {sys.executable} -m octavo.cli.main generate - | head -c 3"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "You"
    assert ended.returncode == 141
    assert "Traceback" not in ended.stderr
    assert "BrokenPipe" not in ended.stderr


@pytest.mark.parametrize("command", ["", "chat", "generate", "models", "demo"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_serves_help_shows_examples_and_the_services_own_flags() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", "serve", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "examples:" in ended.stdout
    assert ended.stdout.index("examples:") < ended.stdout.index("--max-num-seqs")


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"octavo {octavo.__version__}\n"
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("arguments", [[], ["sing"], ["generate"], ["chat", "--top-k", "many"]])
def test_wrong_use_ends_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_models_that_are_not_here_are_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert main(["models", "list"]) == 0
    assert "smollm2-135m-instruct  (default model" in capsys.readouterr().out
    assert main(["models", "path", str(tmp_path / "nowhere")]) == 1
    assert "not found" in capsys.readouterr().err


def test_a_models_folder_is_printed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["models", "path", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"
