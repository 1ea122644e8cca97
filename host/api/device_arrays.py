# SPDX-License-Identifier: Apache-2.0
"""Allreduce of arrays in a device's memory: arrays of CuPy, JAX, torch, and any library that implements DLPack or
``__cuda_array_interface__``.

They are staged through pinned memory as torch's tensors are (``host/staging``), for which torch has to be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

from netfold.host.api.work import Work
from netfold.host.errors import NetFoldError, TransportError
from netfold.host.operation.arrays import Array

if TYPE_CHECKING:
    import torch

OF_THE_HOST: Final = (1, 3)
"""DLPack's device types whose memory numpy can read: CPU memory and pinned memory."""


def on_device(array: object) -> bool:
    """True if an array is in a device's memory."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) not in OF_THE_HOST
    return hasattr(array, "__cuda_array_interface__")


class Endable(Protocol):
    """A communicator, or a group of its ranks."""

    def fail(self, error: NetFoldError, untold: str = "") -> None:
        """See ``Group``."""


class Carries(Endable, Protocol):
    """The same, which carries allreduces of numpy arrays."""

    def allreduce(self, *args: Any, **how: Any) -> Array:
        """See ``Group``."""

    def later(self, operation: Callable[[], Any], what: str) -> Work[Any]:
        """See ``Group``."""


@contextmanager
def ending_with(place: object, group: Endable, *also: Callable[[NetFoldError], object]) -> Iterator[None]:
    """An error of a device in this block ends the communicator as well: this rank may not have begun an operation that
    the others have, and its next one would be taken for that.

    place  the device
    group  whose communicator ends
    also   called with the error of the communicator
    """
    try:
        yield
    except (NetFoldError, TypeError, ValueError):  # the communicator's own, and refused arguments
        raise
    except Exception as error:
        why = f"{place} has failed: {error}"
        failed = TransportError(f"{group!r}: {why}")
        group.fail(failed, why)
        for tell in also:
            tell(failed)
        raise


class DeviceAllreduce:
    """An allreduce of an array on a device; its copy to the host has begun.

    group       whose ``allreduce`` of numpy arrays carries it; a device that fails ends its communicator
    array, out  as in ``Group.allreduce``; ``out`` may be of another library, and in other memory
    Raises ValueError if torch is not installed, and for arrays that it does not support.
    """

    def __init__(self, group: Carries, array: Any, out: Any = None) -> None:
        try:
            import torch

            from netfold.host.staging.copies import Staging, TensorParts
        except ImportError as error:
            raise ValueError(
                f"array is a {_class_of(array)} on a device, and torch, by which it would "
                f"be copied, is not installed ({error}): pip install torch, or give a numpy array"
            ) from error
        self._group, self._out, self._array = group, out, array
        with ending_with(f"the device of a {_class_of(array)}", group):
            source = as_tensor(array)
            into = source if out is None else as_tensor(out, filled=True)
        if into.shape != source.shape or into.dtype != source.dtype:
            raise ValueError(f"out is {into.dtype} of {tuple(into.shape)}: expected {source.dtype} of "
                             f"{tuple(source.shape)}")
        if out is not None and _shares_elements(into):
            raise ValueError(f"out is of {tuple(into.shape)} with strides {into.stride()}, whose elements share "
                             "memory: expected an array with memory for each")
        if out is not None and into.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError("out is a tensor of torch.inference_mode(), which may not be filled outside of it")
        self._place = into.device
        with ending_with(self._place, group):
            lane = Staging().lane("allreduce", [into])
            if lane is None:
                raise ValueError("out is on the CPU: expected an array on the device, where the other one is")
            self._result = source.clone() if out is None else into
            if (into.data_ptr(), into.stride()) != (source.data_ptr(), source.stride()):
                into.copy_(source.clone() if _overlap(into, source) else source)
            self._parts = TensorParts(lane, self._result, whole=True)  # as others give arrays in the host's memory

    def __str__(self) -> str:
        return f"{self._result.numel()} x {str(self._result.dtype).removeprefix('torch.')}"

    def __call__(self, *, feedback: Array | None = None, **how: Any) -> Any:
        """The result, in an array of the same library: ``out``, or a new one.  Parameters are those of
        ``Group.allreduce``; ``feedback`` is a numpy array."""

        def reduce(part: torch.Tensor, place: slice) -> None:
            data, element = _as_array(part)
            given = {**how, "dtype": element} if element else how
            residual = None if feedback is None else feedback.reshape(-1)[place].reshape(data.shape)
            self._group.allreduce(data, data, feedback=residual, **given)

        with ending_with(self._place, self._group):
            self._parts.run(reduce)
            self._parts.finish()
        return _like(self._array, self._result) if self._out is None else self._out

    def start(self, how: dict[str, Any], what: str) -> Work[Any]:
        """Calls itself asynchronously, by ``Group.later``; what never runs gives up its copies."""
        try:
            work = self._group.later(partial(self, **how), what)
        except Exception:  # after Ctrl-C nobody knows whether it runs
            self._parts.drop()
            raise
        work.add_done_callback(lambda _: self._parts.drop())  # after its end this does nothing
        return work


def as_tensor(array: Any, *, filled: bool = False) -> torch.Tensor:
    """A tensor of an array's memory, ordered behind the work that fills it.  Raises ValueError, and the errors of its
    device.

    filled  the tensor is, so the array must not be read-only
    """
    import torch

    stream = None
    try:
        if isinstance(array, torch.Tensor):
            return array.detach()
        if hasattr(array, "__dlpack__"):
            return torch.from_dlpack(array)
        tensor, stream = _by_interface(array, filled)
    except (RuntimeError, TypeError, BufferError, AssertionError) as error:
        if isinstance(error, RuntimeError) and type(error) not in (RuntimeError, NotImplementedError):
            raise  # each library has a class of its own for errors of devices
        raise ValueError(f"array is a {_class_of(array)}, whose memory torch cannot use: {error}") from error
    if stream is not None:
        torch.cuda.current_stream(tensor.device).wait_stream(torch.cuda.ExternalStream(stream, tensor.device))
    return tensor


def _by_interface(array: Any, filled: bool) -> tuple[torch.Tensor, int | None]:
    """The same by ``__cuda_array_interface__`` alone, and the stream to wait for: torch ignores that one, and refuses
    what is read-only."""
    import torch

    given = dict(array.__cuda_array_interface__)
    (pointer, read_only), stream = given["data"], given.get("stream")
    if stream == 0:
        raise ValueError(f"array is a {_class_of(array)} whose __cuda_array_interface__ has stream 0, which the "
                         "interface does not allow: expected None, 1, 2 or a stream's address")
    given["data"] = pointer, read_only and filled
    held = SimpleNamespace(__cuda_array_interface__=given, array=array)
    tensor = torch.as_tensor(held, device=torch.accelerator.current_accelerator())
    if tensor.numel() and tensor.data_ptr() != pointer:  # torch has moved it
        raise ValueError(f"array is a {_class_of(array)} on another device than torch's current one, {tensor.device}: "
                         "expected an array there; choose its device by torch.cuda.set_device first")
    return tensor, stream


def _shares_elements(tensor: torch.Tensor) -> bool:
    import torch

    return bool(torch._debug_has_internal_overlap(tensor) == 1)  # else torch finds it when it fills the tensor


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if some bytes between a tensor's first and last are also the other one's."""
    spans = []
    for tensor in (one, other):
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        spans.append((tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()))
    return bool(max(first for first, _ in spans) < min(end for _, end in spans))


def _class_of(array: object) -> str:
    return f"{type(array).__module__}.{type(array).__name__}"


def _as_array(part: torch.Tensor) -> tuple[Array, str | None]:
    import torch

    if part.dtype == torch.bfloat16:
        return part.view(torch.int16).numpy().view("uint16"), "bfloat16"
    return part.numpy(), None


def _like(array: Any, result: torch.Tensor) -> Any:
    """The result as an array of the library of ``array``; as a tensor if that library accepts none."""
    import torch

    if isinstance(array, torch.Tensor):
        return result
    library: Any = sys.modules.get(type(array).__module__.partition(".")[0])  # as cupy, whose arrays do not name it
    if hasattr(array, "__array_namespace__"):
        library = array.__array_namespace__()
    takes: Callable[[object], object] | None = getattr(library, "from_dlpack", None)
    return result if takes is None else takes(result)
