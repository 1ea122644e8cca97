# SPDX-License-Identifier: Apache-2.0
"""Tensors on devices are reduced there by the ranks of each machine, and each rank folds its part."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, RankMismatch, TransportError
from netfold.host.innet import machine_groups
from netfold.host.innet.parallel import ParallelFold
from netfold.host.selection.cost import LinkCost
from netfold.testing import loopback_job, on_every_rank
from support import needs

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.collectives.shared_memory import SharedRows  # noqa: E402
from netfold.host.innet import parallel  # noqa: E402
from netfold.host.staging import copies  # noqa: E402
from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch import inside_group, reducer  # noqa: E402
from netfold.host.torch.inside_group import ProcessGroup, inside_from_environment  # noqa: E402
from netfold.host.torch.reducer import Reducer  # noqa: E402
from support.devices.late_device import LateDevice  # noqa: E402
from support.devices.late_group import LateGroup  # noqa: E402
from support.hosts.host import impatient  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32)
ROW = 4096


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and parts so short that a tensor takes many."""
    monkeypatch.setattr(ProcessGroup, "row", ROW)
    monkeypatch.setattr(parallel, "SharedRows", lambda local: SharedRows(local, row=ROW))
    monkeypatch.setattr(copies, "PART", 5 * ROW)


@pytest.fixture
def devices() -> list[LateDevice]:
    """A device for each rank."""
    return [LateDevice(rank or None) for rank in range(6)]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch, devices: list[LateDevice]) -> None:
    """Tensors are on devices of which NCCL has groups."""
    real = inside_group.torch_group

    def backend(kind: str, store: Any, local: Any, address: str, timeout: float) -> Any:
        return LateGroup(real("gloo", store, local, address, timeout), devices[local.mesh.rank])

    monkeypatch.setattr(inside_group, "torch_group", backend)
    monkeypatch.setattr(reducer, "kind_of", lambda place, inside: None if inside == "memory" else "nccl")


def values(count: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A rank's tensor; sums of them are exact in each dtype."""
    return (torch.arange(count) % 8 * (rank + 1)).to(dtype)


def summed(reducers: Reducer, comm: Communicator, counts: Sequence[int]) -> None:
    """Reduces tensors of these sizes and of each dtype, all under way at once, and checks them."""
    world = comm.size
    begun = []
    for count in counts:
        for dtype in DTYPES:
            tensor = values(count, dtype, comm.rank)
            begun.append((tensor, reducers.allreduce(tensor, "sum"), world * (world + 1) // 2))
        tensor = values(count, torch.float32, comm.rank) * world
        begun.append((tensor, reducers.allreduce(tensor, "average"), world * (world + 1) // 2))
    for tensor, work, factor in begun:
        work.wait(40)
        assert torch.equal(tensor.to(torch.float64), (torch.arange(len(tensor)) % 8 * factor).to(torch.float64))


def raised(found: list[Any]) -> list[Any]:
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("machines", [[[0, 1], [2, 3]], [[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4]], [[0, 1], [2]]])
def test_sums_are_right_in_many_windows(machines: list[list[int]], devices: list[LateDevice]) -> None:
    """Sums of any size and dtype, several under way, on machines of like and unlike numbers of ranks; and the
    memory of the host comes back."""

    def rank(comm: Communicator) -> str:
        device = devices[comm.rank]
        summed(Reducer(comm, Staging(device.of), inside="group"), comm, (0, 1, 5, 1025, 9001))
        for stream in device.streams:
            device.run(stream)
        device.pool.take(1)
        assert device.pool.taken == 1 << 16
        return comm.flight()[-1].path

    with loopback_job(sum(map(len, machines)), members=machines, timeout=40) as comms:
        paths = raised(on_every_rank(comms, rank))
    alone = {ranks[0] for ranks in machines if len(ranks) == 1}
    assert [path == "innet" for path in paths] == [at in alone for at in range(len(paths))], paths
    assert {paths[0]} == {"innet, gloo inside"}


@pytest.mark.usefixtures("small", "nccl")
def test_streams_order_what_a_group_does_on_the_device(devices: list[LateDevice]) -> None:
    """Collectives that are work of a stream, as NCCL's, read what was filled before and are copied out when done."""

    def rank(comm: Communicator) -> str:
        device = devices[comm.rank]
        tensor = torch.full((3001,), -1.0)
        device.enqueue(device.host, lambda: tensor.copy_(values(3001, torch.float32, comm.rank)))
        Reducer(comm, Staging(device.of), inside="group").allreduce(tensor, "sum").wait(20)
        assert torch.equal(tensor, values(3001, torch.float32, 0) * 10)
        return comm.flight()[-1].path

    with loopback_job(4, members=2) as comms:
        assert on_every_rank(comms, rank) == ["innet, nccl inside"] * 4


def test_a_rank_folds_and_copies_its_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the tensor goes out, where two ranks share a machine; ``explain`` and the flight recorder say so."""
    monkeypatch.setattr(copies.Bundle, "out", None)  # by which a whole part would be copied out

    def rank(comm: Communicator) -> str:
        mine = torch.ones(50_000)
        Reducer(comm, inside="group").allreduce(mine, "sum").wait(20)  # on the CPU, since it is asked for
        assert mine.tolist() == [4.0] * 50_000
        assert comm.stats().by_tree["loop"].bytes_reduced == 100_000
        return comm.explain(200_000)

    with loopback_job(4, members=2) as comms:
        said = on_every_rank(comms, rank)
    assert all("tensors on devices are reduced there, as asked for: " in one for one in said), said


def test_what_is_no_sum_of_what_switches_fold_goes_through_shared_memory(devices: list[LateDevice]) -> None:
    """Maxima, float64, reproducible sums and lanes of 8 bits do as without a group."""

    def rank(comm: Communicator) -> set[str]:
        reduce = Reducer(comm, Staging(devices[comm.rank].of), inside="group")
        for op, dtype, how in (("max", torch.float32, {}), ("sum", torch.float64, {}),
                               ("sum", torch.float32, {"reproducible": True}),
                               ("sum", torch.float32, {"lane_bits": 8})):
            tensor = torch.full((100,), comm.rank + 1.0).to(dtype)
            reduce.allreduce(tensor, op, **how).wait(20)
            assert tensor.tolist() == pytest.approx([4.0 if op == "max" else 10.0] * 100, rel=0.05)
        return {one.path for one in comm.flight() if "inside" in one.path}

    with loopback_job(4, members=2) as comms:
        assert on_every_rank(comms, rank) == [set()] * 4


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(("rate", "link", "inside"), [(4e9, 1e9, True), (1e9, 1e9, False), (4e9, 0.0, True),
                                                      (2e9, 0.0, False)])
def test_netreduces_condition_decides(
    monkeypatch: pytest.MonkeyPatch, devices: list[LateDevice], rate: float, link: float, inside: bool
) -> None:
    """With "auto": the group's measured rate stands beside the link's, of which four ranks on two
    machines need twice as much; without a link's rate, beside that of shared memory, 3 GB/s here."""
    monkeypatch.setattr(inside_group.Opener, "measure", lambda *_: LinkCost(1e-6, 1 / rate))
    monkeypatch.setattr(parallel, "measure_inside", lambda *_, **__: LinkCost(1e-6, 1 / 3e9))  # not this machine's

    def rank(comm: Communicator) -> tuple[str, str]:
        mine = torch.ones(100)
        Reducer(comm, Staging(devices[comm.rank].of), inside="auto").allreduce(mine, "sum").wait(20)
        assert mine.tolist() == [4.0] * 100
        return comm.flight()[-1].path, comm.explain(400)

    with loopback_job(4, members=2, rate=link) as comms:
        for path, said in raised(on_every_rank(comms, rank)):
            assert path == ("innet, nccl inside" if inside else "innet")
            way = "are reduced there: " if inside else "go through shared memory: "
            assert f"tensors on devices {way}{rate / 1e9:.3g} GB/s by nccl" in said


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("forced", [False, True])
def test_a_group_that_does_not_open_is_named(
    monkeypatch: pytest.MonkeyPatch, devices: list[LateDevice], forced: bool
) -> None:
    """One rank's device has a group already, say: its machine goes through shared memory, the other one does not; where
    the group was asked for, that is the error of the machine's ranks."""
    real = inside_group.torch_group

    def backend(kind: str, store: Any, local: Any, address: str, timeout: float) -> Any:
        if local.mesh.rank == 3:
            raise RuntimeError("Duplicate GPU detected")
        return real(kind, store, local, address, timeout)

    open_ = inside_group.Opener.open

    def open_soon(opener: Any, local: Any, address: str, timeout: float) -> ProcessGroup:
        return open_(opener, local, address, 1.0 if local.mesh.rank == 2 else timeout)  # it waits for rank 3 in vain

    monkeypatch.setattr(inside_group, "torch_group", backend)
    monkeypatch.setattr(inside_group.Opener, "open", open_soon)
    monkeypatch.setattr(machine_groups.MachineGroups, "_pays", lambda *_: True)

    def rank(comm: Communicator) -> tuple[str, str]:
        mine = torch.ones(100)
        try:
            Reducer(comm, Staging(devices[comm.rank].of), inside="group" if forced else "auto").allreduce(
                mine, "sum").wait(20)
        finally:
            if forced and comm.rank >= 2:
                failed.wait(60)
        assert mine.tolist() == [4.0] * 100
        return comm.flight()[-1].path, comm.explain(400)

    with loopback_job(4, members=2) as comms:
        failed = threading.Barrier(2, lambda: impatient(comms[:2], 0.3))  # who wait for them in vain
        found = on_every_rank(comms, rank)
    if forced:
        assert all(isinstance(error, TransportError) and "rank 3 cannot" in str(error) for error in found[2:]), found
        assert all(isinstance(error, NetFoldError) for error in found), found
    else:
        assert [path for path, _ in raised(found)] == ["innet, nccl inside"] * 2 + ["innet"] * 2
        assert all("rank 3 cannot reduce" in said and "Duplicate GPU" in said for _, said in found[2:]), found


class Stuck:
    """A collective that never ends."""

    def is_completed(self) -> bool:
        return False


@pytest.mark.usefixtures("nccl")
def test_a_group_that_hangs_ends_within_the_timeout(
    monkeypatch: pytest.MonkeyPatch, devices: list[LateDevice]
) -> None:
    """NCCL tells of no rank that is gone: the clock does, and the group is given up."""

    def rank(comm: Communicator) -> float:
        reduce = Reducer(comm, Staging(devices[comm.rank].of), inside="group")
        reduce.allreduce(torch.ones(100), "sum").wait(20)
        met.wait(20)
        monkeypatch.setattr(LateGroup, "_reduce_scatter_base", lambda *_: Stuck())
        impatient([comm], 2.0)
        met.wait(20)
        begin = time.monotonic()
        with pytest.raises((CollectiveTimeout, PeerLost), match=r"by nccl between the 2 ranks|gave up|no result"):
            reduce.allreduce(torch.ones(100), "sum").wait(30)
        return time.monotonic() - begin

    met = threading.Barrier(4)
    with loopback_job(4, members=2) as comms:
        assert all(isinstance(one, float) and one < 20 for one in on_every_rank(comms, rank))


@pytest.mark.usefixtures("small")
def test_a_rank_that_goes_in_the_middle_is_named(
    monkeypatch: pytest.MonkeyPatch, devices: list[LateDevice]
) -> None:
    """Its machine's ranks hear of it by the mesh, although their group only waits; those of other machines in bounded
    time."""
    real = ProcessGroup.all_gather

    def leaves(group: Any, *args: Any) -> None:
        if group.local.mesh.rank == 3 and leaving:
            raise KeyError("this rank ends")
        real(group, *args)

    leaving: list[bool] = []
    monkeypatch.setattr(ProcessGroup, "all_gather", leaves)

    def rank(comm: Communicator) -> None:
        reduce = Reducer(comm, Staging(devices[comm.rank].of), inside="group")
        reduce.allreduce(torch.ones(100), "sum").wait(20)
        met.wait(20)
        leaving.append(True)
        if comm.rank < 2:  # rank 2 hears of it
            impatient([comm], 2.0)
        met.wait(20)
        reduce.allreduce(torch.ones(20_000), "sum").wait(30)

    met = threading.Barrier(4)
    with loopback_job(4, members=2) as comms:
        found = on_every_rank(comms, rank)
    assert isinstance(found[3], KeyError)
    assert isinstance(found[2], PeerLost), found
    assert "rank 3" in str(found[2])
    assert all(isinstance(error, CollectiveTimeout | PeerLost) for error in found[:2]), found


def test_ranks_of_a_machine_that_differ_in_the_way_are_told() -> None:
    """A tensor on the CPU beside one on a device: the first message shows it, and nobody waits for a group."""

    def rank(comm: Communicator) -> None:
        inside: Any = "memory" if comm.rank == 1 else "group"
        Reducer(comm, inside=inside).allreduce(torch.ones(100), "sum").wait(20)

    with loopback_job(4, members=2) as comms:
        found = on_every_rank(comms, rank)
    assert any(isinstance(error, RankMismatch) and "open gloo" in str(error) for error in found[:2]), found
    assert all(isinstance(error, NetFoldError) for error in found), found


def test_without_trees_the_whole_tensor_is_staged(
    monkeypatch: pytest.MonkeyPatch, devices: list[LateDevice]
) -> None:
    """An operation that begins without trees goes between the hosts, with all of the tensor."""

    def rank(comm: Communicator) -> str:
        reduce = Reducer(comm, Staging(devices[comm.rank].of), inside="group")
        reduce.allreduce(torch.ones(100), "sum").wait(20)
        met.wait(20)
        monkeypatch.setattr(ParallelFold, "begin", lambda *_: False)
        met.wait(20)
        for dtype in DTYPES:
            mine = values(1000, dtype, comm.rank)
            reduce.allreduce(mine, "sum").wait(20)
            assert torch.equal(mine.float(), values(1000, torch.float32, 0) * 10)
        return comm.flight()[-1].path

    met = threading.Barrier(4)
    monkeypatch.setenv("NETFOLD_ALGO", "ring")
    with loopback_job(4, members=2) as comms:
        assert on_every_rank(comms, rank) == ["TCP, ring"] * 4


def test_the_variable_names_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown one is refused with the known ones; without it shared memory reduces, which hardware has tried."""
    assert inside_from_environment() == "memory"
    monkeypatch.setenv("NETFOLD_INSIDE", "group")
    assert inside_from_environment() == "group"
    assert inside_from_environment("memory") == "memory"
    monkeypatch.setenv("NETFOLD_INSIDE", "nccl")
    with pytest.raises(ValueError, match="NETFOLD_INSIDE='nccl': expected one of auto, group, memory"):
        inside_from_environment()
