# SPDX-License-Identifier: Apache-2.0
"""Joining by a controller, and by the environment: what a communicator is told, and the errors of each."""

from __future__ import annotations

import errno
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

import netfold
from cbuild.cc import BuildError
from netfold.host import environment
from netfold.host.api.communicator import Communicator
from netfold.host.errors import JoinRefused, NetFoldError, PlanError, TransportError
from netfold.host.innet import native
from netfold.host.job_secret import draw
from netfold.host.opening import own_port
from netfold.testing import LoopbackSwitch, subnet
from netfold.wire import jobs
from netfold.wire.jobs import AllOpened, Done, Join, Leave, Opened, RankReport
from netfold.wire.plan import Peer, Plan


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
        Communicator.join("j", 1, 3, address=f"{net}.2", controller=server.where, join_timeout=20)


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
    netfold.init(join_timeout=1700.0)
    try:
        assert (netfold.rank(), netfold.size()) == (0, 1)
        assert netfold.allreduce(np.ones(3, np.float32)).tolist() == [1, 1, 1]
        with pytest.raises(NetFoldError, match=r"shutdown\(\) first"):
            netfold.init()
    finally:
        netfold.shutdown()
    netfold.shutdown()
    assert server.joins[0].job == "env"
    assert 1600 < server.joins[0].timeout <= 1700  # what of it is left
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
