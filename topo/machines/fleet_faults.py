# SPDX-License-Identifier: Apache-2.0
"""Faults and captures of a fabric over machines: planned by the launcher, done by the machines that have what is hit.

Each machine serves the faults of its own part, as a local fabric's launcher does (topo/fault_service.py), at a socket
that the launcher reaches by its line.  The clock of a fault, and what it may not overlap with, is the launcher's.
Shares of packets are the controller's, and so they are told to it from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

from netfold.controller import client
from netfold.rpc import local, rpc
from netfold.topo.agents import attach
from netfold.topo.faults import targets as fault_targets
from netfold.topo.faults.board import FaultPlan, FaultRefused
from netfold.topo.faults.link_plans import LinkFaultPlans
from netfold.topo.faults.server import FaultServer
from netfold.topo.faults.targets import CONTROLLER, FabricLinkAt
from netfold.topo.machines.fleet import Fleet
from netfold.wire import faults
from netfold.wire.faults import Inject

CALL_SECONDS: Final = 30.0
"""Seconds for a machine to inject a fault of its part, or to end it."""


class FleetFaultPlans(LinkFaultPlans):
    """Makes plans for the faults of a fabric over machines."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__([fleet])
        self._fleet = fleet
        self._there: dict[tuple[str, str, str], int] = {}
        """The number of a fault on its machine, by machine, kind and target."""

    # ---- interfaces ----------------------------------------------------------------------------------------------

    def set_carrier(self, at: FabricLinkAt, *, up: bool) -> None:
        """Take a link down or up, at both ends where these are on two machines: neither sees the other's."""
        switches = {switch.name for switch in self._fleet.fabric.switches}
        ends = {self._fleet.machine_of(end.node): end for end in reversed(at.link.ends) if end.node in switches}
        for machine, end in ends.items():
            self._change(machine, "cut", f"{end.node}:{end.port}", on=not up)

    def slow(self, at: FabricLinkAt, node: str, port: int, seconds: float | None) -> None:
        """Hold back, or swallow, what leaves a port, on its machine."""
        machine = self._fleet.machine_of(node)
        if seconds is None:
            self._change(machine, "silence", f"{node}:{port}", on=True, one_way=True)
        else:
            self._change(machine, "delay", f"{node}:{port}", on=True, one_way=True, amount=seconds)

    def restore(self, at: FabricLinkAt, node: str, port: int) -> None:
        """Give a port its own queue again."""
        for kind in ("silence", "delay"):
            self._change(self._fleet.machine_of(node), kind, f"{node}:{port}", on=False)

    def needs_netem(self, at: FabricLinkAt, node: str) -> None:
        """Each machine says that itself when it is asked to delay something."""

    # ---- processes -----------------------------------------------------------------------------------------------

    def process(self, request: Inject) -> FaultPlan:
        """The plan of a fault of a switch, the controller or a rank.  Raises FaultRefused."""
        target = request.target
        if target == CONTROLLER:
            return self._controller(request)
        if fault_targets.of_switch([self._fleet], target) is not None:
            machine = self._fleet.machine_of(target)
            if request.kind == "restart":
                return FaultPlan(f"{target} was killed, and started again with neither program nor entries",
                                 partial(self._change, machine, "restart", target, on=True), None,
                                 frozenset([f"the process of {target}"]))
            does = "is killed, as by a power failure" if request.kind == "kill" else "stands still, as if it hung"
            return FaultPlan(f"{target} {does}", partial(self._change, machine, request.kind, target, on=True),
                             partial(self._change, machine, request.kind, target, on=False),
                             frozenset([f"the process of {target}"]), at_end=request.kind == "stop")
        if fault_targets.is_rank(target):
            return self._rank(request)
        raise fault_targets.no_process(request.kind, [self._fleet], target)

    def _controller(self, request: Inject) -> FaultPlan:
        fleet = self._fleet
        holds = frozenset(["the process of controller"])
        if request.kind == "stop":
            raise FaultRefused("stop controller: expected kill or restart on a fabric over machines: the launcher has "
                               "the controller at the end of a line, which carries no SIGSTOP")
        if not fleet.has_controller:
            raise FaultRefused(f"{request.kind} controller: there is no controller now", conflict=True)

        def start() -> None:
            fleet.start_controller()
            if any(self._shares.values()):
                self.write_shares()

        def restart() -> None:
            fleet.kill_controller()
            start()

        if request.kind == "restart":
            return FaultPlan("the controller was killed, and started again", restart, None, holds)
        return FaultPlan("the controller is killed", fleet.kill_controller, start, holds)

    def _rank(self, request: Inject) -> FaultPlan:
        """Ranks are found by the machine that they run on, of which each is asked in turn."""
        if request.kind == "restart":
            raise fault_targets.no_restart(request.target)
        if "/" not in request.target and len(jobs := self._jobs()) > 1:
            raise FaultRefused(f"{request.kind} {request.target}: {len(jobs)} jobs run ({', '.join(sorted(jobs))}): "
                               "name one, as JOB/3", conflict=True)
        place: list[str] = []

        def begin() -> None:
            why: list[FaultRefused] = []
            for machine in self._fleet.machines():
                try:
                    self._change(machine, request.kind, request.target, on=True)
                except FaultRefused as error:
                    why.append(FaultRefused(f"machine {machine}: {error}", conflict=error.conflict))
                else:
                    place[:] = [machine]
                    return
            raise FaultRefused("; ".join(map(str, why)), conflict=any(error.conflict for error in why))

        def end() -> None:
            for machine in place:
                self._change(machine, request.kind, request.target, on=False)

        holds = frozenset([f"the processes of {request.target}"])
        if request.kind == "kill":
            return FaultPlan(f"{request.target} was killed", begin, None, holds)
        return FaultPlan(f"{request.target} stands still, as if it hung", begin, end, holds, at_end=True)

    def _jobs(self) -> set[str]:
        try:
            return {job.name for job in asyncio.run(client.status(self._fleet.fabric.jobs)).jobs}
        except (rpc.Unreachable, rpc.CallRefused, grpc.RpcError) as error:
            raise FaultRefused(f"the controller does not say which jobs run ({error}): name one, as JOB/3",
                               conflict=True) from error

    # ---- the machines --------------------------------------------------------------------------------------------

    def _change(self, machine: str, kind: Any, target: str, *, on: bool, amount: float | None = None,
                one_way: bool = False) -> None:
        """Have a machine inject a fault, or end one that it has injected.  Raises FaultRefused."""
        key = (machine, kind, target)
        if on:
            answer = self._ask(machine, Inject(kind, target, None, amount, None, one_way))
            if answer.number:
                self._there[key] = answer.number
        elif (number := self._there.get(key)) is not None:
            if machine in self._fleet.machines():  # else it has ended with all that was on it
                self._ask(machine, faults.Undo(number))
            del self._there[key]

    def _ask(self, machine: str, request: Inject | faults.Undo) -> Any:
        path = self._fleet.faults_at(machine)
        if machine not in self._fleet.machines():
            raise FaultRefused(f"machine {machine} is cut off or has failed, with all that was on it", conflict=True)
        try:
            answer, _ = local.call(path, request, faults.Answer, CALL_SECONDS)
        except rpc.Unreachable as error:
            raise FaultRefused(f"machine {machine} does not answer: {error}", conflict=True) from error
        if isinstance(answer, faults.Refused):
            raise FaultRefused(answer.why, conflict=answer.conflict)
        return answer


class FleetFaults(FaultServer):
    """Serves faults and captures of a fabric over machines, in the launcher's folder."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__([fleet], FleetFaultPlans(fleet), folder / faults.SOCKET)
        self._fleet = fleet

    def tap(self, request: faults.Tap) -> tuple[faults.Answer, Sequence[int]]:
        """The commands that capture on the machines that have the links: of all of them for "all", else of one."""
        links = fault_targets.links(self._fabrics, request.target)
        node = request.target.partition(":")[0]
        nodes = {each.name for each in self._fleet.fabric.nodes}
        ends = [end.node for at in links for end in at.link.ends] if request.target == "all" else [
            node if node in nodes else links[0].end.node]
        machines = list(dict.fromkeys(map(self._fleet.machine_of, ends)))
        if lost := [machine for machine in machines if machine not in self._fleet.machines()]:
            raise FaultRefused(f"{request.target}: machine {', '.join(lost)} is cut off or has failed", conflict=True)
        return faults.TappedElsewhere(self._fleet.fabric.name, [
            faults.MachineTap(machine, self._command(machine, request.target), sum(
                any(self._fleet.machine_of(end.node) == machine for end in at.link.ends) for at in links))
            for machine in machines]), ()

    def record(self, request: faults.RecordPacket) -> faults.RecordedPacket:
        """Refused: clocks of several machines do not tell microseconds between links."""
        raise FaultRefused(f"{request.host}: the fabric runs over several machines, whose clocks differ by more than a "
                           "packet takes: only a fabric on one machine records a packet's way; `netfold pcap` captures "
                           "here too", conflict=True)

    def _command(self, machine: str, target: str) -> list[str]:
        folder, line, python = self._fleet.place_of(machine)
        return attach.command(line, [
            "env", f"{faults.FAULTS_VARIABLE}={folder}/{faults.MACHINE_SOCKET}", python, "-m",
            "netfold.cli", "pcap", target, "-w", "-"], ["LANG"])
