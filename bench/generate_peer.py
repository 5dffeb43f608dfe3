"""transformers' `generate` in a process of its own, the peer that bench.serving measures beside."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


class Peer:
    """Loads the model once; each question is one batch of random prompts, decoded greedily."""

    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.generate_peer", str(model), str(threads), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # waiting threads sleep, as the service's do: on shared cores spinning ones lose
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ},
        )

    def tokens_per_s(
        self, batch: int, *, num_prompt: int, num_output: int, vocab: int, seed: int
    ) -> float:
        """New tokens a second over the whole batch, the prompt's time included."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([batch, num_prompt, num_output, vocab, seed]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.wait()


def main(model: str, threads: int, dtype: str) -> None:
    """Answers questions from stdin until it ends."""
    import torch  # noqa: PLC0415 - only this process needs it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - likewise

    torch.set_num_threads(threads)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    for line in sys.stdin:
        batch, num_prompt, num_output, vocab, seed = json.loads(line)
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(vocab, (batch, num_prompt), generator=draw)
        began = time.perf_counter()
        with torch.inference_mode():
            network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=num_output,
                max_new_tokens=num_output,
                pad_token_id=0,
            )
        took = time.perf_counter() - began
        sys.stdout.write(f"{batch * num_output / took}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
