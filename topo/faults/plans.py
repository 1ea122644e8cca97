# SPDX-License-Identifier: Apache-2.0
"""The effect of each kind of fault on a fabric that runs in this process's namespaces.

Only the fabric's own parts are ever touched: links of its file, processes that it has started, and ranks whose
environment says that they are on it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from netfold.topo.faults import targets as fault_targets
from netfold.topo.faults.board import FaultPlan, FaultRefused
from netfold.topo.faults.injector import FaultInjector, children
from netfold.topo.faults.link_plans import LinkFaultPlans
from netfold.topo.faults.targets import CONTROLLER, FabricLinkAt
from netfold.topo.network.net import Network
from netfold.wire.faults import Inject

PROBE_DEVICE: Final = "lo"


class FaultPlans(LinkFaultPlans):
    """Makes plans for the faults of a network, or of several planes that share their hosts."""

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__(networks)
        self.networks = list(networks)

    # ---- interfaces ----------------------------------------------------------------------------------------------

    def set_carrier(self, at: FabricLinkAt, *, up: bool) -> None:
        """Take the switch end of a link down or up."""
        self._of(at).set_link(at.link, up=up)

    def slow(self, at: FabricLinkAt, node: str, port: int, seconds: float | None) -> None:
        """Hold back, or swallow, what leaves a port."""
        injector = FaultInjector(self._of(at))
        if seconds is None:
            injector.blackhole(node, port)
        else:
            injector.delay(node, port, seconds)

    def restore(self, at: FabricLinkAt, node: str, port: int) -> None:
        """Give a port its own queue again."""
        FaultInjector(self._of(at)).end_queue(node, port)

    def _of(self, at: FabricLinkAt) -> Network:
        return self.networks[at.key[0]]

    def needs_netem(self, at: FabricLinkAt, node: str) -> None:
        """Raise FaultRefused where the kernel cannot delay packets."""
        add = ["tc", "qdisc", "add", "dev", PROBE_DEVICE, "root", "netem", "delay", "1ms"]
        done = subprocess.run(add, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode:
            raise FaultRefused(f"delay {at.name}: this kernel cannot hold packets back: `{' '.join(add)}` says "
                               f"{done.stderr.strip()!r}: expected one with netem (CONFIG_NET_SCH_NETEM, modprobe "
                               "sch_netem; Debian and Ubuntu have it). What every kernel can do: loss, reorder, cut")
        subprocess.run(["tc", "qdisc", "del", "dev", PROBE_DEVICE, "root"], check=True, timeout=10)

    # ---- processes -----------------------------------------------------------------------------------------------

    def process(self, request: Inject) -> FaultPlan:
        """The plan of a fault of a switch, the controller or a rank.  Raises FaultRefused."""
        if request.target == CONTROLLER or request.target.endswith(f"/{CONTROLLER}"):
            return self._controller(request)
        if request.kind == "restart" and fault_targets.is_rank(request.target):
            raise fault_targets.no_restart(request.target)
        if (rank := fault_targets.rank(self.networks, request.target)) is not None:
            return self._rank(request, rank)
        network = fault_targets.of_switch(self.networks, request.target)
        if network is None:
            raise fault_targets.no_process(request.kind, self.networks, request.target)
        return self._switch(request, network)

    def _switch(self, request: Inject, network: Network) -> FaultPlan:
        name, injector = request.target, FaultInjector(network)
        holds = frozenset([f"the process of {name}"])

        def excuse(on: bool) -> None:
            for each in self.networks:  # planes share their switches' list
                (each.excused.add if on else each.excused.discard)(name)

        def kill() -> None:
            excuse(True)
            injector.kill(name)

        def start() -> None:
            injector.start(name)
            excuse(False)

        def restart() -> None:
            kill()
            start()

        if request.kind == "kill":
            return FaultPlan(f"{name} is killed, as by a power failure", kill, start, holds)
        if request.kind == "restart":
            return FaultPlan(f"{name} was killed, and started again with neither program nor entries", restart, None,
                             holds)
        return FaultPlan(f"{name} stands still, as if it hung", partial(_signal_switch, network, name, signal.SIGSTOP),
                         partial(_go_on, partial(_signal_switch, network, name)), holds, at_end=True)

    def _controller(self, request: Inject) -> FaultPlan:
        plane = request.target.rpartition("/")[0]
        networks = [n for n in self.networks if not plane or n.fabric.name == plane]
        if len(networks) != 1:
            raise FaultRefused(f"{request.kind} {request.target}: expected one of "
                               + ", ".join(f"{n.fabric.name}/{CONTROLLER}" for n in self.networks))
        (network,) = networks
        child = network.controller
        if child is None and request.kind != "kill":
            raise FaultRefused(f"{request.kind} {request.target}: there is no controller now", conflict=True)

        def kill() -> None:
            network.excused.add(CONTROLLER)
            network.end_controller(signal.SIGKILL)

        def start() -> None:
            network.start_controller(switches=False)
            network.excused.discard(CONTROLLER)
            if any(self._shares.values()):
                self.write_shares()

        def restart() -> None:
            kill()
            start()

        holds = frozenset([f"the process of {request.target}"])
        if request.kind == "kill":
            if child is None:
                raise FaultRefused(f"kill {request.target}: there is no controller now", conflict=True)
            return FaultPlan("the controller is killed", kill, start, holds)
        if request.kind == "restart":
            return FaultPlan("the controller was killed, and started again", restart, None, holds)
        assert child is not None
        return FaultPlan("the controller stands still, as if it hung", partial(child.send_signal, signal.SIGSTOP),
                         partial(child.send_signal, signal.SIGCONT), holds, at_end=True)

    def _rank(self, request: Inject, rank: fault_targets.RankAt) -> FaultPlan:
        signals: dict[str, Callable[[], None]] = {
            "kill": partial(rank.signal, signal.SIGKILL), "stop": partial(rank.signal, signal.SIGSTOP)}
        holds = frozenset([f"the processes of {rank}"])
        if request.kind == "kill":
            return FaultPlan(f"{rank} was killed", signals["kill"], None, holds)
        return FaultPlan(f"{rank} stands still, as if it hung", signals["stop"], partial(_go_on, rank.signal), holds,
                         at_end=True)


def _go_on(send: Callable[[signal.Signals], None]) -> None:
    """Let processes that were stopped go on; those that have ended since need nothing."""
    with contextlib.suppress(FaultRefused):
        send(signal.SIGCONT)


def _signal_switch(network: Network, name: str, number: signal.Signals) -> None:
    """Send a signal to a switch's process and to those that it has started.  Raises FaultRefused."""
    child = next(switch for switch in network.switches if switch.name == name).child
    if child is None or child.poll() is not None:
        raise FaultRefused(f"{name} does not run", conflict=True)
    for pid in (child.pid, *children(child.pid)):
        os.kill(pid, number)
