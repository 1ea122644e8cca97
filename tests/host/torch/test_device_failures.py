# SPDX-License-Identifier: Apache-2.0
"""A device that fails, or has no memory left for copies, ends the communicator: no later call is taken for the failed
one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.api.device_arrays import ending_with  # noqa: E402
from netfold.host.errors import NetFoldError, TransportError  # noqa: E402
from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch import priority, reducer, verbs  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from netfold.torch import DistributedOptimizer, NetfoldState, PriorityOptimizer  # noqa: E402
from support.devices.gradients import Gradients  # noqa: E402
from support.devices.late_device import LateDevice  # noqa: E402
from support.hosts.insides import reducer_of, residuals_of  # noqa: E402


def out_of_memory(nbytes: int) -> torch.Tensor:
    raise RuntimeError("out of memory")


AT_THE_CALL: dict[str, Callable[[NetfoldGroup, torch.Tensor], Any]] = {
    "allreduce": lambda group, tensor: group.allreduce([tensor]),
    "broadcast": lambda group, tensor: group.broadcast([tensor], root=0),
    "by gloo": lambda group, tensor: group.allreduce([tensor.to(torch.int8)], dist.ReduceOp.BOR),
    "send": lambda group, tensor: group.send([tensor], 1) if group.rank() == 0 else group.recv([tensor], 0),
}


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_a_device_without_memory_for_copies_ends_the_communicator(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No rank takes the next call of a rank whose call has failed for the failed one: that call has the error of the
    device, and so has the other rank once the failed one has left."""
    store, call = dist.HashStore(), AT_THE_CALL[name]

    def rank(comm: Communicator) -> str:
        group, device = NetfoldGroup(store, comm, timedelta(seconds=20)), LateDevice()
        reducer_of(group).staging = Staging(device.of)
        group.barrier().wait()
        if comm.rank == 0:
            monkeypatch.setattr(device.pool, "_make", out_of_memory)
            with pytest.raises(RuntimeError, match=r"^out of memory$"):
                call(group, torch.ones(8))
            reducer_of(group).staging = Staging(lambda _: None)
            with pytest.raises(TransportError, match="cpu has failed: out of memory"):
                call(group, torch.full((8,), 100.0)).wait()
            for later in AT_THE_CALL.values():
                with pytest.raises(TransportError, match="cpu has failed: out of memory"):
                    later(group, torch.ones(8)).wait()
            group.shutdown()
            return ""
        with pytest.raises(RuntimeError) as caught:
            call(group, torch.ones(8)).wait()
        group.shutdown()
        return str(caught.value)

    with loopback_job(2, rail="tcp", timeout=3 if name == "by gloo" else 30) as comms:  # gloo waits as long
        mine, other = on_every_rank(comms, rank)
    assert mine == ""
    assert "cpu has failed: out of memory" in str(other) or name in ("by gloo", "send"), other


def test_a_device_that_fails_leaves_an_earlier_reason() -> None:
    """A communicator that the program gave up stays given up: no change of ranks makes it usable."""
    with loopback_job(1) as (comm,):
        comm.abort("enough")
        with pytest.raises(RuntimeError, match="out of memory"), ending_with("cpu", comm):
            out_of_memory(1)
        assert "enough" in str(comm.problem)


def test_a_sparse_tensor_on_a_device_is_refused_and_nothing_ends() -> None:
    """The reducer names the layout that it does not take, and the communicator is usable."""
    with loopback_job(1) as (comm,):
        made = reducer.Reducer(comm, Staging(LateDevice().of))
        with pytest.raises(ValueError, match=r"^allreduce, sum of 3 x float32: the tensor is torch.sparse_coo: "):
            made.allreduce(torch.ones(3).to_sparse(), "sum")
        assert comm.problem is None
        made.close()


def test_a_sparse_gradient_is_refused_and_nothing_ends() -> None:
    """PriorityOptimizer names the layout, as buckets are dense."""
    with loopback_job(1) as (comm,):
        model = nn.Embedding(4, 3, sparse=True)
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, comm)
        with pytest.raises(ValueError, match=r"shape \(4, 3\) is torch.sparse_coo: expected a dense one"):
            model(torch.tensor([1])).sum().backward()
        assert comm.problem is None
        optimizer.close()


@pytest.mark.parametrize("when", ["at the call", "in its turn"])
def test_a_priority_optimizer_whose_device_fails_ends_the_communicator(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The failing rank has the error of its device, as often as it asks, and the other rank hears of it in a call."""
    devices, here = (LateDevice(), LateDevice()), threading.local()
    monkeypatch.setattr(priority, "Staging", lambda: Staging(devices[here.rank].of))

    def rank(comm: Communicator) -> str:
        here.rank = comm.rank
        model = nn.Linear(6, 1)
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, comm)
        if comm.rank == 0 and when == "at the call":
            monkeypatch.setattr(devices[0].pool, "_make", out_of_memory)
        elif comm.rank == 0:
            devices[0].failure = RuntimeError("out of memory")

        def train() -> None:
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.synchronize()

        with pytest.raises(RuntimeError) as caught:
            train()
        if comm.rank == 0:
            with contextlib.suppress(RuntimeError):  # of gradients that are in the bucket
                optimizer.step()
            with pytest.raises(RuntimeError, match="out of memory"):
                optimizer.close()
            with pytest.raises(TransportError, match="cpu has failed: out of memory"):
                comm.barrier()
            comm.close()
        else:
            with pytest.raises(NetFoldError):
                optimizer.close()
        return str(caught.value)

    with loopback_job(2, rail="tcp") as comms:
        mine, other = on_every_rank(comms, rank)
    assert mine == "out of memory"
    assert "cpu has failed: out of memory" in other, other


def test_what_is_done_on_a_device_beside_a_collective_ends_the_communicator_too(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that runs out for a tensor's broadcast, a gradient's bucket, what narrow lanes leave out, an optimizer's
    state, or a device that cannot say whether it captures."""

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    def broadcast(comm: Communicator) -> None:
        monkeypatch.setattr(verbs, "device_of", lambda _: LateDevice())
        monkeypatch.setattr(torch.Tensor, "cpu", fails)
        verbs.broadcast_parameters([torch.ones(3)], communicator=comm)

    def horovod(comm: Communicator) -> None:
        model = nn.Linear(2, 1)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), communicator=comm)
        monkeypatch.setattr(optimizer._gradients, "_whole", fails)
        model(torch.ones(1, 2)).sum().backward()

    def hook(comm: Communicator) -> None:
        state = NetfoldState(comm, lane_bits=8)
        monkeypatch.setattr(residuals_of(state), "of_bucket", fails)
        state.reduce_bucket(Gradients(torch.ones(4)))  # type: ignore[arg-type]

    def state(comm: Communicator) -> None:
        monkeypatch.setattr(torch, "save", fails)
        verbs.broadcast_optimizer_state(torch.optim.SGD([torch.ones(3)], 0.1), communicator=comm)

    def barrier(comm: Communicator) -> None:
        group = NetfoldGroup(dist.HashStore(), comm, timedelta(seconds=20))
        reducer_of(group).staging = Staging(fails)
        try:
            group.barrier()
        finally:
            group.shutdown()

    for way in (broadcast, horovod, hook, state, barrier):
        with loopback_job(1) as (comm,):
            monkeypatch.setattr(comm, "lanes", lambda bits=None, **_: bits or 32)
            with pytest.raises(RuntimeError, match="out of memory"):
                way(comm)
            assert "has failed: out of memory" in str(comm.problem), way
