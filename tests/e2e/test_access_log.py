"""What operators find in a replica's log of its requests, and never find there."""

import json
from pathlib import Path

from tests.e2e.calls import connected, generation, stream
from tests.e2e.replica import running_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint

FLAGS = ["--log-format", "json", "--log-level", "debug"]
SECRET = "Heliotrope"


def test_each_request_is_one_object_and_no_process_logs_its_text(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, family="qwen3")
    with running_replica(folder, flags=FLAGS, hash_worker=[]) as replica:
        with connected(replica.target) as stub:
            answers = [
                stream(stub, generation(SECRET, max_tokens=20, seed=seed, request_id=f"r-{seed}"))
                for seed in (1, 2)
            ]
        wait_until(lambda: replica.log().count("call ended") == 2, limit_s=10)
        said = replica.log()
    lines = [json.loads(line) for line in said.splitlines() if "call ended" in line]
    assert [line["request_id"] for line in lines] == ["r-1", "r-2"]
    for line in lines:
        assert (line["process"], line["level"]) == ("frontend-0", "info")
        assert line["tenant"] == "default"
        assert (line["completion_tokens"], line["finish_reasons"]) == (20, "length")
        assert (line["method"], line["code"], line["num_continued"]) == ("Generate", "OK", 0)
        assert 0 < line["ttft_ms"] <= line["total_ms"]
    texts = [output.text for outputs in answers for output in outputs]
    assert all(len(text) >= 8 for text in texts)
    assert [text for text in (SECRET, *texts) if text in said] == []
