# SPDX-License-Identifier: Apache-2.0
"""Tests in sandboxes run in forks of a process that has imported all tests and has run none.

    pytest (a worker) --fork, once it has collected--> template --fork--> launcher --sandbox--> pytest for one test

A pytest that is started anew for each of these tests imports everything again, for 1.7 s of processor time.  A fork of
the worker is as cheap, but its earlier tests have left things in it that do not survive a fork, such as gRPC's threads
and the locks that these hold.  The template has one thread, and nothing in it has been used yet.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

import pytest
from _pytest import assertion
from _pytest.runner import runtestprotocol

from netfold.topo.network import sandbox
from support.sandboxes.warm import Warm

MOST_BYTES: Final = 1 << 20
"""Most bytes of a request, which are mostly the environment."""


class Request(NamedTuple):
    """A test that is to be run, in the environment and folder of who asks."""

    nodeid: str
    environment: dict[str, str]
    cwd: str
    seconds: float
    """Seconds after which the test fails by itself, so that it says where it stood and takes everything down."""
    folder: Path
    """Where the answer is written, and what the processes print."""


class Answer(NamedTuple):
    """How a test ended: "passed", "skipped" or "failed"; and why."""

    outcome: str
    text: str


class Template:
    """The template of this pytest, to which it is bound: they end together.

    warm  folder in which the warm processes listen (warm.py)
    """

    def __init__(self, session: pytest.Session, warm: str) -> None:
        # the forks make their folders in one that is there: whoever makes it first would empty it for the others
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._warm = Warm(warm)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _serve(theirs, {item.nodeid: item for item in session.items}, worker, self._warm)
        theirs.close()

    def close(self) -> None:
        """End the template."""
        self._line.close()
        os.waitpid(self._pid, 0)
        self._warm.close()

    def run(self, nodeid: str, *, timeout: float, seconds: float) -> Answer:
        """Run a test in a sandbox, for at most ``timeout`` seconds."""
        with tempfile.TemporaryDirectory(prefix="netfold-test-") as name:
            folder = Path(name)
            self._line.send(pickle.dumps(Request(nodeid, dict(os.environ), os.getcwd(), seconds, folder)))
            launcher = int(self._line.recv(MOST_BYTES))
            status = None
            try:
                self._line.settimeout(timeout)
                status = int(self._line.recv(MOST_BYTES))
            except TimeoutError:
                return Answer("failed", f"not done in {timeout:g} s\n{_text(folder / 'output')}")
            finally:
                self._line.settimeout(None)
                if status is None:  # the sandbox ends with its launcher
                    os.kill(launcher, signal.SIGKILL)
                    self._line.recv(MOST_BYTES)
            output = _text(folder / "output")
            if status != 0:
                return Answer("failed", f"inside the sandbox (status {status}):\n{output}")
            answer = Answer(*json.loads(_text(folder / "answer")))
            return answer._replace(text=f"{answer.text}\n{output}") if answer.outcome == "failed" else answer


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


# ---- the template, and what it forks ---------------------------------------------------------------------------------


def _serve(line: socket.socket, items: dict[str, pytest.Item], worker: int, warm: Warm) -> NoReturn:
    status = 1
    try:
        sandbox.die_with_parent(worker)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, with which this ends
        while asked := line.recv(MOST_BYTES):
            template = os.getpid()
            launcher = os.fork()
            if launcher == 0:
                line.close()
                _launch(pickle.loads(asked), items, template, warm)
            line.send(str(launcher).encode())
            line.send(str(os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _launch(request: Request, items: dict[str, pytest.Item], template: int, warm: Warm) -> NoReturn:
    """Be the launcher of a sandbox in which a test runs."""
    status = 1
    try:
        sandbox.die_with_parent(template)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.cwd)
        _redirect(request.folder / "output")
        status = sandbox.launch(lambda: _run(items[request.nodeid], request, warm))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _redirect(path: Path) -> None:
    """Standard output and errors go to a file, whoever held them when this process was forked."""
    with open(os.devnull) as nothing, path.open("ab") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)


def _run(item: pytest.Item, request: Request, warm: Warm) -> NoReturn:
    """Run the test as pytest does, but tell nobody but who asked."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # for the programs that the test starts
        warm.serve_here()
        with _time_limit(request.seconds), _explained(item):
            reports = runtestprotocol(item, nextitem=None, log=False)
        (request.folder / "answer").write_text(json.dumps(_answer(reports)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # not held up by threads that a failed test left


def _answer(reports: list[pytest.TestReport]) -> Answer:
    failed, skipped = ([report for report in reports if getattr(report, kind)] for kind in ("failed", "skipped"))
    if failed:
        parts = [part for report in failed
                 for part in (report.longreprtext, *(f"---- {name} ----\n{text}" for name, text in report.sections))]
        return Answer("failed", "\n".join(parts))
    if skipped:
        where = skipped[0].longrepr
        return Answer("skipped", (where[2] if isinstance(where, tuple) else str(where)).removeprefix("Skipped: "))
    return Answer("passed", "")


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """The test in this block fails after so many seconds, and the stacks of its threads are shown."""

    def overdue(_: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.stderr)
        pytest.fail(f"Timeout (>{seconds:g}s)")

    signal.signal(signal.SIGALRM, overdue)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def _explained(item: pytest.Item) -> Iterator[None]:
    """Failed comparisons in this block say where the two sides differ, as in any test."""
    explaining = assertion.pytest_runtest_protocol(item)
    next(explaining)
    yield
    with contextlib.suppress(StopIteration):
        next(explaining)
