# SPDX-License-Identifier: Apache-2.0
"""The targets of faults and captures on a running fabric: links, switches, the controller, ranks."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from netfold.fabric.graph import End, Fabric, Link
from netfold.topo.faults.board import FaultRefused

CONTROLLER: Final = "controller"
RANK: Final = re.compile(r"(?:rank|(?P<job>[^/]+)/(?:rank)?)(?P<number>\d{1,6})")
"""The forms of a rank: "rank3", "JOB/3"."""
SHOWN: Final = 12
"""Most names that an error lists."""


class FaultyFabric(Protocol):
    """A fabric that runs, here or over several machines, as faults see it."""

    @property
    def fabric(self) -> Fabric:
        """The running fabric."""

    @property
    def file(self) -> Path:
        """Its fabric file on this machine."""

    @property
    def is_up(self) -> bool:
        """True if all of it has started."""

    @property
    def jobs(self) -> str:
        """Address at which its controller answers this process."""

    def runs(self, node: str) -> bool:
        """True if a node has a namespace: a virtual machine has none."""


Running = TypeVar("Running", bound=FaultyFabric)


@dataclass(frozen=True)
class FabricLinkAt:
    """A link of one of the fabrics; ``key`` is the fabric's number and the link's."""

    network: FaultyFabric
    key: tuple[int, int]

    @property
    def link(self) -> Link:
        """The link as its fabric describes it."""
        return self.network.fabric.links[self.key[1]]

    @property
    def end(self) -> End:
        """Its switch end; of a link between two switches, the first."""
        return self._ends[0]

    @property
    def far(self) -> End:
        """Its other end."""
        return self._ends[1]

    @property
    def name(self) -> str:
        """The name of its switch end: "leaf1:3"."""
        return f"{self.end.node}:{self.end.port}"

    @property
    def host(self) -> str | None:
        """The host at its other end; None between switches."""
        return None if self.far.node in self._switches else self.far.node

    def runs(self, node: str) -> bool:
        """True if a node has a namespace: a virtual machine has none."""
        return self.network.runs(node)

    @property
    def _switches(self) -> set[str]:
        return {switch.name for switch in self.network.fabric.switches}

    @property
    def _ends(self) -> tuple[End, End]:
        a, b = self.link.ends
        return (a, b) if a.node in self._switches else (b, a)


def links(networks: Sequence[FaultyFabric], target: str) -> list[FabricLinkAt]:
    """The links that a target names: "leaf1:3", "leaf1-spine1", a host's "h3", all those of a switch, or "all".

    Raises FaultRefused.
    """
    found = []
    for plane, network in enumerate(networks):
        for number, link in enumerate(network.fabric.links):
            a, b = (end.node for end in link.ends)
            if target in ("all", a, b, link.a, link.b, f"{a}-{b}", f"{b}-{a}"):
                found.append(FabricLinkAt(network, (plane, number)))
    if not found:
        raise FaultRefused(f"{target!r}: expected a link by an end (leaf1:3) or by both nodes (leaf1-spine1), a host "
                           f"(h3), or a switch with all its links ({switches(networks)}); `netfold links` lists them")
    return found


def switches(networks: Sequence[FaultyFabric]) -> str:
    """The names of all switches, for messages."""
    names = [switch.name for network in networks for switch in network.fabric.switches]
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def of_switch(networks: Sequence[Running], name: str) -> Running | None:
    """The network that has this switch; None: none has."""
    return next((network for network in networks
                 if name in {switch.name for switch in network.fabric.switches}), None)


def no_process(kind: str, networks: Sequence[FaultyFabric], target: str) -> FaultRefused:
    """The error for a fault of processes whose target is none."""
    try:
        links(networks, target)
        what = "this is a link, which can be cut or silenced"
    except FaultRefused:
        what = "there is nothing of this name"
    expected = " or controller" if kind == "restart" else ", controller, or a rank (rank3, JOB/3)"
    return FaultRefused(f"{kind} {target!r}: expected a switch ({switches(networks)}){expected}; {what}")


def no_restart(target: str) -> FaultRefused:
    """The error for a rank that is to be started again."""
    return FaultRefused(f"restart {target}: expected kill or stop: a rank's launcher starts it, and its job goes on "
                        "without it where it can (`netfold run` ends)")


@dataclass(frozen=True)
class RankAt:
    """A rank of a job whose processes run on the fabric."""

    job: str
    number: int
    controllers: frozenset[str]
    """The addresses of the fabric's controllers and standbys, of which its environment names one or more."""
    proc: Path = Path("/proc")

    def __str__(self) -> str:
        return f"rank {self.number} of job {self.job}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes.  Raises FaultRefused where there is none."""
        sent = 0
        for pid in _pids(self.proc):
            try:
                handle = os.pidfd_open(pid)
            except OSError:  # it has ended
                continue
            try:
                # the process is the handle's: it is looked at after the handle was opened
                if self.is_of(_environment(self.proc, pid)):
                    signal.pidfd_send_signal(handle, number)
                    sent += 1
            except ProcessLookupError:
                pass
            finally:
                os.close(handle)
        if not sent:
            raise FaultRefused(f"{self} does not run any more", conflict=True)

    def is_of(self, environment: dict[str, str]) -> bool:
        """True if a process with this environment is one of the rank's."""
        return (environment.get("NETFOLD_JOB") == self.job and environment.get("RANK") == str(self.number)
                and _is_on(environment, self.controllers))


def is_rank(target: str) -> bool:
    """True if a target has the form of a rank: "rank3", "JOB/3"."""
    return RANK.fullmatch(target) is not None


def rank(networks: Sequence[FaultyFabric], target: str, proc: Path = Path("/proc")) -> RankAt | None:
    """The rank that "rank3" or "JOB/3" names; None where a target has another form.

    Raises FaultRefused where there is no such rank, or several jobs have one.
    """
    match = RANK.fullmatch(target)
    if match is None:
        return None
    controllers = frozenset(address for network in networks for address in network.fabric.controllers.split(","))
    number = int(match["number"])
    jobs, seen = set(), set()
    for pid in _pids(proc):
        said = _environment(proc, pid)
        job = said.get("NETFOLD_JOB", "")
        if _is_on(said, controllers) and job and "RANK" in said:
            seen.add(f"{job}/{said['RANK']}")
            if said["RANK"] == str(number) and match["job"] in (None, job):
                jobs.add(job)
    if len(jobs) != 1:
        names = ", ".join(sorted(seen)[:SHOWN]) or "no ranks"
        raise FaultRefused(f"{target!r}: expected a rank that runs on this fabric; there are {names}",
                           conflict=bool(jobs))
    return RankAt(jobs.pop(), number, controllers, proc)


def _is_on(environment: dict[str, str], controllers: frozenset[str]) -> bool:
    """True if a process with this environment is on a fabric with these controllers."""
    return not controllers.isdisjoint(environment.get("NETFOLD_CONTROLLER", "").split(","))


def _pids(proc: Path) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def _environment(proc: Path, pid: int) -> dict[str, str]:
    """The environment of a process as it was started; empty where it has ended, or is another user's."""
    try:
        words = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(word.decode(errors="replace").partition("=")[::2] for word in words if b"=" in word)
