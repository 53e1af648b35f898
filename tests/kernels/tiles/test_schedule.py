import torch
import triton
import triton.language as tl

from trigemm.kernels.tiles.schedule import schedule_arguments, tile_of
from trigemm.triangle import Triangle


@triton.jit(do_not_specialize=["begin", "first", "slope_rows", "slope_tiles", "columns"])
def write_tile(out_ptr, numbers_ptr, begin, first, slope_rows, slope_tiles, columns, STEP: tl.constexpr):
    i = tl.program_id(0)
    row, column = tile_of(tl.load(numbers_ptr + i), begin, first, STEP, slope_rows, slope_tiles, columns)
    tl.store(out_ptr + 2 * i, row)
    tl.store(out_ptr + 2 * i + 1, column)


def device_tiles(schedule, numbers, device):
    numbers = torch.tensor(numbers, device=device)
    out = torch.full((len(numbers), 2), -1, device=device)
    if len(numbers):
        write_tile[(len(numbers),)](out, numbers, *schedule_arguments(schedule), max(1, schedule.tile_columns), schedule.step)
    return [tuple(tile) for tile in out.tolist()]


def test_the_device_copy_agrees_with_the_geometry(device):
    for rows, columns, diagonal, blocks in [
        (9, 9, 0, (2, 2)),
        (7, 12, 3, (2, 2)),
        (16, 5, -4, (4, 1)),
        (16, 9, -6, (4, 2)),
        (8, 8, 40, (2, 2)),
        (5, 9, 2, (1, 1)),
    ]:
        schedule = Triangle(rows, columns, "lower", diagonal).tiles(*blocks)
        assert device_tiles(schedule, range(len(schedule)), device) == list(schedule)


def test_the_device_copy_is_exact_where_float32_is_not(device):
    schedule = Triangle(10**7, 10**7).tiles(128, 128)
    numbers = [8_390_655, 8_390_656, len(schedule) - 1]
    edges = [schedule.number(row, column) for row in (5792, 65535, 78124) for column in (0, row)]
    for far in (schedule, Triangle(10**7, 10**8, "lower", 3 * 10**7).tiles(256, 128)):
        assert device_tiles(far, numbers + edges, device) == [far.tile(n) for n in numbers + edges]
