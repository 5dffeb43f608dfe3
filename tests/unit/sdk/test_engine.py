"""The offline Engine over a scripted service: order, errors, ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import octavo
from octavo.engine.meter import Meter
from octavo.engine.settings import service_flags

ROOT = Path(__file__).resolve().parents[3]
SERVICE = """
import sys
from tests.fakes.local_service import main
sys.exit(main(["BEHAVIOUR", *sys.argv[1:]]))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder, and a scripted service where `python -m scheduler_svc` looks first."""
    set_service(tmp_path, "serve")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # it needs none of the packages that the real service does
    monkeypatch.setattr("octavo.engine.engine.require_service_packages", lambda *_, **__: None)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def set_service(tmp_path: Path, behaviour: str) -> None:
    package = tmp_path / "scheduler_svc"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SERVICE.replace("BEHAVIOUR", behaviour))


@pytest.fixture
def engine(model: Path) -> Iterator[octavo.Engine]:
    with octavo.Engine(model, show_progress=False) as engine:
        yield engine


def test_results_come_in_the_order_of_the_prompts(engine: octavo.Engine) -> None:
    prompts = ["a " * (20 - i) + str(i) for i in range(20)]
    results = engine.generate(prompts, use_tqdm=False)
    assert [result.text for result in results] == [f"You said: {prompt}" for prompt in prompts]


def test_prompts_of_every_kind(engine: octavo.Engine) -> None:
    def texts(prompts: object) -> list[str]:
        return [result.text for result in engine.generate(prompts, use_tqdm=False)]  # type: ignore[arg-type]  # each is one of the kinds

    assert texts("abc") == texts([97, 98, 99]) == texts({"prompt_token_ids": [97, 98, 99]})
    assert texts(["a", [97], {"prompt": "a"}]) == ["You said: a"] * 3
    assert texts([[97], [98]]) == ["You said: a", "You said: b"]
    assert texts([]) == []


def test_params_are_one_for_all_or_one_for_each(engine: octavo.Engine) -> None:
    short, shorter = (octavo.SamplingParams(max_tokens=n) for n in (3, 1))
    alike = engine.generate(["a", "b"], short, use_tqdm=False)
    assert [result.text for result in alike] == ["You", "You"]
    each = engine.generate(["a", "b"], [short, shorter], use_tqdm=False)
    assert [result.text for result in each] == ["You", "Y"]
    with pytest.raises(ValueError, match="1 params for 2 prompts"):
        engine.generate(["a", "b"], [short])


def test_chat_takes_one_conversation_or_many(engine: octavo.Engine) -> None:
    one = [octavo.Message("system", "s"), octavo.Message("user", "u")]
    assert [result.text for result in engine.chat(one, use_tqdm=False)] == ["You said: s u"]
    assert [result.text for result in engine.chat("u", use_tqdm=False)] == ["You said: u"]
    conversations: list[str | list[octavo.Message]] = [one, "u"]
    both = engine.chat(conversations, use_tqdm=False)
    assert [result.text for result in both] == ["You said: s u", "You said: u"]


def test_a_failed_prompt_is_named_and_the_engine_lives_on(engine: octavo.Engine) -> None:
    with pytest.raises(octavo.InvalidRequest) as caught:
        engine.generate(["a", 7, "b"], use_tqdm=False)  # type: ignore[arg-type]  # the fault
    assert "prompt 1" in caught.value.__notes__[0]
    assert engine.generate("a", use_tqdm=False)[0].text == "You said: a"


def test_requests_added_one_by_one_end_in_steps(engine: octavo.Engine) -> None:
    ids = [engine.add_request(f"number {i}") for i in range(5)]
    assert engine.add_request("named", request_id="mine") == "mine"
    with pytest.raises(ValueError, match="mine"):
        engine.add_request("again", request_id="mine")
    texts: dict[str, str] = {}
    while engine.has_unfinished:
        texts |= {result.request_id: result.text for result in engine.step()}
    assert texts == {
        **{name: f"You said: number {i}" for i, name in enumerate(ids)},
        "mine": "You said: named",
    }
    assert engine.step() == []


def test_a_step_raises_a_failure_and_keeps_the_other_results(engine: octavo.Engine) -> None:
    engine.add_request("good", request_id="good")
    engine.add_request(7, request_id="bad")  # type: ignore[arg-type]  # the fault
    results, failures = [], []
    while engine.has_unfinished:
        try:
            results += engine.step()
        except octavo.InvalidRequest as error:
            failures.append(error)
    assert [result.request_id for result in results] == ["good"]
    assert len(failures) == 1


def test_progress_is_drawn_when_it_is_wanted(
    engine: octavo.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.generate(["a", "b"])
    drawn = capsys.readouterr().err
    assert "2/2" in drawn
    assert "prefill" in drawn
    engine.generate(["a", "b"], use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_without_tqdm_there_is_no_bar(
    engine: octavo.Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.engine.batch.find_spec", lambda _: None)
    assert len(engine.generate(["a", "b"])) == 2
    assert capsys.readouterr().err == ""


def test_a_closed_engine_leaves_no_process_and_says_that_it_is_closed(model: Path) -> None:
    before = psutil.Process().children()  # of other tests
    engine = octavo.Engine(model, show_progress=False)
    assert psutil.Process().children() != before
    engine.add_request("a")
    engine.close()
    engine.close()
    assert psutil.Process().children() == before
    with pytest.raises(octavo.ClientClosed):
        engine.generate("a")


def test_an_engine_outlives_the_thread_that_made_it(model: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        engine = pool.submit(octavo.Engine, model, show_progress=False).result()
    with engine:
        assert engine.generate("a", use_tqdm=False)[0].text == "You said: a"


def test_a_forgotten_engine_ends_with_its_program(model: Path) -> None:
    program = (
        "import octavo, octavo.engine.engine as e, psutil\n"
        "e.require_service_packages = lambda *_, **__: None\n"
        f"engine = octavo.Engine({str(model)!r}, show_progress=False)\n"
        "print(engine.generate('a', use_tqdm=False)[0].text)\n"
        "print(psutil.Process().children()[0].pid)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{model.parent}:{ROOT}"},
    )
    answer, pid = ended.stdout.splitlines()
    assert (answer, ended.stderr) == ("You said: a", "")
    assert not psutil.pid_exists(int(pid))


def test_a_service_that_falls_is_an_error_with_its_end(model: Path) -> None:
    set_service(model.parent, "fall")
    with octavo.Engine(model, show_progress=False) as engine:
        with pytest.raises(octavo.LocalServiceFailed) as caught:
            engine.generate(["a", "b"], use_tqdm=False)
        assert caught.value.exit_code == -signal.SIGKILL
        assert isinstance(caught.value.__cause__, octavo.ServiceError)


def test_a_service_that_cannot_start_is_an_error_with_its_reason(model: Path) -> None:
    set_service(model.parent, "refuse")
    before = psutil.Process().children()  # of other tests
    with pytest.raises(octavo.LocalServiceFailed, match="power of two"):
        octavo.Engine(model, show_progress=False, block_size=3)
    assert psutil.Process().children() == before


def test_settings_become_flags() -> None:
    assert service_flags(
        {"max_num_seqs": 8, "gpu_memory_utilization": 0.5, "enforce_eager": True, "x": False}
    ) == ["--max-num-seqs", "8", "--gpu-memory-utilization", "0.5", "--enforce-eager"]


@pytest.mark.parametrize("name", ["port", "unix_socket", "run_dir", "workers"])
def test_settings_that_the_engine_keeps_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        service_flags({name: "x"})


def test_rates_count_each_prompt_once_and_every_token() -> None:
    now = iter([0.0, 2.0])
    meter = Meter(clock=lambda: next(now))
    usage = octavo.Usage(prompt_tokens=10, cached_tokens=4)
    delta = octavo.Delta(
        index=0, text="", token_ids=(1, 2, 3), first_token_index=0, finish=None, usage=usage
    )
    for request_id in ("a", "a", "b"):
        meter.note(request_id, delta)
    assert meter.text() == "prefill 6 tok/s, decode 4 tok/s"
