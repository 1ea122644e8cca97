# SPDX-License-Identifier: Apache-2.0
"""A rank's client of the controller's path service (wire/paths.py): its paths, their updates, and reports of suspects.

    planned = PlannedPaths(jobs, plan)
    mesh = TcpMesh(plan, listener, planned=planned, timeout=30.0)    # owns it, as a RoceMesh does
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal

import grpc

from netfold.host import shared_log
from netfold.host.client.controller_channel import AWAY
from netfold.host.client.jobs import JobClient
from netfold.host.client.stream_listener import StreamListener
from netfold.host.errors import PlanError
from netfold.host.mesh.planned import Collective
from netfold.host.mesh.source_ports import MOST_QUEUE_PAIRS
from netfold.wire.paths import SERVICE, Follow, Noted, Paths, Suspect
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")

ANSWER_SECONDS: Final = 10.0
"""Seconds to wait for the controller's first answer."""
PATIENCE_SECONDS: Final = 1.0
"""Seconds to wait if the rank can do without paths."""
AGAIN_SECONDS: Final = 0.5
"""Seconds until paths are requested again after the loss of the controller."""
AWAY_SECONDS: Final = 60.0
"""Seconds after which a rank that gets no paths from a controller stops asking."""
MOST_COLLECTIVES: Final = 32
"""Number of collectives whose paths a rank follows at once, a stream each; later ones use the all-to-all's."""


ALL_TO_ALL: Final = Collective("all_to_all")


class PlannedPaths:
    """A rank's paths for each collective, requested when it is first used.  Raises PlanError.

    scope   which flows are split together (wire.paths.Follow)
    needed  whether the rank cannot go without paths, so that they are asked for at once, and PlanError says where there
            are none.  Else nobody waits for an answer longer than PATIENCE_SECONDS, nor at all while an earlier one
            has not come: until it comes, there are no paths
    """

    def __init__(
        self, jobs: JobClient, plan: Plan, *, scope: Literal["host", "leaf", "auto"] = "auto", needed: bool = True
    ) -> None:
        self._jobs, self._plan, self._scope, self._needed = jobs, plan, scope, needed
        self._clients: dict[Collective, PathClient] = {}
        self._refused: set[Collective] = set()
        self._adopted: tuple[Collective, Paths] | None = None
        self._last_given: Paths | None = None
        """The paths that ``newer`` or ``changed`` returned last."""
        self.changed_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """An eventfd that is readable when there may be newer paths."""
        self._report_suspect: Any = jobs.unary(f"{SERVICE}/Suspect", Noted)
        self.ports: list[int] = []
        """Source ports of all paths that this rank may ever use, if it cannot do without paths."""
        if not needed:
            return
        try:
            paths = self._client(ALL_TO_ALL).paths
            assert paths is not None, "the client has waited for them"
            self.ports = paths.ports
        except BaseException:
            self.close()
            raise

    @property
    def queue_pairs(self) -> int:
        """Queue pairs for data to any one peer: as many as there can be paths, so that any later plan fits; the same on
        all ranks."""
        return max(1, min(MOST_QUEUE_PAIRS, len(self.ports)))

    def changed(self, wanted: Collective) -> Paths | None:
        """The newest paths for a collective, or None where they are the ones returned last.

        Where the controller has none for it, it is carried on those of the all-to-all, and a warning is logged.
        """
        if wanted not in self._clients and wanted not in self._refused:
            try:
                if len(self._clients) >= MOST_COLLECTIVES:
                    raise PlanError(f"{len(self._clients)} collectives of this job are planned already")
                self._client(wanted)
            except PlanError as error:
                self._refused.add(wanted)
                if self._needed:
                    log.log(shared_log.level(self._plan.rank), "no plan for %s: it takes the paths of an all-to-all: "
                            "%s", wanted, error)
                else:
                    log.info("no plan for %s: the switches choose paths by their hash: %s", wanted, error)
        of = ALL_TO_ALL if wanted in self._refused else wanted
        paths = self._clients[of].paths if of in self._clients else None
        if paths is None or (of, paths) == self._adopted:
            return None
        self._adopted, self._last_given = (of, paths), paths
        return paths

    def newer(self) -> Paths | None:
        """Paths that have arrived since the collective began or since the last call, else None; for use in the middle
        of a collective."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.changed_fd)
        paths = self._clients[self._adopted[0]].paths if self._adopted is not None else None
        if paths is self._last_given:
            return None
        self._last_given = paths
        return paths

    def suspect(self, peer: int, port: int) -> None:
        """Reports a failed path to the controller, without waiting for its answer."""
        plan = self._plan
        self._jobs.notify(
            self._report_suspect, Suspect(plan.job, plan.rank, plan.epoch, peer, port, plan.rank_secret),
            lambda why: log.warning("job %r, rank %d: the controller did not hear that source port %d to rank %d is "
                                    "suspect: %s", plan.job, plan.rank, port, peer, why),
        )

    def close(self) -> None:
        """Closes all streams; safe to call twice."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        if self.changed_fd >= 0:
            os.close(self.changed_fd)
            self.changed_fd = -1

    def _signal(self) -> None:
        if self.changed_fd >= 0:
            os.eventfd_write(self.changed_fd, 1)

    def _client(self, wanted: Collective) -> PathClient:
        if wanted not in self._clients:
            silent = any(client.paths is None for client in self._clients.values())
            self._clients[wanted] = PathClient(
                self._jobs, self._plan, wanted, scope=self._scope, needed=self._needed, on_change=self._signal,
                patience=0.0 if silent else PATIENCE_SECONDS,
            )
        return self._clients[wanted]


class PathClient:
    """The stream of one rank's paths for one collective, over the channel of ``jobs``.  Raises PlanError.

    scope      which flows are split together (wire.paths.Follow)
    needed     whether there must be paths, else PlanError is only raised where the controller refuses
    on_change  called with nothing after each plan that arrives, on a thread of its own
    patience   seconds to wait for the first answer where none is needed
    """

    def __init__(
        self, jobs: JobClient, plan: Plan, of: Collective, *, scope: Literal["host", "leaf", "auto"] = "auto",
        needed: bool = True, on_change: Callable[[], None] = lambda: None, patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._signal = on_change
        request = Follow(plan.job, plan.rank, plan.epoch, collective=of.algorithm, ranks=list(of.ranks), root=of.root,
                         scope=scope, secret=plan.rank_secret)
        follow = jobs.stream(f"{SERVICE}/Follow", Paths)
        self._me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        self._shared = shared_log.level(plan.rank)
        self._first = threading.Event()
        self._paths: Paths | None = None
        self._why = f"no answer within {ANSWER_SECONDS:g} s"
        self._gone_since: float | None = None
        self._registers = plan.registers
        self._listening = StreamListener(lambda: follow(request), "netfold-paths", self._on_paths, self._on_end)
        came = self._first.wait(ANSWER_SECONDS if needed else patience)
        if self._paths is None and (came or needed):
            self.close()
            raise PlanError(f"{self._me}: no paths from {jobs.controller}: {self._why}")

    @property
    def paths(self) -> Paths | None:
        """The newest paths; None where none are needed, and no answer has come yet."""
        return self._paths

    def close(self) -> None:
        """Closes the stream and ends its thread."""
        self._listening.close()

    def _on_paths(self, paths: Paths) -> None:
        self._paths, self._gone_since = paths, None
        self._first.set()
        self._signal()

    def _on_end(self, why: str, status: grpc.StatusCode) -> float | None:
        self._why = why
        self._first.set()
        if self._paths is None:
            return None
        now = time.monotonic()
        if self._gone_since is None:
            self._gone_since = now
            log.log(self._shared, "%s: no newer paths (%s): those known go on", self._me, why)
        # a new controller knows the job once the rank has registered with it
        again = status in AWAY or status in (grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION)
        return AGAIN_SECONDS if self._registers and again and now < self._gone_since + AWAY_SECONDS else None
