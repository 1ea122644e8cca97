# SPDX-License-Identifier: Apache-2.0
"""Joining, the arrays that a communicator takes, the verbs, and the errors of each."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import netfold
from cbuild.cc import BuildError
from netfold.host import environment
from netfold.host.api.communicator import Communicator
from netfold.host.client.plans import check_plan
from netfold.host.errors import (
    Busy,
    Closed,
    CollectiveTimeout,
    JoinRefused,
    NetFoldError,
    PeerLost,
    PlanError,
    TransportError,
)
from netfold.host.innet import native
from netfold.host.innet.fold import FoldRail
from netfold.host.job_secret import draw
from netfold.host.opening import own_port
from netfold.testing import LoopbackSwitch, loopback_job, on_every_rank, subnet
from netfold.wire import jobs, roce
from netfold.wire.jobs import AllOpened, Done, Join, Leave, Opened, Peer, Plan, RankReport, RankStream, RankTree
from support.host import impatient
from switch_support.ports import wait_for


class JobServer:
    """A job service for tests, on threads: gathers ranks, plans over a loopback switch, and records reports."""

    def __init__(self, where: str, *, reason: str = "", answer: Callable[[Plan], Any] = lambda plan: plan) -> None:
        self.where = where
        self.joins: dict[int, Join] = {}
        self._opened: dict[int, str] = {}
        self.reports: list[RankReport] = []
        self.leaves: list[Leave] = []
        self._reason = reason
        self._answer = answer
        self._secret = draw()
        self._complete = threading.Condition()
        self._switch: LoopbackSwitch | None = None
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        methods = {
            "Join": self._method(Join, self._join),
            "Opened": self._method(Opened, self._open),
            "Report": self._method(RankReport, self._report),
            "Leave": self._method(Leave, self._leave),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(jobs.SERVICE, methods)])
        assert self._server.add_insecure_port(where)
        self._server.start()

    @staticmethod
    def _method(kind: type[Any], call: Callable[[Any, grpc.ServicerContext], Any]) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=lambda data: msgspec.json.decode(data, type=kind),
            response_serializer=msgspec.json.encode,
        )

    def _join(self, request: Join, context: grpc.ServicerContext) -> Any:
        with self._complete:
            if request.rank in self.joins:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"rank {request.rank} of {request.job!r} is here already")
            self.joins[request.rank] = request
            self._complete.notify_all()
            if not self._complete.wait_for(lambda: len(self.joins) == request.world, request.timeout):
                missing = sorted(set(range(request.world)) - set(self.joins))
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"ranks {missing} did not join")
            peers = [Peer(j.rank, j.address, j.tcp, j.udp_port) for _, j in sorted(self.joins.items())]
            trees = []
            self._reason = self._reason or "; ".join(f"rank {j.rank} cannot fold: {j.lacks}"
                                                     for _, j in sorted(self.joins.items()) if j.lacks)
            if not self._reason:
                if self._switch is None:
                    net = request.address.rpartition(".")[0]
                    self._switch = LoopbackSwitch(f"{net}.200", [p.address for p in peers], slots=64)
                trees = self._switch.trees(request.rank, slots=64)
            plan = Plan(request.job, 5, request.rank, request.world, peers, trees, self._reason, secret=self._secret)
            return self._answer(plan)

    def _open(self, request: Opened, context: grpc.ServicerContext) -> AllOpened:
        with self._complete:
            self._opened[request.rank] = request.lacks
            self._complete.notify_all()
            assert self._complete.wait_for(lambda: self._opened.keys() == self.joins.keys(), request.timeout)
            return AllOpened({rank: lacks for rank, lacks in self._opened.items() if lacks})

    def _report(self, report: RankReport, context: grpc.ServicerContext) -> Done:
        self.reports.append(report)
        return Done()

    def _leave(self, leave: Leave, context: grpc.ServicerContext) -> Done:
        self.leaves.append(leave)
        return Done()

    def close(self) -> None:
        self._server.stop(None).wait(5)
        if self._switch:
            self._switch.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., JobServer]]:
    """Makes job servers that end with the test."""
    made: list[JobServer] = []

    def start(**options: Any) -> JobServer:
        made.append(JobServer(f"unix:{tmp_path}/jobs{len(made)}", **options))
        return made[-1]

    yield start
    for server in made:
        server.close()


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Runs calls at the same time.  Returns their results or exceptions."""
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        done = [pool.submit(call) for call in calls]
        return [f.exception(60) or f.result() for f in done]


# ---- joining -------------------------------------------------------------------------------------------------------
def test_ranks_join_fold_report_and_leave(serve: Callable[..., JobServer]) -> None:
    """The whole life of a job: plans from the controller, an allreduce, totals and leaving at the end."""
    server, net = serve(), subnet()

    def life(rank: int) -> Any:
        where = {"address": f"{net}.{rank + 1}", "controller": server.where}
        with Communicator.join("j", rank, 2, **where, rail="innet") as comm:
            assert comm.rail == "innet"
            assert "planned 1 tree(s) for this job: loop" in comm.explain(1 << 20)
            return comm.allreduce(np.full(1000, rank + 1, np.int32))

    for out in in_threads([lambda: life(0), lambda: life(1)]):
        assert (out == 3).all()
    assert sorted(report.rank for report in server.reports) == [0, 1]
    assert all(report.bytes_reduced == 4000 and report.by_tree == {"loop": 4000} for report in server.reports)
    assert [leave.reason for leave in server.leaves] == ["", ""]
    assert {leave.epoch for leave in server.leaves} == {5}


@pytest.mark.parametrize("rail", ["auto", "innet"])
@pytest.mark.parametrize("lacking", [True, False], ids=["no port", "no compiler"])
def test_what_a_rank_lacks_before_it_joins_it_tells_all(
    serve: Callable[..., JobServer], monkeypatch: pytest.MonkeyPatch, rail: Any, lacking: bool
) -> None:
    """Without a free UDP port, or a compiler, the job goes over TCP, or ends on both ranks by name, at once."""
    server, net = serve(), subnet()
    bind, build = own_port.bind_port, native.library

    def bound(address: str) -> socket.socket:
        if lacking and address == f"{net}.2":
            raise TransportError(errno.EADDRINUSE, f"no UDP port of {address} is free")
        return bind(address)

    def built() -> Any:
        if not lacking and threading.current_thread().name == "rank 1":
            raise BuildError("no C compiler: install gcc")
        return build()

    monkeypatch.setattr(own_port, "bind_port", bound)
    monkeypatch.setattr(native, "library", built)

    def life(rank: int) -> Any:
        threading.current_thread().name = f"rank {rank}"
        with Communicator.join("j", rank, 2, address=f"{net}.{rank + 1}", controller=server.where, rail=rail) as comm:
            return comm.rail, comm.allreduce(np.ones(10, np.int32)).tolist()

    with warnings.catch_warnings(record=True) as warned:
        found = in_threads([lambda: life(0), lambda: life(1)])
    why = "rank 1 cannot fold: " + (f"[Errno {errno.EADDRINUSE}] no UDP port" if lacking else "no C compiler")
    assert [bool(server.joins[rank].lacks) for rank in range(2)] == [False, True]
    if rail == "auto":
        assert found == [("tcp", [2] * 10)] * 2
        assert sum(why in str(one.message) for one in warned) == 1
    else:
        assert all(isinstance(one, PlanError) and why in str(one) for one in found), found


def test_without_a_tree_the_ring_takes_over_loudly(serve: Callable[..., JobServer]) -> None:
    """With a plan without trees there is a warning with the controller's reason, and the results are the same over TCP.
    """
    server, net = serve(reason="spine1 has 12 slots left"), subnet()

    def life(rank: int) -> Any:
        with Communicator.join("j", rank, 2, address=f"{net}.{rank + 1}", controller=server.where) as comm:
            assert "spine1 has 12 slots left" in comm.explain(4)
            return comm.rail, comm.allreduce(np.full(10, rank, np.float32)).tolist()

    with pytest.warns(RuntimeWarning, match="over TCP.*spine1 has 12 slots left"):
        got = in_threads([lambda: life(0), lambda: life(1)])
    assert got == [("tcp", [1.0] * 10)] * 2


def test_innet_without_a_tree_is_refused() -> None:
    """rail="innet" never falls back: the controller's reason is the error."""
    peers = [Peer(0, "10.0.0.1", "10.0.0.1:1"), Peer(1, "10.0.0.2", "10.0.0.2:1")]
    bare = Plan("j", 1, 0, 2, peers, [], "no folding here", secret=draw())
    with pytest.raises(PlanError, match=r"no folding here.*rail='auto'"):
        Communicator.of_plan(bare, address="127.0.0.1", rail="innet")


def test_missing_ranks_are_named_by_the_controllers_refusal(serve: Callable[..., JobServer]) -> None:
    """A join that never completes ends within its timeout, with the controller's reason."""
    server = serve()
    with pytest.raises(JoinRefused, match=r"job 'j', rank 0 of 3.*ranks \[1, 2\] did not join"):
        Communicator.join("j", 0, 3, address=f"{subnet()}.1", controller=server.where, join_timeout=0.2)


def test_a_rank_that_joins_twice_is_refused(serve: Callable[..., JobServer]) -> None:
    """The controller's ALREADY_EXISTS becomes JoinRefused."""
    server, net = serve(), subnet()
    server.joins[1] = Join("j", 3, 1, f"{net}.2", f"{net}.2:1", 1024)
    with pytest.raises(JoinRefused, match="rank 1 of 'j' is here already"):
        Communicator.join("j", 1, 3, address=f"{net}.2", controller=server.where, join_timeout=1)


def test_a_controller_out_of_reach_is_named(tmp_path: Path) -> None:
    """Where nobody listens, JoinRefused has the address and what to check."""
    with pytest.raises(JoinRefused, match=r"nobody answers at unix:.*netfold status"):
        Communicator.join("j", 0, 2, address=f"{subnet()}.1", controller=f"unix:{tmp_path}/none", join_timeout=0.2)


def test_no_controller_at_all_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without argument and environment variable the error names both."""
    monkeypatch.delenv("NETFOLD_CONTROLLER", raising=False)
    with pytest.raises(JoinRefused, match="NETFOLD_CONTROLLER"):
        Communicator.join("j", 0, 2, address="127.0.0.1")


def test_a_plan_for_somebody_else_is_refused(serve: Callable[..., JobServer]) -> None:
    """A plan for another rank or job is refused."""
    server = serve(reason="x", answer=lambda plan: msgspec.structs.replace(plan, job="other"))
    with pytest.raises(PlanError, match=r"asked to be rank 0 of 1, the plan .* is for job 'other'"):
        Communicator.join("j", 0, 1, address=f"{subnet()}.1", controller=server.where)


def test_an_answer_that_is_no_plan_is_refused(serve: Callable[..., JobServer]) -> None:
    """An answer of another version is an error about versions, not about JSON."""
    server = serve(reason="x", answer=lambda plan: {"job": "j"})
    with pytest.raises(NetFoldError, match=r"different versions|no plan"):
        Communicator.join("j", 0, 1, address=f"{subnet()}.1", controller=server.where)


def plan(**changes: Any) -> Plan:
    """A valid plan of rank 0 of 2, with changes to its data stream."""
    sound: dict[str, Any] = {"peer": "127.0.0.2", "peer_qp": 8, "qp": 16, "source_port": 50000, "psn": 0, "slots": 64,
                             "predecessor": "127.0.0.2", "predecessor_port": 50000}
    weight, stays = changes.pop("weight", 1.0), changes.pop("stays", False)
    tree = RankTree("t", weight, RankStream(**{**sound, **changes}), RankStream(**{**sound, "qp": 24}), stays)
    return Plan("j", 1, 0, 2, [Peer(0, "10.0.0.1", "10.0.0.1:1"), Peer(1, "10.0.0.2", "10.0.0.2:1")], [tree])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 65}, "65 slots: expected a power of two"),
        ({"slots": 1}, "1 slots"),
        ({"psn": 1 << 24}, "first PSN 16777216"),
        ({"qp": 0}, "queue pair 0"),
        ({"peer_qp": 1 << 24}, "queue pair 16777216"),
        ({"qp": 12}, "queue pair 12: expected a multiple of 8"),
        ({"qp": 24}, "queue pair 24 is also"),
        ({"source_port": 4791}, "source port 4791"),
        ({"weight": 0.0}, "weight 0.0"),
        ({"stays": True}, "tree 't' stays as it is: expected that after a recovery round alone"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(changes: dict[str, Any], words: str) -> None:
    """Each field is checked and named before a socket is opened."""
    check_plan(plan())
    with pytest.raises(PlanError, match=words):
        check_plan(plan(**changes))


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_plan_for_no_rank_of_its_world_is_refused(rank: int) -> None:
    """By its number, before anything is looked up by it."""
    with pytest.raises(PlanError, match=f"rank {rank} of world 2: expected 0 <= rank < world"):
        check_plan(msgspec.structs.replace(plan(), rank=rank))


# ---- arrays --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["bool", "complex64", "uint32", "object"])
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    """The error says what came and what is supported, and nothing is sent."""
    with loopback_job(1) as (comm,):
        with pytest.raises(TypeError, match=f"array of {dtype}, .*expected one of float32, float64"):
            comm.allreduce(np.zeros(3, dtype))
        assert comm.stats().operations == 0


def test_arguments_that_make_no_sense_are_refused() -> None:
    """An unknown reduction, an average of integers and an unsuitable ``out`` are refused, and the communicator stays
    usable."""
    with loopback_job(1) as (comm,):
        x = np.zeros(3, np.float32)
        with pytest.raises(ValueError, match="op='xor'"):
            comm.allreduce(x, op="xor")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="average of integers"):
            comm.allreduce(x.astype(np.int32), op="average")
        with pytest.raises(ValueError, match=r"out is float32\[4\]: expected float32\[3\]"):
            comm.allreduce(x, out=np.zeros(4, np.float32))
        with pytest.raises(ValueError, match=r"out is int32\[3\]: expected float32"):
            comm.allreduce(x, out=np.zeros(3, np.int32))
        with pytest.raises(TypeError, match="list"):
            comm.allreduce(x, out=[0.0])  # type: ignore[arg-type]
        frozen = np.zeros(3, np.float32)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            comm.allreduce(x, out=frozen)
        assert comm.allreduce(x).tolist() == [0, 0, 0]


def _reduce(x: NDArray[Any], comm: Communicator) -> NDArray[Any]:
    return comm.allreduce(x)


def test_arrays_of_any_layout_go_through_a_copy() -> None:
    """Strided, transposed, Fortran, big-endian and read-only sources work, and strided and overlapping results."""
    with loopback_job(2) as comms:
        base = np.arange(600, dtype=np.float32).reshape(20, 30)
        frozen = base.copy()
        frozen.flags.writeable = False
        for x in (base[::2, ::3], base.T, np.asfortranarray(base), base.astype(">f4"), frozen, base[::-1]):
            for out in on_every_rank(comms, partial(_reduce, x)):
                assert out.dtype == np.float32
                assert (out == 2 * x).all()
        wide = [np.zeros((20, 60), np.float32) for _ in comms]
        on_every_rank(comms, lambda c: c.allreduce(base, out=wide[c.rank][:, ::2]))
        assert (wide[0][:, ::2] == 2 * base).all()
        assert (wide[0][:, 1::2] == 0).all()
        shifted = [np.arange(1001, dtype=np.float32) for _ in comms]
        on_every_rank(comms, lambda c: c.allreduce(shifted[c.rank][:-1], out=shifted[c.rank][1:]))
        assert (shifted[0][1:] == 2 * np.arange(1000)).all()


def test_barrier_waits_for_the_last_rank() -> None:
    """No rank is past the barrier before every rank has come to it."""
    with loopback_job(3) as comms:
        arrived: list[int] = []
        seen: list[int] = []
        gate = threading.Event()

        def call(comm: Communicator) -> None:
            if comm.rank == 0:
                gate.wait(5)
            arrived.append(comm.rank)
            if comm.rank == 2:
                gate.set()
            comm.barrier()
            seen.append(len(arrived))

        on_every_rank(comms, call)
        assert seen == [3, 3, 3]


def test_two_threads_at_once_are_refused() -> None:
    """The second caller gets Busy, and the first one's operation goes on."""
    with loopback_job(2) as comms:
        inside = threading.Thread(target=lambda: comms[0].barrier(), daemon=True)
        inside.start()
        while not comms[0]._parts.sequencer._lock.locked():
            pass
        with pytest.raises(Busy, match="another thread"):
            comms[0].barrier()
        comms[1].barrier()
        inside.join(60)
        assert not inside.is_alive()
        on_every_rank(comms, lambda c: c.barrier())


def test_a_closed_communicator_says_so_and_keeps_its_totals() -> None:
    """close() may be called twice; statistics stay readable; collectives raise Closed."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(10, np.float32)))
        comms[0].close()
        comms[0].close()
        assert comms[0].stats().operations == 1
        with pytest.raises(Closed):
            comms[0].barrier()


# ---- verbs ---------------------------------------------------------------------------------------------------------
def test_verbs_follow_the_environment(serve: Callable[..., JobServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """init() reads NETFOLD_JOB, RANK, WORLD_SIZE, NETFOLD_ADDRESS and NETFOLD_CONTROLLER, and waits for others as long
    as it is told; shutdown() undoes it."""
    server = serve(reason="one rank")
    for name, value in {
        "NETFOLD_JOB": "env",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "NETFOLD_ADDRESS": f"{subnet()}.1",
        "NETFOLD_CONTROLLER": server.where,
    }.items():
        monkeypatch.setenv(name, value)
    netfold.init(join_timeout=17.0)
    try:
        assert (netfold.rank(), netfold.size()) == (0, 1)
        assert netfold.allreduce(np.ones(3, np.float32)).tolist() == [1, 1, 1]
        with pytest.raises(NetFoldError, match=r"shutdown\(\) first"):
            netfold.init()
    finally:
        netfold.shutdown()
    netfold.shutdown()
    assert server.joins[0].job == "env"
    assert 16 < server.joins[0].timeout <= 17  # what of it is left
    with pytest.raises(NetFoldError, match=r"netfold\.init\(\) first"):
        netfold.rank()


def test_verbs_name_what_the_environment_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or invalid variable is named."""
    for name in (variable for launcher in environment.LAUNCHERS.values() for variable in launcher):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"which rank is this, of how many.*RANK=None"):
        netfold.init()
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK='first': expected an integer"):
        netfold.init()


def test_importing_netfold_is_light() -> None:
    """`import netfold` loads neither numpy nor gRPC; an unknown name is an AttributeError."""
    code = "import sys, netfold; print({'numpy', 'grpc', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="allreduce"):
        netfold.all_reduce  # noqa: B018


def test_a_rank_with_one_rail_does_not_import_what_several_rails_need() -> None:
    """Neither their policy nor the folds of machines with several ranks: a sixth of the processor time of a start."""
    code = "import sys, netfold.host.api.enduring; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = set(found.stdout.split())
    assert "netfold.host.api.assembly" in imported
    assert not {name for name in imported if name.startswith("netfold.host.rails")}
    assert "netfold.host.innet.parallel" not in imported


def test_what_was_routed_here_is_no_result() -> None:
    """A switch without entries for the job routes the neighbour's contribution to this rank's queue pair: its TTL shows
    that, it never enters a sum, and the error says so."""
    with loopback_job(2, ttl=roce.RESULT_TTL - 1) as comms, futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(comm.allreduce, np.ones(300, np.int32)) for comm in comms]
        rails = [cast(FoldRail, comm._parts.dispatch.switches) for comm in comms]
        wait_for(lambda: all(rail._core.unfolded() for rail in rails))
        impatient(comms, 0.1)
        for call in calls:
            error = call.exception(60)
            assert isinstance(error, CollectiveTimeout)
            assert "came from the rank before as it sent them: a switch has no entries of this job" in str(error)


@pytest.mark.parametrize("rail", ["tcp", "roce"])
@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (lambda comm: comm.close(), "rank 1 left after operation 2;"),
        (lambda comm: comm.close("all is learnt"), "rank 1 left after operation 2: all is learnt;"),
        (lambda comm: comm.close("file x\udcff"), "rank 1 left after operation 2: file x?;"),
        (lambda comm: comm.__exit__(KeyError, KeyError("x"), None), "rank 1 left after operation 2: KeyError: 'x';"),
        (lambda comm: comm.__exit__(ValueError, ValueError("a\nb"), None), "left after operation 2: ValueError: a;"),
        (lambda comm: comm.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None), "operation 2: KeyboardInterrupt;"),
        (lambda comm: comm.__exit__(None, None, None), "rank 1 left after operation 2;"),
    ],
)
def test_a_rank_that_leaves_says_when_and_why(rail: Any, leave: Callable[[Communicator], None], says: str) -> None:
    """Without a controller, too: by close, with a reason or without, and at the end of a with block, with an error or
    without."""
    with loopback_job(2, rail=rail) as comms:
        for _ in range(2):
            on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
        leave(comms[1])
        with pytest.raises(PeerLost) as told:
            comms[0].allreduce(np.ones(4, np.float32))
        assert says in str(told.value)
        assert "its own error" not in str(told.value)


def test_two_threads_that_close_end_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One leaves the job and frees the engine's memory, which the other one would read after that."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
        sequencer, both, left = comms[0]._parts.sequencer, threading.Barrier(2, timeout=30), []
        wait_for_others, leave = sequencer._wait_for_others, comms[0]._parts.membership.leave

        def together() -> bool:
            both.wait()  # neither of the two has found it closed
            return wait_for_others()

        monkeypatch.setattr(sequencer, "_wait_for_others", together)
        monkeypatch.setattr(comms[0]._parts.membership, "leave", lambda *said: left.append(said) or leave(*said))
        closing = [threading.Thread(target=comms[0].close) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(30)
        assert len(left) == 1


EXITS = """
import sys
import numpy as np
from netfold.testing import loopback_job, on_every_rank
job = loopback_job(2, rail="tcp")
comms = job.__enter__()
on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
closed = type(comms[0]).close
type(comms[0]).close = lambda comm, reason="": print(comm.rank, reason) or closed(comm, reason)
if len(sys.argv) > 1:
    raise ValueError(sys.argv[1])
"""


@pytest.mark.parametrize("error", [[], ["wrong"]])
def test_who_does_not_close_leaves_at_the_end_of_the_process(error: list[str]) -> None:
    """An exit handler closes what is open, and says by which exception the process ended."""
    program = [sys.executable, "-c", EXITS, *error]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    said = "its process ended" + (" by ValueError: wrong" if error else "")
    assert sorted(done.stdout.splitlines()) == [f"0 {said}", f"1 {said}"], done.stderr
