"""The example of attention on several ranks, with one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_says_what_it_found(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/distributed_attention.py"), "--length", "64", "--heads", "2", "--size", "16"]
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environment = {**os.environ, **group, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    first, balance, keys, difference = done.stdout.splitlines()
    assert first.endswith("rank 0 has (1, 1, 64, 64) of the weights (1, 1, 64, 64)")
    assert balance == "balance: 1.000"
    assert keys.count(",") == 4
    assert float(difference.split()[-1]) < 1e-2
