# SPDX-License-Identifier: Apache-2.0
"""Groups of some ranks over rail="verbs" and a libibverbs that is not the system's: each has queue pairs of its own
beside those of the job, and all of its ranks fold, or none.  Nothing hangs."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from netfold.host.api import assembly
from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.host.api.group_folds import RETRY
from netfold.host.api.join_settings import JoinSettings
from netfold.host.client.fold_client import FoldClient
from netfold.host.errors import Aborted, Closed, JoinRefused, NetFoldError, RankMismatch, TransportError
from netfold.host.mesh.sockets import listen
from netfold.host.verbs import devices
from netfold.host.verbs.devices import RocePort
from netfold.testing import on_every_rank, subnet
from netfold.wire.plan import Peer, Plan, Secret
from support.docs import combinations
from support.hosts.insides import parts_of
from support.hosts.torch import loopback_jobs
from support.hosts.verbs_jobs import VerbsJobs, fake_devices, impatient_once_broken

pytestmark = [pytest.mark.needs("verbs"), pytest.mark.timeout(120)]
WORLD = 4
SIZE = 6000


@contextmanager
def job(**settings: Any) -> Iterator[tuple[VerbsJobs, list[Communicator]]]:
    """The communicators of a job, and its service."""
    net = subnet()
    addresses = [f"{net}.{rank + 1}" for rank in range(WORLD)]
    with tempfile.TemporaryDirectory() as folder, fake_devices():
        where = f"unix:{folder}/jobs"
        with loopback_jobs(f"{net}.200", addresses, where, VerbsJobs) as service:
            comms = on_every_rank(list(range(WORLD)), lambda rank: Communicator.join(  # type: ignore[arg-type]
                "j", rank, WORLD, address=addresses[rank], controller=where, rail="verbs",  # type: ignore[call-overload]
                **{"timeout": 20.0} | settings))
            try:
                yield cast(VerbsJobs, service), comms
            finally:
                on_every_rank(comms, lambda comm: comm.close())


def each(comms: Sequence[Communicator], work: Callable[[Communicator], Any]) -> list[Any]:
    """The results of ``work`` on these ranks."""
    results = on_every_rank(list(comms), work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def own(rank: int, step: int = 0) -> Any:
    """The numbers of one rank of the job."""
    return np.random.default_rng([rank, step]).integers(-(2**31), 2**31, SIZE, np.int32)


def check(group: Group, members: Sequence[int], rank: int, step: int = 0) -> None:
    """A sum of the members' numbers is exact."""
    right = np.sum([own(member, step) for member in members], axis=0, dtype=np.int64).astype(np.int32)
    np.testing.assert_array_equal(group.allreduce(own(rank, step)), right)


def test_groups_of_a_mesh_fold_one_after_the_other_and_beside_their_job() -> None:
    """Both dimensions of a (2, 2) mesh, groups that overlap, and all ranks, in turn: every sum is exact and carried by
    queue pairs.  A closed group leaves, and its queue pairs are gone; the others go on."""
    lines = [(0, 2), (1, 3), (0, 1), (2, 3), (3, 0, 1)]
    with job() as (service, comms):
        before = service.lib.fake_pairs()

        def work(comm: Communicator) -> dict[Any, Group]:
            groups = {line: comm.group(line) for line in lines if comm.rank in line}
            for step in range(3):
                for line, group in groups.items():
                    check(group, line, comm.rank, step)
                    group.barrier()
                check(comm, range(WORLD), comm.rank, step)
            assert {record.path for record in comm.flight()} == {"verbs"}
            return groups

        made = each(comms, work)
        assert service.lib.fake_pairs() == before + sum(4 * len(line) for line in lines)
        assert "'j#0-2.1': rc" in made[0][0, 2].explain(8)

        def close(comm: Communicator) -> None:
            for line, group in made[comm.rank].items():
                if line != (3, 0, 1):
                    group.close()
                    with pytest.raises(Closed, match="was closed"):
                        group.allreduce(own(0))
            if comm.rank in (3, 0, 1):
                check(made[comm.rank][3, 0, 1], (3, 0, 1), comm.rank, 7)
            check(comm, range(WORLD), comm.rank, 7)

        each(comms, close)
        assert Counter(service.left) == {f"j#{a}-{b}.1": 2 for a, b in lines[:4]}
        assert service.lib.fake_pairs() == before + 12
    assert service.lib.fake_pairs() == 0


@pytest.mark.parametrize("rail", ["auto", "verbs"])
def test_ranks_that_others_have_planned_fold_as_a_group(rail: Any) -> None:
    """As torch's groups do, which have connections of their own: by the queue pairs of a group of the job's ranks."""
    members = (3, 1)
    with job() as (service, comms):
        before, two = service.lib.fake_pairs(), [comms[rank] for rank in members]
        listeners = [listen(comm.plan.peers[comm.rank].address) for comm in two]
        peers = [Peer(place, listener.getsockname()[0], "{}:{}".format(*listener.getsockname()))
                 for place, listener in enumerate(listeners)]

        def work(comm: Communicator) -> None:
            place = members.index(comm.rank)
            plan = Plan("j.1", 7, place, 2, peers, [], "planned by the store", secret=Secret("ab" * 32))
            with Communicator.of_plan(plan, address=peers[place].address, listener=listeners[place], timeout=20.0,
                                      rail=rail, group_of=(comm, members)) as own_connections:
                for step in range(2):
                    check(own_connections, members, comm.rank, step)
                assert "'j#3-1.1': rc" in own_connections.explain(SIZE * 4)
                assert (own_connections.allreduce(own(comm.rank), algorithm="innet") == own(1) + own(3)).all()
                assert own_connections.flight()[-1].path == "verbs"

        each(two, work)
        assert service.left == ["j#3-1.1"] * 2
        assert service.lib.fake_pairs() == before


def test_ranks_of_a_group_that_call_different_things_learn_it() -> None:
    """By the signature on the group's own queue pairs: neither gets a sum."""
    with job() as (service, comms):
        groups = {rank: comms[rank].group([2, 1]) for rank in (1, 2)}
        each(comms[1:3], lambda comm: check(groups[comm.rank], (1, 2), comm.rank))
        before = service.lib.fake_messages()
        for got in on_every_rank(comms[1:3], lambda comm: groups[comm.rank].allreduce(
                own(0), op="sum" if comm.rank == 1 else "max")):
            assert isinstance(got, RankMismatch), got
        assert service.lib.fake_messages() > before


def test_one_rank_whose_nic_cannot_keeps_all_from_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves with its reason before the others wait for it: all go between the hosts, say why, hold no queue pair,
    and fold once it can."""
    with job() as (service, comms):
        before, lacking, found = service.lib.fake_pairs(), [True], devices.port_of

        def port_of(address: str) -> RocePort:
            if lacking[0] and address.endswith(".3"):
                raise TransportError("fake0: cannot register memory")
            return found(address)

        monkeypatch.setattr(devices, "port_of", port_of)

        three = {rank: comms[rank].group([0, 2, 3]) for rank in (0, 2, 3)}

        def work(comm: Communicator) -> str:
            check(three[comm.rank], (0, 2, 3), comm.rank)
            said = three[comm.rank].explain(8)
            for step in range(RETRY - 1):
                check(three[comm.rank], (0, 2, 3), comm.rank, step)
            return said

        callers = [comms[rank] for rank in three]
        for said in each(callers, work):
            assert "rank 2: fake0: cannot register memory" in said
            assert f"asks again after {RETRY} more" in said
        assert service.reasons == {"j#0-2-3.1": "fake0: cannot register memory"}
        assert Counter(service.left) == {"j#0-2-3.1": 3}
        assert service.lib.fake_pairs() == before
        lacking[0] = False
        each(callers, lambda comm: check(three[comm.rank], (0, 2, 3), comm.rank))
        assert {comm.flight()[-1].path for comm in callers} == {"verbs"}
        each(comms, lambda comm: check(comm, range(WORLD), comm.rank))


def test_a_queue_pair_of_a_group_in_error_that_nobody_repairs_ends_the_call_and_what_follows(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name on all of its ranks; the job's other ranks are not told of it, and nothing is held in the end."""
    with job() as (service, comms):
        two = [comms[0], comms[3]]
        impatient_once_broken(monkeypatch, two, 0.5)
        groups = {comm.rank: comm.group([0, 3]) for comm in two}
        each(two, lambda comm: check(groups[comm.rank], (0, 3), comm.rank))
        service.lib.fake_break(service.pairs[1][0].out_qp, 1, 0)
        for _ in range(2):
            got = on_every_rank(two, lambda comm: groups[comm.rank].allreduce(own(comm.rank)))
            assert all(isinstance(error, NetFoldError) for error in got), got
        assert "fake0" in str(got[1])
        each(comms[1:3], lambda comm: check(comm.group([1, 2]), (1, 2), comm.rank))
    assert service.lib.fake_pairs() == 0


def test_groups_end_where_the_job_goes_on_without_a_rank_and_fold_made_anew() -> None:
    """After shrink and after grow; their queue pairs are gone meanwhile."""
    with job() as (service, comms):
        service.reforms = True
        groups = {rank: comms[rank].group([0, 2, 3]) for rank in (0, 2, 3)}
        each([comms[rank] for rank in groups], lambda comm: check(groups[comm.rank], (0, 2, 3), comm.rank))
        client = parts_of(comms[1]).membership.client
        assert client is not None
        where = {"address": comms[1].plan.peers[1].address, "controller": client.controller}

        def goes_on(comm: Communicator) -> list[str]:
            old, paths = groups[comm.rank], []
            for change in (comm.shrink, comm.grow):
                while not change():
                    pass
                with pytest.raises(NetFoldError):
                    old.allreduce(own(0))
                if comm.rank in (0, 2):
                    old = comm.group([2, 0])
                    assert (old.allreduce(np.ones(SIZE, np.int32)) == 2).all()
                    paths.append(comm.flight()[-1].path)
                comm.barrier()
            return paths

        def comes(comm: Communicator) -> list[str]:
            comm.close()
            with Communicator.join_running("j", rail="verbs", timeout=20.0, **where) as new:
                new.barrier()
            return []

        paths = each(comms, lambda comm: comes(comm) if comm.rank == 1 else goes_on(comm))
        assert paths == [["verbs"] * 2, [], [], ["verbs"] * 2], paths
    cells = combinations.OTHERS["a group over verbs"]
    assert cells[combinations.GOES] == cells[combinations.COMES] == combinations.ANEW


def test_abort_ends_what_waits_for_a_silent_rank_of_a_group() -> None:
    """From another thread, by name, long before the timeout."""
    with job() as (_, comms):
        groups = {rank: comms[rank].group([0, 1]) for rank in (0, 1)}
        each(comms[:2], lambda comm: check(groups[comm.rank], (0, 1), comm.rank))
        work = groups[0].iallreduce(own(0))
        comms[0].abort("the test")
        with pytest.raises(Aborted, match="the test"):
            work.wait(10)


def test_a_silent_rank_in_the_second_step_lets_nobody_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others give up within their patience, by name, and the sum arrives over TCP once it goes on."""
    monkeypatch.setattr("netfold.host.client.fold_client.CONNECT_TIMEOUT", 1.0)
    honest, silent = FoldClient.connect, threading.Event()

    def connect(self: FoldClient, plan: Any, *arguments: Any) -> Any:
        if plan.rank == 1 and "#" in plan.job:
            silent.wait(3.0)
        return honest(self, plan, *arguments)

    monkeypatch.setattr(FoldClient, "connect", connect)
    with job(timeout=2.0) as (_, comms):
        def work(comm: Communicator) -> str:
            group = comm.group([0, 1])
            group.allreduce(own(comm.rank))
            return group.explain(8)

        for got in on_every_rank(comms[:2], work):
            assert isinstance(got, NetFoldError) or "does not fold" in got, got


@pytest.mark.parametrize(("verb", "rail", "timeout", "asked"), [
    ("write", "innet", 60.0, ("windowed", 5.0)),
    ("send", "innet", 10.0, ("windowed", 35.0)),
    ("send", "innet", 60.0, ("windowed", 65.0)),
    ("send", "verbs", 60.0, ("rc", 65.0)),
])
def test_windowed_ranks_wait_for_their_plans_while_nics_connect(
    verb: Any, rail: Any, timeout: float, asked: tuple[str, float]
) -> None:
    """In a mixed group they have theirs once all NICs are known, and those may take their time."""
    seen: list[tuple[str, float]] = []

    class Client:
        def join_group(self, *arguments: Any, kind: str, planning: float) -> None:
            seen.append((kind, planning))
            raise JoinRefused("a test has seen enough")

    plan = Plan("j", 1, 0, 3, [Peer(rank, f"127.0.0.{rank + 1}", "") for rank in range(3)], [], verb=verb)
    membership: Any = SimpleNamespace(plan=plan, client=Client())
    folds = assembly.folds_of_groups(membership, JoinSettings("127.0.0.1", rail, timeout=timeout), None, 32)
    assert folds is not None
    with pytest.raises(JoinRefused):
        cast(Any, folds.of((0, 1))).means.join((0, 1), 1, 1.0)
    assert seen == [asked]
