import sys
from types import SimpleNamespace

from trigemm.lab.traffic.log import Log
from trigemm.lab.traffic.machine import LimitReached, Machine


def test_a_stop_that_meets_a_destructor_is_not_reported(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    before = sys.unraisablehook
    machine = Machine(Log(), (1, 1, 1), lambda thread: None, 10)
    stop, other = SimpleNamespace(exc_type=LimitReached), SimpleNamespace(exc_type=ValueError)
    sys.unraisablehook(stop)
    sys.unraisablehook(other)
    machine.close()
    assert reported == [other]
    assert sys.unraisablehook is before
