# SPDX-License-Identifier: Apache-2.0
"""Ranks that sum without a break on a fabric, and a test that goes on when it has seen what it waits for.

    with Steady(network, seed=5) as steady:
        faults.kill("spine1")
        steady.round(1)                 # the controller has planned anew, and the ranks go on
        ends = steady.end()             # what each rank says, after the same number of operations
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from netfold.host.api.join_settings import RailName
from netfold.wire.operator import JobStatus, Status
from support.sandboxes.topo import program

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.topo.network.net import Network

BOUND: Final = 150.0
"""Seconds within which everything must happen, long enough for a machine that stands still now and then."""
LOOK: Final = 0.1
"""Seconds between looks at state for which the controller has no events."""
ELEMENTS: Final = {"softswitch": 60_000, "bmv2": 8_000}


class Steady:
    """Runs so many ranks on ``each`` host of the network, or on its first ``hosts``, whose communicators have this
    rail."""

    def __init__(
        self, network: Network, *, seed: int, each: int = 1, hosts: int | None = None, rail: RailName = "innet"
    ) -> None:
        self._network = network
        self._until = time.monotonic() + BOUND
        self._enough = network.logs / "enough"
        command = [*program("rank_steady.py"), str(seed), str(ELEMENTS[network.fabric.engine]), str(self._enough),
                   rail]
        places = [host for host in network.fabric.hosts[:hosts] for _ in range(each)]
        self._ranks = network.launch(command, job="steady", hosts=places)
        self._lines = self._ranks.lines(within=BOUND)

    def __enter__(self) -> Steady:
        self.go_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def go_on(self) -> None:
        """Waits until rank 0 has finished operations that began after this call.  Raises RankFailed."""
        now, seen = time.monotonic(), 0
        for rank, line in self._lines:
            if rank == 0:
                seen += json.loads(line)["began"] > now
            if seen == 2:
                return
        raise AssertionError("all ranks have ended before they were told to")

    def until(self, what: str, seen: Callable[[Status], bool]) -> Status:
        """Waits until the controller's status fulfils a condition.  ``what``: the condition in words, for the error."""
        while not seen(status := self._network.status()):
            assert time.monotonic() < self._until, f"not seen in {BOUND:g} s: {what}; it is {status}"
            time.sleep(LOOK)
        return status

    def repaired(self, name: str) -> None:
        """Waits until the controller has pushed the program to a switch once more, and the switch is up."""
        def again(status: Status) -> bool:
            switch = next(switch for switch in status.switches if switch.name == name)
            return switch.pushes >= 2 and switch.up

        self.until(f"{name} up after a second push", again)

    def registered(self) -> None:
        """Waits until a new controller has adopted the job, and all of its ranks have registered."""
        self.until("all ranks have registered", lambda status: [job.awaited for job in status.jobs] == [[]])

    def all_up(self) -> None:
        """Waits until every switch and link is up."""
        self.until("all switches and links up",
                   lambda status: all(part.up for part in (*status.switches, *status.links)))

    def round(self, number: int) -> JobStatus:
        """Waits until the job has had this many recovery rounds since its start, and its ranks go on."""
        def over(status: Status) -> bool:
            last = status.jobs[0].round if status.jobs else None  # a new controller may have yet to adopt it
            return last is not None and last.number >= number and last.took is not None

        job = self.until(f"round {number} is over", over).jobs[0]
        assert job.round is not None
        assert job.round.number == number, f"expected round {number}: {job.round}"
        self.go_on()
        return job

    def end(self) -> list[dict[str, Any]]:
        """Tells the ranks to end.  Returns what each of them reports."""
        self._enough.touch()
        said = [json.loads(line) for _, line in self._lines]
        ends = [end for end in said if "rail" in end]
        assert len(ends) == len(self._ranks.processes)
        return ends
