# SPDX-License-Identifier: Apache-2.0
"""Calls of backend "netfold" with tensors on a device do what they do with tensors on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.api.group import Group  # noqa: E402
from netfold.host.api.joinable import PART_BYTES  # noqa: E402
from netfold.host.errors import Aborted  # noqa: E402
from netfold.host.staging import copies as staging  # noqa: E402
from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch import priority, reducer  # noqa: E402
from netfold.host.torch.ahead import RunAhead  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from netfold.torch import DistributedOptimizer, NetfoldState, PriorityOptimizer  # noqa: E402
from support.devices.gradients import Gradients  # noqa: E402
from support.devices.late_device import LateDevice  # noqa: E402
from support.hosts.insides import reducer_of, residuals_of  # noqa: E402

RANKS = 3
OPS = dist.ReduceOp
Tensors = list[torch.Tensor]
Call = Callable[[NetfoldGroup], tuple[Any, Any]]


@pytest.fixture(scope="module")
def groups() -> Iterator[list[NetfoldGroup]]:
    """Groups of three ranks of this process, which fold."""
    store = dist.HashStore()
    with loopback_job(RANKS) as comms:
        made = on_every_rank(comms, lambda comm: NetfoldGroup(store, comm, timedelta(seconds=20)))
        yield made
        for group in made:
            group.shutdown()


def options(kind: Any, root: int = 0, op: Any = OPS.SUM) -> Any:
    made = kind()
    for name, value in (("rootRank", root), ("reduceOp", op)):
        if hasattr(made, name):
            setattr(made, name, value)
    return made


def mine(group: NetfoldGroup, *shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    """This rank's values, other ones in each element."""
    return (torch.arange(torch.Size(shape).numel()).view(shape) + 10 * group.rank()).to(dtype)


def row(*shape: int) -> torch.Tensor:
    """A tensor to be filled whose elements do not lie one after another."""
    return torch.zeros(*shape, 2)[..., 0]


def each(tensor: Callable[[int], torch.Tensor]) -> Tensors:
    return [tensor(rank) for rank in range(RANKS)]


def sparse(group: NetfoldGroup) -> torch.Tensor:
    places = torch.tensor([[0, group.rank() + 1]])
    return torch.sparse_coo_tensor(places, torch.ones(2), (5,), check_invariants=True)


def in_place(how: Callable[[NetfoldGroup, Any], Any], make: Callable[[NetfoldGroup], Any]) -> Call:
    """A call that fills what it gets."""

    def call(group: NetfoldGroup) -> tuple[Any, Any]:
        given = make(group)
        return how(group, given), given

    return call


def filling(how: Callable[[NetfoldGroup, Any, Any], Any], outputs: Callable[[NetfoldGroup], Any],
            inputs: Callable[[NetfoldGroup], Any]) -> Call:
    """A call that fills its outputs, and leaves its inputs as they are."""

    def call(group: NetfoldGroup) -> tuple[Any, Any]:
        out, given = outputs(group), inputs(group)
        return how(group, out, given), [out, given]

    return call


def on(root: int, group: NetfoldGroup, given: Any) -> Any:
    """The arguments that only the root passes."""
    return given if group.rank() == root else []


GATHER, SCATTER, REDUCE = dist.GatherOptions, dist.ScatterOptions, dist.ReduceOptions
CALLS: dict[str, Call] = {
    "allreduce": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 4, 5)),
    "allreduce, strided": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 4, 5).T),
    "allreduce, wider": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 7, dtype=torch.int16)),
    "allreduce, gloo's": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 7, dtype=torch.int8)),
    "allreduce, bitwise": in_place(
        lambda g, t: g.allreduce([t], options(dist.AllreduceOptions, op=OPS.BOR)),
        lambda g: mine(g, 7, dtype=torch.int32),
    ),
    "allreduce, sparse": in_place(lambda g, t: g.allreduce([t]), sparse),
    "allreduce_coalesced": in_place(
        lambda g, t: g.allreduce_coalesced(t), lambda g: [mine(g, 3), mine(g, 4, dtype=torch.int64), mine(g, 2, 3).T]
    ),
    "broadcast": in_place(lambda g, t: g.broadcast([t], root=1), lambda g: mine(g, 5, dtype=torch.complex64)),
    "broadcast, strided": in_place(lambda g, t: g.broadcast([t], root=1), lambda g: row(4).add_(g.rank())),
    "reduce": in_place(lambda g, t: g.reduce([t], options(REDUCE, 2)), lambda g: mine(g, 5)),
    "reduce, gloo's": in_place(lambda g, t: g.reduce([t], options(REDUCE, 2)), lambda g: mine(g, 5, dtype=torch.int8)),
    "gather": filling(
        lambda g, out, t: g.gather(out, [t], options(GATHER, 1)), lambda g: on(1, g, [each(lambda _: row(4))]),
        lambda g: mine(g, 4),
    ),
    "scatter": filling(
        lambda g, out, t: g.scatter([out], t, options(SCATTER, 1)), lambda g: row(4),
        lambda g: on(1, g, [each(lambda r: mine(g, 4) + r)]),
    ),
    "alltoall": filling(
        lambda g, out, t: g.alltoall(out, t), lambda g: each(lambda r: torch.zeros(r + g.rank() + 1)),
        lambda g: each(lambda r: mine(g, r + g.rank() + 1)),
    ),
    "alltoall_base": filling(
        lambda g, out, t: g.alltoall_base(out, t, [], []), lambda g: row(RANKS, 2), lambda g: mine(g, RANKS, 2)
    ),
    "allgather": filling(
        lambda g, out, t: g.allgather([out], [t]), lambda g: each(lambda _: row(4)), lambda g: mine(g, 4)
    ),
    "_allgather_base": filling(
        lambda g, out, t: g._allgather_base(out, t), lambda g: torch.zeros(4 * RANKS), lambda g: mine(g, 4)
    ),
    "allgather_coalesced": filling(
        lambda g, out, t: g.allgather_coalesced(out, t), lambda g: [[row(4), row(2)] for _ in range(RANKS)],
        lambda g: [mine(g, 4), mine(g, 2)],
    ),
    "reduce_scatter": filling(
        lambda g, out, t: g.reduce_scatter([out], [t]), lambda g: row(g.rank() + 1),
        lambda g: each(lambda r: mine(g, r + 1)),
    ),
    "_reduce_scatter_base": filling(
        lambda g, out, t: g._reduce_scatter_base(out, t), lambda g: torch.zeros(4), lambda g: mine(g, 4 * RANKS)
    ),
    "reduce_scatter_tensor_coalesced": filling(
        lambda g, out, t: g.reduce_scatter_tensor_coalesced(out, t), lambda g: [torch.zeros(4), row(2)],
        lambda g: [mine(g, 4 * RANKS), mine(g, 2 * RANKS)],
    ),
    "barrier": in_place(lambda g, t: g.barrier(), lambda g: []),
    "message": in_place(
        lambda g, t: g.send([t], 2, 7) if g.rank() == 0 else g.recv([t], 0, 7) if g.rank() == 2 else None,
        lambda g: mine(g, 4),
    ),
}


def plain(given: Any) -> Any:
    """Nested lists of tensors as nested lists of numbers."""
    if isinstance(given, list | tuple):
        return [plain(one) for one in given]
    return given.to_dense().tolist() if given.layout != torch.strided else given.tolist()


def made_by(groups: list[NetfoldGroup], call: Call, device: bool, wait: str = "host") -> list[Any]:
    """The contents of each rank's tensors after a call has been waited for, by the host or by the device's stream."""

    def rank(comm: Any) -> Any:
        group = groups[comm]
        reducer_of(group).staging = Staging(LateDevice(comm or None).of) if device else Staging()
        reducer_of(group).ahead = RunAhead(group.communicator, on=wait == "device")
        work, given = call(group)
        if work is not None:
            work.get_future().wait()  # which orders no stream that torch does not know of
            work.wait()
        return plain(given)

    found = on_every_rank(list(range(RANKS)), rank)  # type: ignore[arg-type]
    for group in groups:
        reducer_of(group).ahead = RunAhead(group.communicator)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


@pytest.mark.parametrize("name", CALLS)
def test_calls_do_the_same_on_a_device(groups: list[NetfoldGroup], name: str) -> None:
    """Every rank's outputs have the same values, and its inputs are what they were, wherever the tensors are, and
    whoever waits."""
    wanted = made_by(groups, CALLS[name], False)
    assert made_by(groups, CALLS[name], True) == wanted
    assert made_by(groups, CALLS[name], True, "device") == wanted


def test_a_message_waits_for_its_copy_and_for_no_collective(groups: list[NetfoldGroup]) -> None:
    """A sent tensor has been copied out, although the communicator's thread is busy."""

    def rank(comm: Any) -> list[float]:
        group, busy = groups[comm], threading.Event()
        reducer_of(group).staging = Staging(LateDevice().of)
        blocked = group.communicator.later(lambda: busy.wait(20), "busy")
        tensor = mine(group, 4)
        if comm == 0:
            group.send([tensor], 2, 3).wait()
        elif comm == 2:
            group.recv([tensor], 0, 3).wait()
        busy.set()
        assert blocked.wait()
        return tensor.tolist()

    found = on_every_rank(list(range(RANKS)), rank)  # type: ignore[arg-type]
    assert found[2] == found[0] == [0, 1, 2, 3]


def test_a_reduce_scatter_that_joins_an_all_gather_has_been_copied_out() -> None:
    """With ``together``, too, no part of the gather reads what the reduce-scatter's copy has yet to bring."""
    count, store = 2 * PART_BYTES // 4, dist.HashStore()

    def rank(comm: Communicator) -> int:
        group = NetfoldGroup(store, comm, timedelta(seconds=20), together=True)
        device = LateDevice(comm.rank or None)
        reducer_of(group).staging = Staging(device.of)
        for turn in range(3):
            whole, piece = torch.zeros(2 * count), torch.zeros(100)
            gather = group._allgather_base(whole, torch.full((count,), comm.rank + turn + 1.0))
            scatter = group._reduce_scatter_base(piece, torch.arange(200.0) * (turn + 1))
            scatter.wait()
            gather.wait()
            assert whole.tolist() == [turn + 1.0] * count + [turn + 2.0] * count
            assert piece.tolist() == [2.0 * (turn + 1) * (100 * comm.rank + place) for place in range(100)]
        joined = sum(one.name == "together" for one in comm.flight())
        group.shutdown()
        return joined

    with loopback_job(2) as comms:
        one, other = on_every_rank(comms, rank)
    assert one == other
    assert isinstance(one, int), one


def test_what_cannot_be_filled_is_refused(groups: list[NetfoldGroup]) -> None:
    """Tensors whose elements share memory, tensors on two devices, and those on a device that nobody stages."""
    one, two = LateDevice(), LateDevice(place="meta")
    shared, group = torch.zeros(1).expand(4), groups[0]
    reducer_of(group).staging = Staging(one.of)
    with pytest.raises(ValueError, match=r"^broadcast into a tensor of \(4,\) with strides \(0,\), whose"):
        group.broadcast([shared], root=0)
    several = iter((one, two))
    reducer_of(group).staging = Staging(lambda tensor: next(several))
    with pytest.raises(ValueError, match=r"^alltoall of tensors on cpu and meta: expected one device"):
        group.alltoall([torch.zeros(1)], [torch.zeros(1)])
    reducer_of(group).staging = Staging()
    with pytest.raises(ValueError, match=r"^allgather: tensor of \(1,\) on meta: expected one on the CPU, or"):
        group.allgather([[torch.zeros(1)]], [torch.zeros(1, device="meta")])


def test_a_callback_of_a_future_comes_after_the_copies_have_begun(groups: list[NetfoldGroup]) -> None:
    """The next operation of a callback on its stream finds the result."""

    def rank(comm: Any) -> list[float]:
        device, group = LateDevice(), groups[comm]
        reducer_of(group).staging = Staging(device.of)
        tensor, seen = torch.full((3,), comm + 1.0), []

        def after(_: object) -> None:
            assert device.current() is not device.host
            device.enqueue(device.current(), lambda: seen.append(tensor.tolist()))

        group.allreduce([tensor]).get_future().then(after).wait()
        for stream in device.streams:
            device.run(stream)
        return seen[0]

    assert on_every_rank(list(range(RANKS)), rank) == [[6.0] * 3] * RANKS  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", ["host", "device"])
def test_a_stream_that_is_blocked_by_a_work_comes_after_its_copies(groups: list[NetfoldGroup], wait: str) -> None:
    """What the caller's stream does after ``block_current_stream`` finds the result, whoever waits."""

    def rank(comm: Any) -> list[float]:
        device, group = LateDevice(), groups[comm]
        reducer_of(group).staging = Staging(device.of)
        reducer_of(group).ahead = RunAhead(group.communicator, on=wait == "device")
        tensor = torch.full((3,), comm + 1.0)
        work = group.allreduce([tensor])
        work.block_current_stream()
        found = tensor.tolist()
        work.wait()
        return found

    found = on_every_rank(list(range(RANKS)), rank)  # type: ignore[arg-type]
    for group in groups:
        reducer_of(group).ahead = RunAhead(group.communicator)
    assert found == [[6.0] * 3] * RANKS


def test_optimizers_and_the_hook_reduce_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights after some steps are those without a device, by DistributedOptimizer, PriorityOptimizer, and the hook in
    8-bit lanes."""

    def train(comm: Communicator, way: str) -> list[float]:
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) % 7 / 10)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        state = NetfoldState(comm, lane_bits=8)
        if way == "horovod":
            optimizer = DistributedOptimizer(optimizer, model.named_parameters(), communicator=comm)
        elif way == "priority":
            optimizer = PriorityOptimizer(optimizer, model, comm)
        for turn in range(4):
            inputs = torch.arange(12.0).view(2, 6) / 12 + comm.rank + turn
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            if way == "hook":
                for parameter in model.parameters():
                    state.reduce(parameter.grad, feedback=torch.zeros_like(parameter)).wait()
                    reducer_of(state).last.wait()  # type: ignore[union-attr]  # a future orders torch's own streams alone
            optimizer.step()
        if way == "priority":
            optimizer.close()
        state.close()
        return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]

    def weights() -> list[Any]:
        with loopback_job(2) as comms:
            return [on_every_rank(comms, partial(train, way=way)) for way in ("horovod", "priority", "hook")]

    wanted = weights()
    device = LateDevice(5)
    for module in (reducer, priority):
        monkeypatch.setattr(module, "Staging", lambda: Staging(device.of))
    assert weights() == wanted
    assert all(one == other and isinstance(one, list) for one, other in wanted)


def test_a_job_that_goes_on_after_losses_keeps_residuals_of_gradients_on_a_device(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in narrow lanes and what they leave out are those of gradients on the CPU, for strided residuals too."""
    monkeypatch.setattr(Group, "repeats_losses", property(lambda _: True))

    def rank(comm: Communicator, on_device: bool) -> list[torch.Tensor]:
        state = NetfoldState(comm, lane_bits=8)
        reducer_of(state).staging = Staging(LateDevice(comm.rank).of if on_device else lambda _: None)
        bucket: Any = Gradients(torch.arange(300.0) + comm.rank)
        given, strided = torch.arange(300.0).view(30, 10) * (comm.rank + 1), torch.zeros(10, 30).T
        for _ in range(2):
            state.reduce_bucket(bucket)
            state.reduce(given, feedback=strided)
            reducer_of(state).last.wait()  # type: ignore[union-attr]  # a future orders torch's own streams alone
        kept = residuals_of(state).of_bucket(0, bucket.parameters())
        state.close()
        return [bucket.buffer(), kept, given, strided]

    with loopback_job(2) as comms:
        wanted, found = (on_every_rank(comms, partial(rank, on_device=on_device)) for on_device in (False, True))
    for one, other in zip(wanted, found, strict=True):
        assert isinstance(one, list)
        assert isinstance(other, list)
        for tensor, copy in zip(one, other, strict=True):
            assert torch.equal(tensor, copy)
        assert all(residual.any() for residual in (one[1], one[3]))


PLACES = {"on a device": (True, False), "strided on a device": (True, True), "on the CPU": (False, False),
          "strided on the CPU": (False, True)}


@pytest.mark.parametrize(
    ("bits", "places"), [(32, [*PLACES]), (8, [*PLACES][:2]), (8, [*PLACES][2:])], ids=["whole", "devices", "CPUs"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_may_have_their_tensors_in_different_places(
    monkeypatch: pytest.MonkeyPatch, bits: Any, places: list[str], dtype: torch.dtype
) -> None:
    """A long tensor is reduced in as many operations on each rank, wherever it lies and whatever its strides; narrow
    lanes are made by all devices, or by all processors."""
    monkeypatch.setattr(staging, "PART", 3000)

    def shaped(values: torch.Tensor, strided: bool) -> torch.Tensor:
        return values.view(50, 80).T.contiguous().T if strided else values.view(50, 80)

    def rank(comm: Communicator) -> tuple[torch.Tensor, int]:
        on_device, strided = PLACES[places[comm.rank]]
        made = reducer.Reducer(comm, Staging(LateDevice(comm.rank).of if on_device else lambda _: None))
        values = shaped((torch.arange(4000) % 16 * (comm.rank + 1)).to(dtype), strided)
        residual = shaped(torch.zeros(4000), strided) if bits == 8 else None
        made.allreduce(values, "sum", lane_bits=bits, feedback=residual).wait(20)
        made.close()
        return values, len(comm.flight())

    with loopback_job(len(places)) as comms:
        found: list[Any] = on_every_rank(comms, rank)
    right = torch.arange(4000).view(50, 80) % 16 * sum(range(1, len(places) + 1))
    for values, operations in found:
        assert operations == found[0][1] >= 3
        assert (values.to(torch.float32) - right).abs().max() <= (0 if bits == 32 else 3)


@pytest.mark.parametrize("ended", ["aborted", "closed"])
def test_a_priority_optimizer_that_ends_keeps_no_memory(monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    """Gradients that were copied out and are reduced no more give up their copies, whatever came first: the end of the
    communicator or of the optimizer."""
    device = LateDevice()
    with loopback_job(1) as (comm,):
        monkeypatch.setattr(priority, "Staging", lambda: Staging(device.of))
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, comm, bucket_mb=1e-6)
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        optimizer.synchronize()
        if ended == "aborted":
            comm.abort("enough")
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            for call in (optimizer.synchronize, optimizer.close):
                with pytest.raises(Aborted, match="enough"):
                    call()
        else:
            votes = comm.allreduce

            def late(array: Any, *given: Any, name: str, **how: Any) -> Any:
                if name == "which bucket":
                    with optimizer._changed:
                        assert optimizer._changed.wait_for(lambda: optimizer._closed, 20)
                return votes(array, *given, name=name, **how)

            monkeypatch.setattr(comm, "allreduce", late)
            model(torch.ones(1, 4)).sum().backward()
            optimizer.close()
    assert device.left() == (0, 0)


@pytest.mark.parametrize("call", ["barrier", "monitored_barrier"])
def test_a_barrier_is_refused_while_a_graph_is_captured(groups: list[NetfoldGroup], call: str) -> None:
    """It would be done once, at the capture, and never when the graph runs; afterwards it is done."""

    def rank(comm: Any) -> None:
        group, device = groups[comm], LateDevice()
        reducer_of(group).staging = Staging(device.of)
        device.captures = True
        with pytest.raises(ValueError, match="a collective on cpu while a graph is captured"):
            getattr(group, call)()
        device.captures = False
        work = getattr(group, call)()
        if work is not None:
            work.wait()

    assert on_every_rank(list(range(RANKS)), rank) == [None] * RANKS  # type: ignore[arg-type]
