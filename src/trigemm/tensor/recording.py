"""The state of a recording: what an operation must know while a chain of them is captured."""

from contextvars import ContextVar
from types import TracebackType

from trigemm.tensor.backend import Array


class Recording:
    """While it lasts, operations are recorded to be replayed; it holds the arrays that they read and that were there before.

    What needs the host while it lasts (reading a tensor back, making one from the host's data) is a ValueError.
    """

    current: "ContextVar[Recording | None]" = ContextVar("recording", default=None)

    def __init__(self) -> None:
        self.outside: list[Array] = []
        self._inside: set[int] = set()

    def __enter__(self) -> "Recording":
        if Recording.current.get() is not None:
            raise ValueError("capture: another recording is under way; capture one after the other")
        self._token = Recording.current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        Recording.current.reset(self._token)

    def makes(self, array: Array) -> None:
        self._inside.add(id(array))

    def reads(self, array: Array) -> None:
        if id(array) not in self._inside:
            self._inside.add(id(array))
            self.outside.append(array)

    @staticmethod
    def refuse(what: str, remedy: str) -> None:
        if Recording.current.get() is not None:
            raise ValueError(f"capture: the function {what}, which cannot be recorded; {remedy}")
