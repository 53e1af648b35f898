"""Launches rungs of the ladder on the GPU, once each: what `trigemm traffic --nsight` runs under Nsight Compute."""

import json
import sys

import torch

from trigemm.lab.traffic import ladder


def main(arguments: list[str]) -> None:
    """Launch the rungs named in a JSON object {"shape": {…}, "kernels": [names]}."""
    asked = json.loads(arguments[0])
    qkv, out = ladder.tensors(asked["shape"], "cuda")
    for spec in ladder.chosen(asked["kernels"]):
        ladder.run_rung(spec, qkv, out)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
