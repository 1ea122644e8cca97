# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries on a device: reduced where they are, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))


from netfold.host.api import device_arrays  # noqa: E402
from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.errors import Closed, NetFoldError, TransportError  # noqa: E402
from netfold.host.staging import copies as staging  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from support.devices.late_device import LateDevice  # noqa: E402
from support.hosts.insides import ranks_of  # noqa: E402


class Foreign:
    """An array of a library that torch does not know, in a device's memory."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array_namespace__(self) -> Any:
        return type("library", (), {"from_dlpack": Foreign})


def test_arrays_of_other_libraries_are_reduced_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is an array of the same library, a new one or ``out``; bfloat16 is told by its dtype."""
    devices = LateDevice(1), LateDevice(2)
    monkeypatch.setattr(device_arrays, "as_tensor", lambda array, **_: getattr(array, "held", array))

    def rank(comm: Communicator) -> None:
        mine = Foreign(torch.arange(8.0) + comm.rank)
        found: Any = comm.allreduce(mine)  # type: ignore[arg-type]
        assert isinstance(found, Foreign)
        assert found.held.tolist() == [2 * value + 1.0 for value in range(8)]
        assert mine.held.tolist() == [value + comm.rank for value in range(8)]
        half = Foreign(torch.ones(5, dtype=torch.bfloat16))
        work: Any = comm.iallreduce(half, half, "max", name="largest")  # type: ignore[arg-type]
        assert work.wait() is half
        assert half.held.tolist() == [1.0] * 5
        assert comm.flight()[-1].name == "largest"
        with pytest.raises(ValueError, match=r"out is torch.float32 of \(3,\): expected torch.float32 of \(8,\)"):
            comm.allreduce(mine, Foreign(torch.zeros(3)))  # type: ignore[arg-type]

    with loopback_job(2) as comms:
        monkeypatch.setattr(staging, "device_of", None)
        monkeypatch.setattr(staging.Staging.__init__, "__defaults__", (devices[0].of,))
        assert on_every_rank(comms, rank) == [None] * 2


@pytest.mark.parametrize("way", ["allreduce", "iallreduce", "at the call"])
def test_a_device_that_fails_ends_the_communicator(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The other rank gets no sum with what the failing rank calls next, but an error that names the device."""
    device = LateDevice()
    monkeypatch.setattr(device_arrays, "as_tensor", lambda array, **_: getattr(array, "held", array))
    monkeypatch.setattr(staging.Staging.__init__, "__defaults__", (device.of,))
    device.failure = RuntimeError("out of memory")
    if way == "at the call":
        monkeypatch.setattr(device.pool, "_make", out_of_memory)

    def rank(comm: Communicator) -> str:
        mine: Any = Foreign(torch.ones(4))
        comm.barrier()
        if comm.rank == 1:
            with pytest.raises(NetFoldError) as caught:
                comm.allreduce(np.ones(4, np.float32))
            return str(caught.value)
        with pytest.raises(RuntimeError, match=r"^out of memory$"):
            comm.iallreduce(mine).wait() if way == "iallreduce" else comm.allreduce(mine)
        with pytest.raises(TransportError, match="cpu has failed: out of memory"):
            comm.allreduce(np.full(4, 100, np.float32))
        comm.close()
        return ""

    with loopback_job(2, rail="tcp") as comms:
        own, other = on_every_rank(comms, rank)
    assert own == ""
    assert "cpu has failed: out of memory" in other, other


def out_of_memory(nbytes: int) -> torch.Tensor:
    raise RuntimeError("out of memory")


def test_a_group_of_some_ranks_ends_with_its_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the group, and the whole communicator is at an end."""
    device = LateDevice()
    monkeypatch.setattr(device_arrays, "as_tensor", lambda array, **_: getattr(array, "held", array))
    monkeypatch.setattr(staging.Staging.__init__, "__defaults__", (device.of,))
    device.failure = RuntimeError("it is gone")
    with loopback_job(1) as (comm,):
        with pytest.raises(RuntimeError, match="it is gone"):
            comm.group([0]).allreduce(Foreign(torch.ones(4)))  # type: ignore[arg-type]
        with pytest.raises(TransportError, match=r"<Group of .*, job 'loop', rank 0 of 1>: cpu has failed: it is gone"):
            comm.barrier()
    assert device.left() == (0, 0)


@pytest.mark.parametrize("out", [
    pytest.param(lambda base: base[1:], id="behind it"), pytest.param(lambda base: base[1:].clone(), id="elsewhere"),
    pytest.param(lambda base: base[:4], id="the array itself"),
])
def test_out_may_lie_where_the_array_lies(monkeypatch: pytest.MonkeyPatch, out: Callable[[Any], Any]) -> None:
    """A part of it, other memory, or all of it: out is the sum of what the array held."""
    device = LateDevice()
    monkeypatch.setattr(device_arrays, "as_tensor", lambda array, **_: getattr(array, "held", array))

    def rank(comm: Communicator) -> list[float]:
        base = torch.arange(5.0) + comm.rank
        into = Foreign(out(base))
        comm.allreduce(Foreign(base[:4]), into)  # type: ignore[arg-type]
        return [float(value) for value in into.held]

    with loopback_job(2) as comms:
        monkeypatch.setattr(staging, "device_of", None)
        monkeypatch.setattr(staging.Staging.__init__, "__defaults__", (device.of,))
        assert on_every_rank(comms, rank) == [[1.0, 3.0, 5.0, 7.0]] * 2


def test_a_transposed_out_of_the_same_memory_is_filled_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins where the array begins, and is the array all the same only where its strides are, too."""
    device = LateDevice()
    monkeypatch.setattr(device_arrays, "as_tensor", lambda array, **_: getattr(array, "held", array))
    with loopback_job(1) as (comm,):
        monkeypatch.setattr(staging.Staging.__init__, "__defaults__", (device.of,))
        base = torch.arange(4.0).view(2, 2)
        comm.allreduce(Foreign(base), Foreign(base.T))  # type: ignore[arg-type]
        assert base.T.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_an_array_that_is_refused_fills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """``out`` on the CPU, one whose elements share memory, and one that nobody may fill, hold what they held, and the
    communicator is usable."""
    device, mine = LateDevice(), Foreign(torch.full((4,), 7.0))
    out, shared = np.zeros(4, np.float32), torch.zeros(1).expand(4)
    monkeypatch.setattr(
        device_arrays, "as_tensor",
        lambda array, **_: torch.from_numpy(array) if isinstance(array, np.ndarray) else getattr(array, "held", array),
    )
    monkeypatch.setattr(
        staging.Staging.__init__, "__defaults__",
        (lambda tensor: None if tensor.data_ptr() == out.ctypes.data else device,),
    )
    with loopback_job(1) as (comm,):
        with pytest.raises(ValueError, match="out is on the CPU: expected an array on the device"):
            comm.allreduce(mine, out)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"out is of \(4,\) with strides \(0,\), whose elements share memory"):
            comm.allreduce(mine, Foreign(shared))  # type: ignore[arg-type]
        with torch.inference_mode():
            inferred = torch.zeros(4)
        with pytest.raises(ValueError, match=r"out is a tensor of torch\.inference_mode\(\)"):
            comm.allreduce(mine, Foreign(inferred))  # type: ignore[arg-type]
        assert out.tolist() == shared.tolist() == [0.0] * 4
        assert comm.problem is None
    assert device.left() == (0, 0)


class DeviceLostError(RuntimeError):
    """An error of a device, of a class that its library has for them."""


@pytest.mark.parametrize(("error", "raised"), [(RuntimeError, ValueError), (DeviceLostError, DeviceLostError)])
def test_an_array_is_refused_by_torch_or_its_device_fails(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], raised: type[Exception]
) -> None:
    """An array that torch does not take is a ValueError, after which the communicator is usable; an error of its device
    ends that."""

    class Given(Foreign):
        def __dlpack__(self, **_: Any) -> Any: ...

    def refuse(array: Any) -> torch.Tensor:
        raise error("not this one")

    monkeypatch.setattr(torch, "from_dlpack", refuse)
    with loopback_job(1) as (comm,):
        with pytest.raises(raised, match="not this one"):
            comm.allreduce(Given(torch.ones(4)))  # type: ignore[arg-type]
        assert (comm.problem is None) == (raised is ValueError)


class Interfaced:
    """An array with ``__cuda_array_interface__`` alone, in the memory of a tensor."""

    def __init__(self, held: torch.Tensor, *, read_only: bool = False, **more: Any) -> None:
        self.__cuda_array_interface__ = {"data": (held.data_ptr(), read_only), "version": 3, **more}
        self.held = held


def test_an_array_of_cudas_interface_is_the_memory_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream that fills it is waited for, and read-only memory is read but not filled; memory of another device,
    which torch would copy, and stream 0, are refused."""
    waits: list[tuple[int, torch.device]] = []
    places: list[torch.Tensor] = []

    def as_tensor(given: Any, device: Any) -> torch.Tensor:
        if given.__cuda_array_interface__["data"][1]:
            raise TypeError("the read only flag is not supported")
        return given.array.held if not places else places[0]

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda pointer, place: (pointer, place))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: SimpleNamespace(wait_stream=waits.append))
    for how in ({}, {"stream": None}, {"stream": 2}, {"stream": 0xA0}, {"read_only": True}):
        array = Interfaced(torch.ones(3), **how)
        assert device_arrays.as_tensor(array) is array.held
    assert waits == [(2, torch.device("cpu")), (0xA0, torch.device("cpu"))]
    with pytest.raises(ValueError, match="memory torch cannot use: the read only flag"):
        device_arrays.as_tensor(Interfaced(torch.ones(3), read_only=True), filled=True)
    with pytest.raises(ValueError, match="has stream 0, which the interface does not allow"):
        device_arrays.as_tensor(Interfaced(torch.ones(3), stream=0))
    places.append(torch.ones(3))
    with pytest.raises(ValueError, match="Interfaced on another device than torch's current one"):
        device_arrays.as_tensor(Interfaced(torch.ones(3)))


def test_what_never_runs_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allreduce that a closed communicator refuses, and one that is refused before its turn, give up their
    copies."""
    device = LateDevice()
    monkeypatch.setattr(device_arrays, "as_tensor", lambda array, **_: getattr(array, "held", array))
    with loopback_job(1) as (comm,):
        monkeypatch.setattr(staging.Staging.__init__, "__defaults__", (device.of,))
        started = ranks_of(comm).sequencer.later
        with monkeypatch.context() as patch:  # as one that stands behind the end of the queue
            patch.setattr(ranks_of(comm).sequencer, "later", lambda _, what: started(refused, what))
            work: Any = comm.iallreduce(Foreign(torch.ones(3)))  # type: ignore[arg-type]
            with pytest.raises(Closed, match="too late"):
                work.wait()
        comm.close()
        with pytest.raises(Closed):
            comm.iallreduce(Foreign(torch.ones(3)))  # type: ignore[arg-type]
    assert device.left() == (0, 0)


def refused() -> None:
    raise Closed("too late")


def test_arrays_on_a_device_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the error names the array's class, and what to install."""
    monkeypatch.setitem(sys.modules, "netfold.host.staging.copies", None)
    wanted = r"a .*Foreign on a device, and torch, .*pip install"
    with loopback_job(1) as (comm,), pytest.raises(ValueError, match=wanted):
        comm.allreduce(Foreign(torch.ones(1)))  # type: ignore[arg-type]
