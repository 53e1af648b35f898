"""A chain of operations on a GPU, recorded once as a CUDA graph and replayed with new inputs.

A replay is one call of the driver for the whole chain: what the host spends on each operation, it spends once, at the recording.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from trigemm.tensor.autograd import Node
from trigemm.tensor.backend import Array
from trigemm.tensor.operations import Gradient
from trigemm.tensor.recording import Recording
from trigemm.tensor.tensor import Tensor

if TYPE_CHECKING:
    from trigemm.tensor.cuda import CudaBackend

Function = Callable[..., Tensor | Sequence[Tensor]]


class Captured:
    """What `CudaBackend.capture` gives: call it with new tensors, and it gives new tensors."""

    def __init__(self, backend: "CudaBackend", function: Function, examples: Sequence[Tensor]):
        self._backend = backend
        for number, x in enumerate(examples):
            self._check_kind(number, x)
        self._inputs = [x.array.clone() for x in examples]
        self._grouped_inputs = _by_dtype(self._inputs)
        inputs = [
            x.like(array, requires_grad=x.requires_grad) for x, array in zip(examples, self._inputs, strict=True)
        ]  # what the recording reads, at each replay filled anew
        with Recording() as recording:
            self._replay, result = self._record(function, inputs)
        self._outside = recording.outside  # the graph reads them where they lie
        self._is_one = isinstance(result, Tensor)
        results = [result] if isinstance(result, Tensor) else result
        if not isinstance(results, (tuple, list)) or not results or not all(isinstance(x, Tensor) for x in results):
            given = type(result).__name__ if result else repr(result)
            raise TypeError(f"capture: the function must return a Tensor or a sequence of them; got {given}")
        self._results = [x.array for x in results]
        self._grouped_results = _by_dtype(self._results)
        self._have_history = [None if x.node is None else x.node.pull is not None for x in results]  # None: no gradient at all

    def _record(self, function: Function, inputs: Sequence[Tensor]) -> tuple[Callable[[], None], Any]:
        """What replays the function on the same inputs, and what it returned: its results, after each replay."""
        device = self._backend.device
        if device.type != "cuda":  # in Triton's interpreter, which has no graphs: run it again, into the same results
            result = function(*inputs)

            def again() -> None:
                fresh = function(*inputs)
                arrays = [x.array for x in ([fresh] if isinstance(fresh, Tensor) else fresh)]
                torch._foreach_copy_(self._results, arrays)

            return again, result
        with torch.cuda.device(device):
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                function(*inputs)  # compiles kernels, which a recording cannot
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with warnings.catch_warnings():
                    # A function that fails, or launches nothing, is told of below.
                    warnings.filterwarnings("ignore", "The CUDA Graph is empty", UserWarning)
                    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                        result = function(*inputs)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise ValueError(f"capture: the function does what a CUDA graph cannot record ({reason})") from error
            self._done = torch.cuda.Event()
            self._done.record()
        return graph.replay, result

    def _check_kind(self, number: int, x: Any) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"capture: arguments must be trigemm.tensor.Tensor; argument {number} is {type(x).__name__}")
        if x.backend != self._backend:
            raise ValueError(
                f"capture: argument {number} is on {x.backend!r}, the recording on {self._backend!r}; move it with .to(backend)"
            )
        if x.node is not None and x.node.pull is not None:
            raise ValueError(f"capture: gradients do not pass through a replay; give argument {number} as .detach()")

    def _check(self, inputs: Sequence[Tensor]) -> None:
        if len(inputs) != len(self._inputs):
            raise ValueError(f"capture: recorded with {len(self._inputs)} arguments, replayed with {len(inputs)}")
        for number, (x, recorded) in enumerate(zip(inputs, self._inputs, strict=True)):
            self._check_kind(number, x)
            if x.array.shape != recorded.shape or x.array.dtype != recorded.dtype:
                raise ValueError(
                    f"capture: argument {number} was recorded as {tuple(recorded.shape)} {self._backend.dtype(recorded)}; "
                    f"got {x.shape} {x.dtype}; capture again for other shapes"
                )

    def __call__(self, *inputs: Tensor) -> Tensor | list[Tensor]:
        """The function of these inputs, of the shapes and dtypes of the recording. ValueError for others."""
        self._check(inputs)
        on_gpu = self._backend.device.type == "cuda"
        stream = torch.cuda.current_stream(self._backend.device) if on_gpu else None
        if stream is not None:  # an earlier replay, in another stream maybe, has done with the inputs and the results
            stream.wait_event(self._done)
        for places in self._grouped_inputs:
            torch._foreach_copy_([self._inputs[i] for i in places], [inputs[i].array for i in places])
        self._replay()
        fresh: list[Any] = [None] * len(self._results)
        for places in self._grouped_results:
            copies = torch._foreach_mul([self._results[i] for i in places], 1)  # allocates and copies all in few launches
            for place, copy in zip(places, copies, strict=True):
                fresh[place] = copy
        if stream is not None:
            self._done.record(stream)
        tensors = [Tensor.of(array, self._backend) for array in fresh]
        for x, has_history in zip(tensors, self._have_history, strict=True):
            x.node = None if has_history is None else Node(pull=_refuse if has_history else None)
        return tensors[0] if self._is_one else tensors


def _refuse(grad: Array) -> tuple[Gradient, ...]:
    """The pullback of a result whose history is the recording's: gradients through a replay would silently lack it."""
    raise ValueError("gradients: they do not pass through a replay; take them in the captured function, and return them")


def _by_dtype(arrays: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places of arrays of one dtype together: PyTorch copies many at once only then."""
    places: dict[torch.dtype, list[int]] = {}
    for place, array in enumerate(arrays):
        places.setdefault(array.dtype, []).append(place)
    return list(places.values())
