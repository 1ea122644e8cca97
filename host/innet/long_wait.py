# SPDX-License-Identifier: Apache-2.0
"""Says for whom an operation waits long before its timeout, which may be half an hour as torch sets it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from netfold.host.mesh.mesh import WAIT_SECONDS, ranks
from netfold.wire.jobs import MissingContributions
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")

WAIT_NS: Final = int(WAIT_SECONDS * 1e9)


def tell(who: str, plan: Plan, ask: Callable[[], MissingContributions]) -> threading.Thread:
    """Log whose contributions are missing, on a thread of its own: the controller may be slow, and other ranks may need
    this one's repeats.

    who  job, rank and operation
    ask  the controller
    """

    def say() -> None:
        missing = ask()
        there = set(range(plan.world)) - set(missing.ranks)
        speaks = plan.rank == min(there, default=0)  # the others learn the same
        log.log(logging.WARNING if speaks else logging.INFO, "%s: no result for %g s: %s; `netfold stall %s` shows "
                "where", who, WAIT_SECONDS, _awaited(plan, missing), plan.job)

    thread = threading.Thread(target=say, name="netfold-long-wait", daemon=True)
    thread.start()
    return thread


def _awaited(plan: Plan, missing: MissingContributions) -> str:
    if missing.ranks:
        hosts = ", ".join(plan.peers[rank].where for rank in missing.ranks if rank < plan.world)
        return f"waiting for {ranks(missing.ranks)} ({hosts})"
    return f"waiting for others, and nobody knows for whom: {'; '.join(missing.why) or 'no slot waits'}"
