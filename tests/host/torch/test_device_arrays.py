# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries on a device: reduced where they are, or refused by name."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))


from netfold.host.api import device_arrays  # noqa: E402
from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.errors import Closed  # noqa: E402
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
