"""Each small kernel with a fault is reported, and its mended twin is not: whatever values the simulator returned."""

from importlib import util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from trigemm.lab.traffic.recorder import record

FILES = sorted(Path(__file__).with_name("faults").glob("*.py"))


def load(path):
    spec = util.spec_from_file_location(f"faults_{path.stem}", path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = [load(path) for path in FILES]
PAIRS = [
    pytest.param(module, pair, id=f"{module.KIND}-{pair.__name__}")
    for module in MODULES
    for pair in vars(module).values()
    if hasattr(pair, "wrong")
]


def arguments():
    """The arrays that kernels name in their parameters."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(256).astype(np.float32)
    return {
        "x": x,
        "short": x[:64].copy(),
        "m": rng.standard_normal((16, 16)).astype(np.float32),
        "wide": rng.standard_normal((8, 32)).astype(np.float32),
        "idx": rng.permutation(256).astype(np.int32),
        "parent": np.arange(-1, 63, dtype=np.int32),
        "count": np.zeros(17, dtype=np.int32),
        "out": np.zeros(256, dtype=np.float32),
        "out2": np.zeros((16, 17), dtype=np.float32)[:, :16],
        "n": 50,
    }


def findings(module, pair, kernel):
    def setting(name, default):
        return getattr(pair, name, getattr(module, name, default))

    given = arguments()
    names = kernel.fn.__code__.co_varnames[: kernel.fn.__code__.co_argcount]
    with record(outputs=setting("outputs", ())) as launches:
        kernel[setting("grid", 1), setting("block", 64), 0, setting("dynamic", 0)](*(given[name] for name in names))
    return launches[0].findings


@pytest.mark.parametrize(("module", "pair"), PAIRS)
def test_the_fault_is_reported_and_the_mended_twin_is_not(module, pair):
    found = findings(module, pair, pair.wrong)
    assert module.KIND in {finding.kind for finding in found}
    mine = next(finding for finding in found if finding.kind == module.KIND)
    first = pair.wrong.fn.__code__.co_firstlineno
    assert mine.kernel == "wrong"
    assert mine.line.function != "wrong" or first <= mine.line.number < pair.mended.fn.__code__.co_firstlineno
    assert [str(finding) for finding in findings(module, pair, pair.mended)] == []


@pytest.mark.parametrize("module", MODULES, ids=[module.KIND for module in MODULES])
def test_there_are_twelve_patterns_of_each_kind(module):
    assert sum(1 for _, pair in vars(module).items() if hasattr(pair, "wrong")) >= 12
