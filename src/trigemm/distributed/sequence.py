"""Sequences as DTensors: dealt out to the ranks, and put together again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from trigemm.distributed.split import rank_rows


def sequence_order(length: int, ranks: int) -> Tensor:
    """The positions of a sequence in the order in which its ranks have them. ValueError for a negative length, or no ranks.

    >>> sequence_order(8, 2)
    tensor([0, 1, 6, 7, 2, 3, 4, 5])
    """
    if length < 0 or ranks < 1:
        raise ValueError(f"sequence_order: length must be 0 or more, and ranks 1 or more; got {length} and {ranks}")
    return torch.cat([torch.arange(rows.start, rows.stop) for rank in range(ranks) for rows in rank_rows(length, ranks, rank)])


def shard_sequence(x: Tensor, mesh: DeviceMesh | None = None, dim: int = -2, *, mesh_dim: int | str | None = None) -> DTensor:
    """Deal a dimension of a tensor out to the ranks of a mesh, in head-tail order. No communication; has gradients.

    Args:
        x: a tensor that every rank has whole, or a DTensor that is replicated on the dimension of the mesh.
        mesh: the mesh; a DTensor brings its own.
        dim: the dimension that is the sequence, as in torch.narrow.
        mesh_dim: the dimension of the mesh, by number or name; not needed for a mesh of one dimension.

    Returns:
        A DTensor of the same shape whose rows are in the order `sequence_order(length, ranks)`, with placement Shard(dim).

    Raises:
        TypeError, ValueError: there is no such dimension; the DTensor is not replicated on the dimension of the mesh.
    """
    if isinstance(x, DTensor):
        whole = x
    elif mesh is None:
        raise TypeError("shard_sequence: a torch.Tensor needs a mesh (torch.distributed.init_device_mesh); give mesh=")
    else:
        whole = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    on = _mesh_dim("shard_sequence", whole.device_mesh, mesh_dim)
    if not whole.placements[on].is_replicate():
        raise ValueError(f"shard_sequence: x must be replicated on dimension {on} of the mesh; it is {list(whole.placements)}")
    dim = _dim("shard_sequence", x, dim)
    if any(p.is_shard(dim) for p in whole.placements):
        raise ValueError(f"shard_sequence: dimension {dim} of x is sharded already; its placements are {list(whole.placements)}")
    order = sequence_order(whole.shape[dim], whole.device_mesh.size(on)).to(whole.device)
    placements = list(whole.placements)
    placements[on] = Shard(dim)
    reordered = _wrap(whole.to_local().index_select(dim, order), whole.device_mesh, whole.placements, whole.shape)
    return reordered.redistribute(placements=placements)


def unshard_sequence(x: DTensor, dim: int = -2) -> Tensor:
    """The whole tensor, on every rank, in the order of the sequence: the inverse of `shard_sequence`. Has gradients.

    Args:
        x: a DTensor with placement Shard(dim), in head-tail order. Its other dimensions may be sharded too.
        dim: the dimension that is the sequence.

    Raises:
        TypeError, ValueError: x is not a DTensor, or is not sharded over the dimension.
    """
    if not isinstance(x, DTensor):
        raise TypeError(f"unshard_sequence: x must be a DTensor, got {type(x).__name__}")
    dim = _dim("unshard_sequence", x, dim)
    on = [i for i, p in enumerate(x.placements) if p.is_shard(dim)]
    if len(on) != 1:
        raise ValueError(f"unshard_sequence: x must be sharded over dimension {dim}, once; it is {list(x.placements)}")
    inverse = sequence_order(x.shape[dim], x.device_mesh.size(on[0])).argsort().to(x.device)
    return x.full_tensor().index_select(dim, inverse)


def _mesh_dim(operation: str, mesh: DeviceMesh, given: int | str | None) -> int:
    names = mesh.mesh_dim_names or ()
    if given is None and mesh.ndim == 1:
        return 0
    if isinstance(given, str) and given in names:
        return names.index(given)
    if isinstance(given, int) and -mesh.ndim <= given < mesh.ndim:
        return given % mesh.ndim
    raise ValueError(f"{operation}: mesh_dim must name one of the mesh's {mesh.ndim} dimensions {tuple(names)}; got {given!r}")


def _dim(operation: str, x: Tensor, dim: int) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{operation}: dim must be a dimension of x, which has {x.ndim}; got {dim}")
    return dim % x.ndim


@dataclass(frozen=True)
class Sharding:
    """How the operands of one call are sharded: over `mesh_dim` the sequence, over the other dimensions of the mesh the batch."""

    mesh: DeviceMesh
    mesh_dim: int
    placements: tuple[Placement, ...]

    @property
    def group(self) -> ProcessGroup:
        return self.mesh.get_group(self.mesh_dim)

    def rows_of(self, length: int) -> tuple[range, range]:
        """This rank's rows of a sequence."""
        return rank_rows(length, self.mesh.size(self.mesh_dim), self.mesh.get_local_rank(self.mesh_dim))

    def wrap(self, local: Tensor, shape: Sequence[int]) -> DTensor:
        """A rank's part of a result, as a DTensor sharded as the operands are."""
        return _wrap(local, self.mesh, self.placements, shape)

    def replicated(self, whole: Tensor) -> DTensor:
        return _wrap(whole, self.mesh, [Replicate()] * self.mesh.ndim, whole.shape)


def sharding_of(operation: str, dim: int, **operands: Tensor) -> Sharding | None:
    """How operands are sharded over the sequence, which is dimension `dim` of each; None where it is not sharded.

    Raises:
        NotImplementedError: some operands are sharded over the sequence, and others are not, or not alike; or they are sharded
            over a dimension that is not one of the batch, which the first `dim` are.
    """
    sharded = [x for x in operands.values() if isinstance(x, DTensor)]
    on = next((i for x in sharded for i, p in enumerate(x.placements) if p.is_shard(dim)), None)
    return None if on is None else sharded_alike(operation, dim, on, **operands)


def sharded_alike(operation: str, dim: int, on: int | None, **operands: Tensor) -> Sharding:
    """How operands are sharded, once it is known that all are sharded alike: over dimension `dim` on one of the mesh, or none."""
    first = next(x for x in operands.values() if isinstance(x, DTensor))
    mesh, placements = first.device_mesh, first.placements
    allowed: list[Placement] = [Replicate(), *map(Shard, range(dim))]
    alike = all(isinstance(x, DTensor) and (x.device_mesh, x.placements) == (mesh, placements) for x in operands.values())
    fit = all(p == Shard(dim) if i == on else p in allowed for i, p in enumerate(placements))
    for i, p in enumerate(placements):
        sizes = {x.shape[p.dim] for x in operands.values()} if isinstance(p, Shard) and i != on else set()
        if len(sizes) > 1 and any(size % mesh.size(i) for size in sizes):  # a rank must have the key heads of its query heads
            raise NotImplementedError(f"{operation}: {mesh.size(i)} ranks do not divide the sizes {sizes} of a sharded dimension")
    if not (alike and fit):
        given = ", ".join(f"{name} {list(getattr(x, 'placements', ['not a DTensor']))}" for name, x in operands.items())
        raise NotImplementedError(
            f"{operation}: operands that are sharded over dimension {dim} must be sharded so on one dimension of the mesh, all "
            f"alike, and on the others {' or '.join(map(str, allowed))}; got {given}. x.redistribute(placements=...) changes it"
        )
    return Sharding(mesh, on or 0, placements)


def _wrap(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    stride = torch.empty(tuple(shape), device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
