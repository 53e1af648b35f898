"""Attention of one long sequence on several ranks, with the weights of a head: started by torchrun.

    torchrun --standalone --nproc-per-node 2 examples/distributed_attention.py
    torchrun --standalone --nproc-per-node 4 examples/distributed_attention.py --length 4096 --heads 8

Every rank has its rows of the queries, of the output and of the weights; keys and values are gathered. Rank 0 says what it found:
how evenly the triangle is shared out, which keys the last query attends to most, and how far the result is from that of one rank.
GPUs are used where each rank has one, else CPUs.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import trigemm
from trigemm import distributed as td


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048, help="positions of the sequence")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="components of a head")
    arguments = parser.parse_args()

    if "WORLD_SIZE" not in os.environ:
        parser.error("start it with torchrun, which makes the ranks: torchrun --standalone --nproc-per-node 2 " + __file__)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    device = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    mesh = init_device_mesh(device, (ranks,))

    torch.manual_seed(0)  # the same sequence on every rank
    shape = (1, arguments.heads, arguments.length, arguments.size)
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    sharded = [td.shard_sequence(x, mesh, dim=2) for x in (q, k, v)]
    output, weights = td.causal_attention(*sharded, return_weights=[0])
    output.square().mean().backward()

    whole = td.unshard_sequence(output)
    last = td.unshard_sequence(weights)[0, 0, -1]  # only for a look: weights can stay where they are
    if rank == 0:
        print(f"{ranks} ranks on {device}; rank 0 has {tuple(weights.to_local().shape)} of the weights {tuple(weights.shape)}")
        print(f"balance: {td.balance(arguments.length, ranks, tile=1):.3f}")
        print(f"keys that the last query attends to most: {last.topk(5).indices.tolist()}")
        one = trigemm.causal_attention(*(x.detach() for x in (q, k, v)))
        print(f"largest difference from one rank: {(whole - one).abs().max().item():.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
