# SPDX-License-Identifier: Apache-2.0
"""Planned paths that do not answer, over real TCP on loopback, whose kernel is made to say that it repeats in vain."""

from __future__ import annotations

import contextlib
import socket

import numpy as np
import pytest

from netfold.host.mesh import path_watch
from netfold.host.mesh.path_watch import ANSWER_SECONDS, DEAD_SECONDS, LOOK_SECONDS, Condition, PathWatch, condition_of
from netfold.host.mesh.sockets import path_of, unacknowledged
from netfold.host.mesh.tcp import TcpMesh
from support.hosts.collectives import allreduce, values
from support.hosts.planned import PORTS, Plans, check_swapped, on_plan, planned, swap

SILENT = Condition(in_flight=True, repeats=True, acknowledged=100, sent_again=2, patience=0.0)


class Watched:
    """The path watch of a rank whose connections fare as ``condition`` says, and a clock that stands still unless
    told."""

    def __init__(self, mesh: TcpMesh, patch: pytest.MonkeyPatch) -> None:
        self.now, self.condition = 0.0, SILENT
        patch.setattr(path_watch, "condition_of", lambda sock: self.condition)
        patch.setattr(mesh.operations, "clock", lambda: self.now)
        source = mesh.posted.lanes.planned
        assert isinstance(source, Plans)
        self.suspected = source.suspected
        self.watch = PathWatch(mesh.operations, mesh.posted.lanes)

    def passes(self, seconds: float) -> None:
        """So many seconds pass, in which the rank looks as often as it does while it waits."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + LOOK_SECONDS)
            self.watch.look()


def paths_used(mesh: TcpMesh) -> set[tuple[int, int | None]]:
    """Peer and path of each connection on which a rank sends."""
    return {(rank, path_of(sock)) for rank, sock in mesh.posted.lanes.sockets()}


def test_a_path_on_which_nothing_is_acknowledged_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a tenth of a second, not before; and again each second while that lasts."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        mesh = tcp.meshes[0]
        silent = Watched(mesh, monkeypatch)
        silent.passes(DEAD_SECONDS)
        assert silent.suspected == []
        silent.passes(2 * LOOK_SECONDS)
        assert sorted(silent.suspected) == sorted(paths_used(mesh))
        assert len(silent.suspected) >= 2, "each lane's, and that of messages"
        silent.passes(0.9)
        assert len(silent.suspected) == len(paths_used(mesh))
        silent.passes(0.2)
        assert len(silent.suspected) == 2 * len(paths_used(mesh))
        assert silent.watch.longest_stall == pytest.approx(1.2, abs=0.05)


@pytest.mark.parametrize("condition", [
    SILENT._replace(in_flight=False), SILENT._replace(repeats=False), SILENT._replace(patience=5.0),
], ids=["nothing in flight", "nothing repeated", "long round trips"])
def test_a_slow_or_idle_path_is_not_reported(condition: Condition, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that waits for nothing, or for less than its round trips take, or has sent its data once, says
    nothing about its path."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        silent = Watched(tcp.meshes[0], monkeypatch)
        silent.condition = condition
        silent.passes(2.0)
        assert silent.suspected == []


def test_what_is_acknowledged_ends_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that answers now and then is slow, and not dead."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        silent = Watched(tcp.meshes[0], monkeypatch)
        for acknowledged in range(10):
            silent.condition = SILENT._replace(acknowledged=acknowledged)
            silent.passes(DEAD_SECONDS - LOOK_SECONDS)
        assert silent.suspected == []


def test_a_rank_that_did_not_look_knows_of_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computed, or was stopped: what happened meanwhile is not known."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        silent = Watched(tcp.meshes[0], monkeypatch)
        silent.passes(DEAD_SECONDS / 2)
        silent.now += 10.0
        silent.watch.look()
        assert silent.suspected == []


@pytest.mark.parametrize("known", [True, False])
def test_connections_for_messages_take_planned_paths_from_the_first(known: bool) -> None:
    """Also where all messages are short, no collective was announced, and the plan is asked for by this connection: so
    its path can be reported, and led over another link."""
    with planned(3, known=known) as tcp:
        values(tcp.run(lambda mesh: allreduce(mesh, np.ones(4, np.float32))))
        for mesh in tcp.meshes:
            used = paths_used(mesh)
            assert {peer for peer, _ in used} <= {0, 1, 2} - {mesh.rank}
            assert used
            assert {path for _, path in used} <= set(PORTS)


def test_a_connection_that_nobody_answers_is_begun_over_another_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose backlog is full answers no SYN: the kernel would ask again after a second."""
    with planned(2) as tcp, socket.socket() as full, contextlib.ExitStack() as held:
        mesh = tcp.meshes[1]
        full.bind((tcp.meshes[0].operations.plan.peers[0].address, 0))
        full.listen(0)
        held.enter_context(socket.create_connection(full.getsockname()))
        mesh.operations.connections.links[0].address = "{}:{}".format(*full.getsockname())
        clock = Watched(mesh, monkeypatch)
        monkeypatch.setattr(mesh.operations.connections.connecting, "clock", lambda: clock.now)
        seen = []
        mesh.operations.link(0)
        for wait in (0.0, ANSWER_SECONDS, 2 * ANSWER_SECONDS):
            clock.passes(wait + LOOK_SECONDS)
            (attempt,) = mesh.operations.connections.attempts()
            seen.append((path_of(attempt.socket), attempt.tries))
        first = PORTS.index(seen[0][0])  # type: ignore[arg-type]
        assert seen == [(PORTS[(first + number) % 3], number) for number in range(3)]


def test_the_kernel_says_what_is_not_acknowledged() -> None:
    """Nothing once the peer's kernel has it all; what does not fit there is still on this side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            near.sendall(b"x" * 1000)
            assert far.recv(1, socket.MSG_PEEK) == b"x"
            while unacknowledged(near):
                pass
            assert condition_of(near)[:3] == (False, False, 1001), "the SYN counts"
            near.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 1 << 30:
                    sent += near.send(b"x" * (1 << 20))
            assert 0 < unacknowledged(near) <= sent
