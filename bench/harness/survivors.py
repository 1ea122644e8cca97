# SPDX-License-Identifier: Apache-2.0
"""A training on a running fabric whose ranks are killed and come back (`netfold.bench.ranks.survivor`).

    with Survivors(network, "grow", "innet") as crew:
        after = crew.kill("h2")             # seconds until the next exact sum of all that are left
        crew.bring_back("h2")
        ends = crew.end()
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from types import TracebackType
from typing import Final

import msgspec

from netfold.bench.harness import rank_programs
from netfold.bench.ranks.survivor import Reached, SurvivorTask, Way
from netfold.fabric.graph import Host
from netfold.host.api.join_settings import RailName
from netfold.topo.network.net import Network
from netfold.topo.network.planes import Planes
from netfold.topo.processes.failures import RankFailed
from netfold.topo.processes.lifecycle import tail
from netfold.topo.processes.ranks import Ranks

PATIENCE: Final = 90.0
"""Seconds within which whatever is waited for must happen, on a machine that is busy."""


class Survivors:
    """Ranks on all hosts of the network, one each, which train until ``end``.

    planes  of which the network is the first, for ranks with several ``rails``
    """

    def __init__(
        self, network: Network, way: Way, rail: RailName, *, job: str = "survivors", pause: float = 0.0,
        elements: int = 20_000, timeout: float = 10.0, planes: Planes | None = None, rails: str | None = None,
    ) -> None:
        self._network = network
        self._launch = network.launch if planes is None else planes.launch
        self._job = job
        self._enough = network.logs / f"{job}.enough"
        self._task = SurvivorTask(way, rail, str(self._enough), elements, pause, timeout, rails)
        self._heard: queue.Queue[tuple[str, Reached | None]] = queue.Queue()
        self._last: dict[str, Reached] = {}
        self._ranks: dict[str, tuple[Ranks, int]] = {}
        """By host: the ranks that its process was started with, and its place among them."""
        self._readers: list[threading.Thread] = []
        self._start(list(network.fabric.hosts), self._task)

    def __enter__(self) -> Survivors:
        self.wait_for(self.hosts, since=0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ranks, place in self._ranks.values():
            process = ranks.processes[place]
            if process.poll() is None:
                process.kill()
        for reader in self._readers:
            reader.join(PATIENCE)

    @property
    def hosts(self) -> set[str]:
        """Names of the hosts whose ranks are there."""
        return set(self._ranks)

    def kill(self, *hosts: str) -> tuple[float, list[Reached]]:
        """Kill ranks by SIGKILL.  Returns the seconds until all others have their next sum without them, and where
        these are then.  Raises RankFailed."""
        since = time.monotonic()
        for host in hosts:
            ranks, place = self._ranks.pop(host)
            ranks.processes[place].kill()
        reached = self.wait_for(self.hosts, since=since)
        return max(one.at for one in reached) - since, reached

    def signal(self, host: str, number: signal.Signals) -> None:
        """Send a rank's process a signal."""
        ranks, place = self._ranks[host]
        ranks.processes[place].send_signal(number)

    def last_words(self, host: str) -> str:
        """Wait until a rank has ended by an error.  Returns the end of what it wrote; it is none of the ranks from then
        on."""
        ranks, place = self._ranks.pop(host)
        if ranks.processes[place].wait(PATIENCE) == 0:
            raise RankFailed(f"{host}: expected an error of its rank, got none")
        return "\n".join(tail(ranks.logs[place]))

    def bring_back(self, *hosts: str) -> list[Reached]:
        """Start ranks on these hosts again, which join the others.  Returns where all are once they sum together."""
        since = time.monotonic()
        fabric = self._network.fabric
        self._start([fabric.host(host) for host in hosts], msgspec.structs.replace(self._task, way="join"))
        return self.wait_for(self.hosts, since=since)

    def wait_for(self, hosts: set[str], *, since: float) -> list[Reached]:
        """Wait until the ranks of these hosts, and no others, have summed together after ``since``.  Returns where they
        are.  Raises RankFailed."""
        until = time.monotonic() + PATIENCE
        found: dict[str, Reached] = {}
        while found.keys() != hosts:
            try:
                host, reached = self._heard.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RankFailed(self._failure(f"the ranks of {sorted(hosts - found.keys())} have not summed with "
                                               f"{len(hosts)} ranks within {PATIENCE:g} s")) from None
            if reached is None:
                if host in hosts:
                    raise RankFailed(self._failure(f"the rank of {host} has ended"))
                continue
            self._last[host] = reached
            if host in hosts and reached.world == len(hosts) and reached.at > since:
                found.setdefault(host, reached)
        return [found[host] for host in sorted(found)]

    def end(self) -> list[Reached]:
        """Let the ranks end.  Returns where each of them has ended.  Raises RankFailed."""
        self._enough.touch()
        left, until = self.hosts, time.monotonic() + PATIENCE
        while left:
            try:
                host, reached = self._heard.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RankFailed(self._failure(f"the ranks of {sorted(left)} have not ended")) from None
            if reached is not None:
                self._last[host] = reached
            elif host in left:
                if not self._last[host].ended:
                    raise RankFailed(self._failure(f"the rank of {host} has ended too early"))
                left.discard(host)
        return [self._last[host] for host in sorted(self.hosts)]

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _start(self, hosts: list[Host], task: SurvivorTask) -> None:
        command = rank_programs.command("survivor", task)
        ranks = self._launch(command, job=self._job, hosts=hosts)
        for place, host in enumerate(hosts):
            self._ranks[host.name] = ranks, place
            reader = threading.Thread(target=self._read, args=(host.name, ranks, place), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, host: str, ranks: Ranks, place: int) -> None:
        output = ranks.processes[place].stdout
        assert output is not None
        for line in output:
            self._heard.put((host, msgspec.json.decode(line, type=Reached)))
        self._heard.put((host, None))

    def _failure(self, what: str) -> str:
        said = "; ".join(f"{host}: step {one.step} of {one.world} ranks" for host, one in sorted(self._last.items()))
        lines = [f"job {self._job!r}: {what}; last heard: {said}"]
        for host, (ranks, place) in sorted(self._ranks.items()):
            lines += [f"  {host}, {ranks.logs[place]}:", *(f"    {line}" for line in tail(ranks.logs[place]))]
        return "\n".join(lines)
