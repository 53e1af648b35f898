"""What a GPU takes of a launch. Beyond these limits, the same on every GPU, the driver or the compiler refuses."""

from math import prod

BLOCK_THREADS = 1024
BLOCK_LIMITS = (1024, 1024, 64)
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
SHARED_BYTES = 48 * 1024  # of a block, static and dynamic; numba-cuda does not opt in to more

Dim3 = tuple[int, int, int]


def check_launch(grid: Dim3, block: Dim3, dynamic_bytes: int) -> None:
    """Raise ValueError where a launch of this size fails on every GPU.

    >>> check_launch((1, 1, 1), (2048, 1, 1), 0)
    Traceback (most recent call last):
    ValueError: a block has at most 1,024 threads, got 2048 x 1 x 1
    """
    if prod(block) > BLOCK_THREADS:
        raise ValueError(f"a block has at most {BLOCK_THREADS:,} threads, got {' x '.join(map(str, block))}")
    for name, size, limits in (("grid", grid, GRID_LIMITS), ("block", block, BLOCK_LIMITS)):
        for axis, n, limit in zip("xyz", size, limits, strict=True):
            if not 1 <= n <= limit:
                raise ValueError(f"the {name}'s {axis} must be 1 to {limit:,}, got {n:,}")
    if dynamic_bytes < 0:
        raise ValueError(f"a block's dynamic shared memory must be 0 bytes or more, got {dynamic_bytes:,}")
    check_shared(0, dynamic_bytes)


def check_shared(static_bytes: int, dynamic_bytes: int) -> None:
    """Raise ValueError where a block's shared memory does not fit.

    >>> check_shared(128 * 128 * 4, 0)
    Traceback (most recent call last):
    ValueError: a block has at most 49,152 bytes of shared memory, got 65,536 (65,536 static, 0 dynamic)
    """
    total = static_bytes + dynamic_bytes
    if total > SHARED_BYTES:
        raise ValueError(
            f"a block has at most {SHARED_BYTES:,} bytes of shared memory, got {total:,}"
            f" ({static_bytes:,} static, {dynamic_bytes:,} dynamic)"
        )
