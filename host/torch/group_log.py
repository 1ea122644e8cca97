# SPDX-License-Identifier: Apache-2.0
"""The log of a process group: the path of each kind of call, and requests that it does not follow."""

from __future__ import annotations

import logging
from functools import cache

from netfold.host.api.communicator import Communicator

log = logging.getLogger("netfold")


@cache
def warn_of_timeout(level: int, kept: float, asked: float) -> None:
    """Warns, once for all groups, that a group's time-out cannot be changed."""
    log.log(
        level, "backend 'netfold': the time-out stays at %g s, and is not set to %g s, since it is fixed when a group "
        "is made: give timeout= to init_process_group or new_group, or netfold.torch.Options(timeout=)", kept, asked
    )


class PathLog:
    """Logs the path of a communicator's collectives, once for each kind."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._said: set[str] = set()

    def is_new(self, kind: str) -> bool:
        """True if nothing of this kind was logged yet."""
        return kind not in self._said

    def __call__(self, kind: str, path: str = "has no path through NetFold: gloo does it") -> None:
        if self.is_new(kind):
            self._said.add(kind)
            log.info("%r: %s %s", self._comm, kind, path)
