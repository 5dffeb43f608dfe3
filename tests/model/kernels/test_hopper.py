"""Every kernel compiles for Hopper, with triton's own assembler and without a device.

The interpreter runs kernels as Python and so accepts what the compiler refuses.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
MOST_SHARED_BYTES = 227 * 1024
KERNELS = {
    "_finish_heads",
    "_norm",
    "_prepare",
    "_silu_and_mul",
    "_store",
    "_sum_add_norm",
    "attend_split",
    "attend_tile",
    "best_of_chunk",
    "best_of_row",
}


def test_every_kernel_compiles_and_fits_a_multiprocessor(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    program = Path(__file__).with_name("hopper.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {facts["kernel"].split("#")[0] for facts in compiled} == KERNELS
    assert all(facts["shared"] <= MOST_SHARED_BYTES for facts in compiled), compiled
