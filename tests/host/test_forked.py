# SPDX-License-Identifier: Apache-2.0
"""A forked child reaches nobody through what its parent has joined, and does not disturb it."""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from netfold.host import forked
from netfold.host.api.communicator import Communicator
from netfold.host.client import controller_channel
from netfold.host.client.jobs import JobClient
from netfold.host.errors import NetFoldError, PeerLost
from netfold.host.mesh.sockets import listen
from netfold.host.tracing.flight import Flight
from netfold.testing import loopback_job, on_every_rank, subnet
from support.hosts.insides import parts_of

pytestmark = pytest.mark.slow

HOST = Path(__file__).resolve().parents[2] / "host"
OWN = np.full(4, 1000, np.float32)
"""The array that the child would add."""
RAILS = ["innet", "tcp", "roce", "auto"]


def said_by(call: Callable[[], object]) -> str:
    """The result or error of a call, as a word and a text."""
    try:
        return f"returned {call()}"
    except NetFoldError as error:
        return f"{type(error).__name__} {error}"


def in_child(call: Callable[[], object]) -> str:
    """The result of a call in a forked child; bounded by the test's time-out."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        said = "the child hears nothing"
        try:
            said = said_by(call)
        finally:
            os.write(writes, said.encode())
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        told = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return told


@contextlib.contextmanager
def living_child() -> Iterator[None]:
    """While this is open, there is a forked child that does nothing."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    os.close(reads)
    try:
        yield
    finally:
        os.close(writes)
        os.waitpid(child, 0)


CALLS: dict[str, Callable[[Communicator], object]] = {
    "allreduce": lambda comm: comm.allreduce(OWN),
    "iallreduce": lambda comm: comm.iallreduce(OWN),
    "barrier": lambda comm: comm.barrier(),
    "send": lambda comm: comm.send(OWN, 0),
    "group": lambda comm: comm.group([0, 1]).allreduce(OWN),
    "shrink": lambda comm: comm.shrink(),
}


@pytest.mark.parametrize("rail", RAILS)
def test_what_a_child_calls_is_refused_and_no_sum_has_its_data(rail: str) -> None:
    """Every call raises Closed with the process that has joined; closing and aborting do nothing; the ranks go on."""
    with loopback_job(2, rail=rail) as comms:  # type: ignore[arg-type]

        def summed() -> list[list[float]]:
            return [list(out) for out in on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))]

        assert summed() == [[2.0] * 4] * 2
        for name, call in CALLS.items():
            told = in_child(lambda call=call: call(comms[1]))  # type: ignore[misc]
            assert told.startswith("Closed job 'loop', rank 1 of 2: the communicator was closed in this process"), name
            assert f"forked from process {os.getpid()}" in told, name
        assert in_child(comms[1].close) == in_child(comms[1].abort) == "returned None"
        assert summed() == [[2.0] * 4] * 2


@pytest.mark.parametrize("rail", RAILS)
def test_a_child_has_none_of_its_parents_sockets(rail: str) -> None:
    """At whatever number a rank has a socket, a child has /dev/null, and so has the child of a child."""
    with loopback_job(2, rail=rail) as comms:  # type: ignore[arg-type]
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
        numbers = [sock.fileno() for sock in forked._sockets if sock.fileno() >= 0]
        assert len(numbers) >= 4

        def found() -> set[str]:
            return {os.readlink(f"/proc/self/fd/{number}") for number in numbers}

        assert in_child(found) == "returned {'/dev/null'}"
        assert in_child(lambda: in_child(found)) == "returned returned {'/dev/null'}"
        assert all(name.startswith("socket:") for name in found())


def test_a_child_that_lives_hides_no_death() -> None:
    """The others hear at once that the connections of a rank have ended, though a child of it was forked before."""
    with loopback_job(2, rail="tcp", timeout=60.0) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(OWN))
        with living_child():
            parts_of(comms[1]).dispatch.hosts.mesh.close()  # without a word, as the kernel does for a process that dies
            with pytest.raises(PeerLost, match="rank 1 is lost"):
                comms[0].allreduce(OWN)


def test_what_was_under_way_ends_in_the_child_alone() -> None:
    """A child that waits for its parent's operation hears Closed, and the parent gets the result."""
    with loopback_job(2, rail="tcp") as comms:
        work = comms[1].iallreduce(np.ones(4, np.float32))
        assert in_child(work.wait).startswith("Closed job 'loop', rank 1 of 2")
        assert in_child(work.done) == "returned True"
        heard: list[object] = []
        assert in_child(lambda: work.add_done_callback(heard.append) or len(heard)) == "returned 1"
        comms[0].allreduce(np.ones(4, np.float32))
        assert list(work.wait()) == [2.0] * 4


def test_every_way_to_fork_is_known() -> None:
    """multiprocessing's fork, a program that is started with a function to call before, and a pseudo-terminal."""
    with loopback_job(2, rail="tcp") as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(OWN))

        def check() -> None:
            if not said_by(lambda: comms[1].allreduce(OWN)).startswith("Closed"):
                os._exit(7)

        child = multiprocessing.get_context("fork").Process(target=check)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert subprocess.run([sys.executable, "-c", ""], preexec_fn=check, check=False).returncode == 0
        terminal, fd = os.forkpty()
        if terminal == 0:
            check()
            os._exit(0)
        assert os.waitpid(terminal, 0)[1] == 0
        os.close(fd)
        for out in on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32))):
            assert list(out) == [2.0] * 4


PAST_PYTHON = """
import ctypes, os
import numpy as np
from netfold.host.errors import Closed
from netfold.testing import loopback_job, on_every_rank

OWN, ONES = np.full(4, 1000, np.float32), np.ones(4, np.float32)
with loopback_job(2, rail="tcp") as comms:
    on_every_rank(comms, lambda comm: comm.allreduce(ONES.copy()))
    for call in (lambda comm: comm.allreduce(OWN), lambda comm: comm.iallreduce(OWN).wait(),
                 lambda comm: comm.group([0, 1]).allreduce(OWN)):
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            try:
                call(comms[1])
            except Closed as error:
                why = "job 'loop', rank 1 of 2: the communicator was closed in this process"
                os._exit(not str(error).startswith(why))
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for out in on_every_rank(comms, lambda comm: comm.allreduce(ONES.copy())):
            assert list(out) == [2.0] * 4
print("refused")
"""


def test_a_fork_past_python_is_noticed() -> None:
    """A C library's own fork runs none of Python's handlers, and the child is refused all the same.

    The process has no other thread that runs: such a fork leaves the locks of Python's own threads as they were.
    """
    done = subprocess.run([sys.executable, "-c", PAST_PYTHON], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_thread_that_holds_the_communicator_does_not_hold_up_a_child() -> None:
    """A child forked while another thread is inside an operation hears Closed, not Busy, and does not wait."""
    with loopback_job(2, rail="tcp") as comms:
        inside = threading.Thread(target=comms[1].allreduce, args=(np.ones(4, np.float32),))
        inside.start()
        while not comms[1].flight():
            threading.Event().wait(0.001)
        assert in_child(lambda: comms[1].allreduce(OWN)).startswith("Closed")
        assert in_child(comms[1].close) == "returned None"
        comms[0].allreduce(np.ones(4, np.float32))
        inside.join()


EXITS = """
import os, sys
from netfold.host.api import verbs
class Joined:
    def close(self, reason): print("left", os.getpid(), flush=True)
verbs.Communicator.join = lambda *given, **how: Joined()
verbs.init(job="j", rank=0, world=1, address="127.0.0.1", controller="unix:/nowhere")
print("joined", os.getpid(), flush=True)
if os.fork() == 0:
    sys.exit()
os.wait()
"""


def test_only_the_process_that_has_joined_leaves_at_its_exit() -> None:
    """A forked child that ends by sys.exit runs no exit handler of its parent's."""
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=60, check=True)
    (joined, process), (left, same) = (line.split() for line in done.stdout.splitlines())
    assert (joined, left, same) == ("joined", "left", process)


def test_a_child_writes_no_file_of_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flight recorder's files are those of the process that has joined."""
    monkeypatch.setattr("netfold.host.tracing.flight._listen", lambda: None)
    flight = Flight("j", 0, 1, folder=tmp_path)
    flight.begin(1, "", "allreduce", "sum", "float32", 4)
    assert in_child(lambda: flight.end(PeerLost("gone"))) == "returned None"
    assert not list(tmp_path.iterdir())
    flight.end(PeerLost("gone"))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_child_keeps_no_connection_to_the_controller_and_joins_nothing_through_it() -> None:
    """Where gRPC leaves its connection open in a child (GRPC_ENABLE_FORK_SUPPORT=0) it is ended there; a join is
    refused, since calls of a child never end."""
    with listen(f"{subnet()}.1") as listener, socket.create_connection(listener.getsockname()) as kept:
        host, port = listener.getsockname()
        where = f"{host}:{port}"
        assert list(controller_channel.connections_to([where])) == [kept.fileno()]
        assert list(controller_channel.connections_to([f"{host}:{port + 1}", f"unix:/{where}"])) == []
        assert f"127.0.0.1:{port}" in controller_channel.in_numbers(f"localhost:{port}")
        client = JobClient(where)
        try:
            assert in_child(lambda: os.readlink(f"/proc/self/fd/{kept.fileno()}")) == "returned /dev/null"
            told = in_child(lambda: JobClient(where))
            assert told.startswith(f"JoinRefused {where}: this process was forked from a rank of a job")
            kept.sendall(b"the parent's is open")
        finally:
            client.close()
        assert in_child(lambda: JobClient(where).controller) == f"returned {where}"  # no channel is open any more


def owned(module: str) -> Iterator[tuple[int, bool]]:
    """Lines of a module where a socket comes about, and whether it is ``own``ed, or closed in the same function."""
    makers = ("socket.socket", "socket.socketpair", "socket.create_connection")
    if not any(maker in module for maker in (*makers, "istener.accept")):
        return
    for function in (node for node in ast.walk(ast.parse(module)) if isinstance(node, ast.FunctionDef)):
        text = ast.unparse(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (
                ast.unparse(node.func) in makers or ast.unparse(node.func).endswith("istener.accept")
            ):
                yield node.lineno, "own(" in text or f"with {ast.unparse(node)}" in text


def test_every_socket_of_a_rank_is_known_to_a_child() -> None:
    """Each place in host/ that makes or accepts a socket hands it to ``forked.own``, or closes it again itself."""
    lines = {path.name: list(owned(path.read_text())) for path in HOST.rglob("*.py")}
    assert sum(map(len, lines.values())) >= 8
    missing = [f"{name}:{line}" for name, found in lines.items() for line, known in found if not known]
    assert missing == []
