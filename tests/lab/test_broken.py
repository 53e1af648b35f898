"""Verification can fail: kernels that are wrong in one way each are rejected, and accepted once mended.

Every kernel here takes a bug and computes tile by tile, so that the bugs are those that tiled kernels have.
"""

import math
import re

import pytest
import torch

from trigemm.lab.budget import round_to_tf32
from trigemm.lab.verify import Case, verify_case, verify_scores

TILE = 16
GEMMT = Case("gemmt", {"M": 75, "N": 75, "K": 33}, batch=((2,), (2,)), parameters={"alpha": 0.5}, out="contiguous")
UNFILLED = Case("gemmt", {"M": 75, "N": 75, "K": 33}, batch=((2,), (2,)), parameters={"fill": None}, out="sliced")


def gemmt(bug=""):
    """A kernel of `gemmt`, wrong as `bug` says."""

    def kernel(a, b, out, *, alpha, diagonal, fill, precision):
        if bug == "rounds to TF32":
            a, b = round_to_tf32(a), round_to_tf32(b)
        rows, columns = out.shape[-2:]
        tiles = [(r, c) for r in range(0, rows, TILE) for c in range(0, columns, TILE)]
        if bug == "skips the last tile":
            tiles.pop()
        shift = {"one column too many": 1, "one column too few": -1}.get(bug, 0)
        distance = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
        inside = distance <= diagonal + shift
        if bug == "writes above the diagonal":
            inside |= (distance > diagonal) & (distance < 3)
        if bug == "leaves an entry unwritten":
            inside[40, 20] = False
        for r, c in tiles:
            tile = slice(r, r + TILE), slice(c, c + TILE)
            product = alpha * (a[..., tile[0], :] @ b[..., :, tile[1]])
            rest = out[(..., *tile)] if fill is None or bug == "leaves the fill out" else fill
            out[(..., *tile)] = torch.where(inside[tile], product, rest)
        if bug == "gives NaN":
            out[1, 70, 3] = math.nan
        if bug == "writes a guard byte":
            around(out).view(torch.uint8)[out.element_size() * (out.storage_offset() + out.numel())] ^= 1
        if bug == "writes between rows":
            around(out)[out.storage_offset() + columns] = 1.0
        if bug == "modifies an input":
            a[1, 5, 5] += 1.0

    return kernel


def around(x):
    """All of the buffer that `x` lies in."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())


def trmm(bug=""):
    """A kernel of `trmm`."""

    def kernel(a, b, out, *, alpha, uplo, diagonal, precision):
        if bug == "multiplies the unread half by zero":
            inside = torch.ones_like(a).tril(diagonal) if uplo == "lower" else torch.ones_like(a).triu(diagonal)
            left = a * inside
        elif bug == "reads the unread half":
            left = a
        else:
            left = a.tril(diagonal) if uplo == "lower" else a.triu(diagonal)
        out.copy_(alpha * (left @ b))

    return kernel


def syrk(bug=""):
    """A kernel of `syrk`."""

    def kernel(a, c, out, *, alpha, beta, uplo, precision):
        result = alpha * (a @ a.mT)
        if c is not None and bug != "forgets c":
            result = result + beta * (c if uplo == "full" or bug == "reads the unread half of c" else c.tril())
        if bug == "is not symmetric":
            result = torch.where(torch.ones_like(result).triu(40) > 0, 0.0, result)
        out.copy_(result if uplo == "full" or bug == "reads the unread half of c" else result.tril())

    return kernel


def scores(bug=""):
    """A kernel of `causal_scores_qkvpacked`."""

    def kernel(qkv, out, *, scale, fill, precision):
        B, T, _, NH, _ = qkv.shape
        inside = torch.ones(T, T, dtype=torch.bool).tril()
        for number in range(B * NH):
            batch, head = (number // NH, number % NH) if bug != "takes heads for batches" else (number % B, number // B)
            q, k = qkv[batch, :, 0, head], qkv[batch, :, 1, head]
            if bug == "takes the next head's keys":
                k = qkv[batch, :, 1, (head + 1) % NH]
            product = q @ k.mT * (scale if bug != "forgets the scale" else 1.0)
            rest = out[number // NH, number % NH].clone() if fill is None else fill
            out[number // NH, number % NH] = torch.where(inside, product, rest)

    return kernel


def test_the_mended_kernels_are_accepted():
    for case in (GEMMT, UNFILLED):
        assert verify_case(case, kernel=gemmt()).passed
    for uplo in ("lower", "upper"):
        assert verify_case(trmm_case(uplo), kernel=trmm()).passed
    for uplo in ("full", "lower"):
        assert verify_case(syrk_case(uplo), kernel=syrk()).passed
    for fill in (None, -math.inf):
        assert verify_scores(scores(), torch.randn(2, 40, 3, 3, 16), fill=fill).passed


@pytest.mark.parametrize(
    ("bug", "case", "reason"),
    [
        ("one column too many", GEMMT, "outside the triangle"),
        ("one column too many", UNFILLED, "not what it was"),
        ("one column too few", GEMMT, "times the error budget"),
        ("one column too few", UNFILLED, "is nan where"),
        ("skips the last tile", UNFILLED, "is nan where"),
        ("skips the last tile", GEMMT, "outside the triangle is nan"),
        ("writes above the diagonal", UNFILLED, "not what it was"),
        ("writes above the diagonal", GEMMT, "not the fill"),
        ("leaves an entry unwritten", UNFILLED, r"entry \(0, 40, 20\) is nan"),
        ("leaves the fill out", GEMMT, "not the fill"),
        ("gives NaN", GEMMT, r"entry \(1, 70, 3\) is nan"),
        ("gives NaN", UNFILLED, r"entry \(1, 70, 3\) is nan"),
        ("rounds to TF32", GEMMT, "times the error budget"),
        ("writes a guard byte", GEMMT, "bytes around the output"),
        ("writes between rows", UNFILLED, "bytes around the output"),
        ("modifies an input", GEMMT, "operand 0 was changed"),
    ],
)
def test_a_broken_gemmt_is_rejected(bug, case, reason):
    assert_matches(reason, verify_case(case, kernel=gemmt(bug)))


def test_an_entry_left_unwritten_shows_where_nan_is_an_answer():
    case = Case("gemmt", UNFILLED.sizes, batch=((2,), (2,)), parameters={"fill": None}, out="sliced", values="nonfinite", seed=3)
    assert verify_case(case, kernel=gemmt()).passed
    assert_matches(r"entry \(0, 40, 20\)", verify_case(case, kernel=gemmt("leaves an entry unwritten")))


@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize("bug", ["reads the unread half", "multiplies the unread half by zero"])
def test_a_broken_trmm_is_rejected(bug, uplo):
    assert_matches("is nan where", verify_case(trmm_case(uplo), kernel=trmm(bug)))


@pytest.mark.parametrize(
    ("bug", "uplo", "reason"),
    [
        ("forgets c", "full", "times the error budget"),
        ("forgets c", "lower", "times the error budget"),
        ("is not symmetric", "full", "times the error budget"),
        ("reads the unread half of c", "lower", r"entry \(0, 1\) outside the triangle is nan"),
    ],
)
def test_a_broken_syrk_is_rejected(bug, uplo, reason):
    assert_matches(reason, verify_case(syrk_case(uplo), kernel=syrk(bug)))


@pytest.mark.parametrize("bug", ["takes the next head's keys", "takes heads for batches", "forgets the scale"])
def test_broken_scores_are_rejected(bug):
    assert_matches("times the error budget", verify_scores(scores(bug), torch.randn(2, 40, 3, 3, 16)))


def trmm_case(uplo):
    return Case("trmm", {"M": 33, "N": 20, "K": 47}, parameters={"uplo": uplo, "diagonal": 2}, out="transposed")


def syrk_case(uplo):
    return Case("syrk", {"N": 50, "K": 33}, parameters={"uplo": uplo, "beta": 2.0}, out="contiguous")


def assert_matches(reason, verdict):
    """The verdict is a failure for this reason (a regular expression)."""
    assert not verdict.passed
    assert verdict.error_over_budget > 1
    assert re.search(reason, verdict.reason)
