# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of communicators: short timeouts, and a signal that arrives while they wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from netfold.host.api.communicator import Communicator
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.parallel import ParallelFold
from netfold.host.operation.rail import FoldingRail
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.open_rail import EXTRA_TIMEOUT, OpenRail
from support.hosts.insides import parts_of


@contextmanager
def interrupted_by(error: type[BaseException], comm: Communicator) -> Iterator[None]:
    """A context in which a signal handler raises ``error`` in this thread, the main one, while the communicator
    waits."""

    def handler(number: int, frame: object) -> None:
        raise error

    def interrupt() -> None:
        while not comm.flight() and not over.wait(0.01):
            pass
        if not over.wait(0.2):  # it has begun, and by now it waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    over, before = threading.Event(), signal.signal(signal.SIGALRM, handler)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


def impatient(comms: Sequence[Communicator], seconds: float) -> None:
    """Sets the communicators' timeouts to so many seconds, also of a fold that is under way: those of their meshes,
    of their rails, and of groups that are open.  While they come together the timeout is long, so that a machine that
    stands still is no fault."""
    for comm in comms:
        parts = parts_of(comm)
        held = [] if parts.folds is None else [fold.held for fold in parts.folds.open_folds]
        for one in held:
            if (rails := getattr(one, "rails", None)) is not None:
                _of_rails(rails, seconds)
            elif (rail := getattr(one, "rail", None)) is not None:
                _of_fold(rail, seconds)
        if parts.rails is not None:
            _of_rails(parts.rails, seconds)
            continue
        _of_mesh(parts.dispatch.hosts.mesh, seconds)
        if parts.dispatch.switches is not None:
            _of_fold(parts.dispatch.switches, seconds)


def _of_rails(rails: MultiRail, seconds: float) -> None:
    """Several rails: each one's own timeout is a little longer than that of all (``EXTRA_TIMEOUT``)."""
    rails.detector.timeout = seconds
    for rail in rails.rails.rails:
        if isinstance(rail, OpenRail):
            _of_mesh(rail.between.mesh, seconds + EXTRA_TIMEOUT)
            if isinstance(rail.rail, FoldRail):
                _of_fold(rail.rail, seconds + EXTRA_TIMEOUT)


def _of_mesh(mesh: Any, seconds: float) -> None:
    mesh.operations.timeout = mesh.operations.slice_seconds = seconds


def _of_fold(fold: FoldingRail, seconds: float) -> None:
    """What folds, and the groups on devices that are open beside it."""
    if isinstance(fold, ParallelFold):
        for found in fold.groups.found.values():
            if found.group is not None:
                found.group.timeout = seconds
    folds = fold.fold if isinstance(fold, ParallelFold) else fold
    if isinstance(folds, FoldRail):  # a bystander waits for its machine's mesh alone
        folds.timeout = seconds
