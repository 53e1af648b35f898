from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trigemm.lab.cases import LAYOUTS, Case
from trigemm.lab.operands import GUARD, Guarded, bits, build, place, poison, random_values, strides_of

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHAPES = st.lists(st.integers(0, 5), min_size=2, max_size=5).map(tuple)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def placed(shape=(3, 5), layout="sliced", dtype=torch.float32):
    return place(shape, layout, dtype, "cpu", generator(), torch.randn(shape, generator=generator(1)).to(dtype))


@given(SHAPES, st.sampled_from([layout for layout in LAYOUTS if layout != "expanded"]))
def test_a_layout_holds_every_element_once(shape, layout):
    strides, offset, span = strides_of(shape, layout)
    places = torch.arange(span + 1).as_strided(shape, strides, offset).flatten()
    assert len(set(places.tolist())) == places.numel()
    assert places.numel() == 0 or (places.min() >= 0 and places.max() < span)


def test_layouts_are_what_their_names_say():
    shape = (2, 3, 4, 8)
    layouts = {layout: torch.empty(10_000).as_strided(shape, *strides_of(shape, layout)[:2]) for layout in LAYOUTS}
    assert layouts["contiguous"].is_contiguous()
    assert layouts["transposed"].mT.is_contiguous()
    assert layouts["packed"].stride() == torch.empty(2, 4, 3, 3, 8)[:, :, 1].transpose(1, 2).stride()
    assert layouts["packed"].storage_offset() == 3 * 8
    assert layouts["sliced"].stride(-1) == 1
    assert layouts["sliced"].stride(-2) > 8
    assert layouts["stepped"].stride()[-2:] == (16, 2)
    assert layouts["misaligned"].data_ptr() % 16 == 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_nan_or_finite_and_never_the_same_for_long(dtype):
    assert poison(100_000, dtype, generator()).view(dtype).isnan().all()
    assert poison(1000, dtype, generator(), finite=True).view(dtype).isfinite().all()
    assert len(set(poison(1000, dtype, generator()).tolist())) > 100
    assert poison(0, dtype, generator()).numel() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS[:5])
def test_all_that_surrounds_a_tensor_is_nan(layout, dtype):
    guarded = placed(layout=layout, dtype=dtype)
    whole = guarded.buffer.view(dtype)
    assert whole.isnan().sum() == whole.numel() - 15
    assert whole[:GUARD].isnan().all()
    assert whole[-GUARD:].isnan().all()
    assert guarded.view.isfinite().all()


def test_every_changed_bit_shows():
    guarded = placed()
    for place_, around in [(0, True), (-1, True), (GUARD + 1, True), (guarded.view.storage_offset(), False)]:
        before = guarded.buffer[place_].item()
        guarded.buffer[place_] = before ^ 1
        assert guarded.changed()
        assert guarded.changed_around() == around
        guarded.buffer[place_] = before
        assert not guarded.changed()
        assert not guarded.changed_around()


def test_a_tensor_of_anyones_can_be_watched():
    x = torch.randn(4, 6).mT[::2]
    guarded = Guarded.watch(x)
    assert not guarded.changed()
    x[1, 1] = -x[1, 1]
    assert guarded.changed()


def test_bits_tell_what_equality_does_not():
    assert not torch.equal(bits(torch.tensor([0.0])), bits(torch.tensor([-0.0])))
    assert torch.equal(bits(torch.tensor([torch.nan])), bits(torch.tensor([torch.nan])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_kinds_of_values(dtype):
    def make(kind):
        return random_values((64, 64), kind, dtype, generator())

    info = torch.finfo(dtype)
    assert make("normal").std().float() == pytest.approx(1, abs=0.1)
    wide = make("wide").abs().double()
    assert wide.max() / wide.quantile(0.01) > 500
    huge = (make("huge").double() ** 2).sum(1)
    assert huge.isfinite().all()
    assert (huge.max() > info.max) == (dtype != torch.float64)
    tiny = make("tiny").double() ** 2
    assert (tiny < info.tiny).any()
    assert tiny.max() < 100 * info.tiny
    assert (~make("nonfinite").isfinite()).sum() == 3
    zeros = make("sparse") == 0
    assert 0.6 < zeros.double().mean() < 0.72
    assert len(set(bits(make("sparse"))[zeros].tolist())) == 2


@given(st.integers(0, 10**9))
def test_a_case_determines_its_operands(seed):
    case = Case.random(Random(seed), largest=40)
    first, second = build(case, "cpu"), build(case, "cpu")
    for one, other, shape in zip(first, second, case.operand_shapes, strict=True):
        assert torch.equal(one.before, other.before)
        assert one.view.stride() == other.view.stride()
        assert one.view.shape == shape
        assert one.view.dtype == getattr(torch, case.dtype)


def test_the_half_that_is_not_read_is_nan():
    trmm = Case("trmm", {"M": 6, "N": 4, "K": 5}, batch=((2,), (2,)), parameters={"uplo": "upper", "diagonal": 1})
    a, b = (x.view for x in build(trmm, "cpu"))
    assert torch.equal(a.isnan(), torch.ones(2, 6, 5).tril(0) == 1)
    assert b.isfinite().all()

    syrk = Case("syrk", {"N": 6, "K": 4}, parameters={"uplo": "lower", "beta": 1.0})
    a, c = (x.view for x in build(syrk, "cpu"))
    assert a.isfinite().all()
    assert torch.equal(c.isnan(), torch.ones(6, 6).triu(1) == 1)
    assert build(replace(syrk, parameters={"beta": 1.0}), "cpu")[1].view.isfinite().all()


def test_a_factor_of_infinities_in_trmm_stays_finite():
    case = Case("trmm", {"M": 6, "N": 4, "K": 6}, values="nonfinite")
    _, b = (x.view for x in build(case, "cpu"))
    assert b.isfinite().all()


def test_an_expanded_operand_has_stride_zero_unless_half_of_it_is_unread():
    gemmt = Case("gemmt", {"M": 6, "N": 4, "K": 5}, batch=((3,), ()), layouts=("expanded", "expanded"))
    a, b = (x.view for x in build(gemmt, "cpu"))
    assert (a.stride(0), b.stride(0)) == (0, 0)
    trmm = Case("trmm", {"M": 6, "N": 4, "K": 5}, layouts=("expanded", "expanded"))
    a, b = (x.view for x in build(trmm, "cpu"))
    assert (a.stride(0), b.stride(0)) == (5, 0)
