"""What the commands have in common."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
RUN = "from trigemm.cli.main import app; app()"
COMMANDS = {
    "bench": [
        "bench",
        "--operation",
        "gemmt",
        "--batch",
        "1",
        "--seq",
        "16",
        "--heads",
        "1",
        "--head-dim",
        "8",
        "--repeats",
        "3",
    ],
    "list": ["bench", "--list"],
    "tiles": ["tiles", "64", "64", "64", "--json"],
    "help": ["verify", "--help"],
}


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_standard_output_that_cannot_be_written_is_one_sentence(arguments):
    with FULL.open("w") as full:
        done = subprocess.run([sys.executable, "-c", RUN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"
