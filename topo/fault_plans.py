# SPDX-License-Identifier: Apache-2.0
"""What each kind of fault does to a running fabric: its plan, by the request's kind and target.

Shares of packets (loss, duplicate, reorder, corrupt) are drawn by the switches' program, which the controller tells
(controller/operations/injection.py).  Links are cut, silenced and delayed at their interfaces, processes killed and
stopped by their numbers.  Nothing but the fabric's own is ever touched: links of its file, processes that it has
started, and ranks that say in their environment that they are on it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from netfold.fabric.graph import FAULTS
from netfold.topo import fault_targets
from netfold.topo.controller_calls import set_faults
from netfold.topo.fault_board import FaultPlan, FaultRefused
from netfold.topo.fault_targets import CONTROLLER, FabricLinkAt
from netfold.topo.faults import FaultInjector, children
from netfold.topo.net import Network
from netfold.wire.faults import DEFAULT_DELAY, DEFAULT_FLAP, DEFAULT_SHARE, SHARES, Inject
from netfold.wire.operator import LinkFaults

PROBE_DEVICE: Final = "lo"


class FaultPlans:
    """Makes plans for the faults of a fabric, or of several planes that share their hosts."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = list(networks)
        self._shares: dict[tuple[int, int], dict[str, tuple[float, int | None]]] = defaultdict(dict)
        """Shares and seeds by network and link number, and by kind."""

    def plan(self, request: Inject) -> FaultPlan:
        """The plan of a request.  Raises FaultRefused."""
        self._check_options(request)
        if request.kind in SHARES:
            return self._share(request)
        if request.kind in ("cut", "flap"):
            return self._carrier(request)
        if request.kind in ("silence", "delay"):
            return self._queue(request)
        return self._process(request)

    @staticmethod
    def _check_options(request: Inject) -> None:
        if request.seed is not None and request.kind not in SHARES:
            raise FaultRefused(f"{request.kind}: expected no seed, which goes with {', '.join(SHARES)}")
        if request.one_way and request.kind not in ("silence", "delay"):
            raise FaultRefused(f"{request.kind}: expected both directions; one way alone can be silenced or delayed")
        if request.amount is not None:
            if request.kind not in (*SHARES, "delay", "flap"):
                raise FaultRefused(f"{request.kind}: expected no amount, which goes with {', '.join(SHARES)}, delay, "
                                   "flap")
            if request.kind in SHARES and request.amount > 1:
                raise FaultRefused(f"{request.kind} {request.amount:g}: expected a share of packets, above 0, up to 1")

    def _links(self, request: Inject) -> list[FabricLinkAt]:
        return fault_targets.links(self.networks, request.target)

    # ---- shares of packets ---------------------------------------------------------------------------------------

    def _share(self, request: Inject) -> FaultPlan:
        links = self._links(request)
        kind, share = request.kind, DEFAULT_SHARE if request.amount is None else request.amount
        if kind == "corrupt":
            links = [at for at in links if at.host is not None]
            if not links:
                raise FaultRefused(f"corrupt {request.target}: expected the link of a host, where packets are changed "
                                   "on their way to the first switch, which checks them; links between switches know "
                                   "loss, duplicate and reorder")
        for at in links:
            seeds = {seed for _, seed in self._shares[at.key].values()}
            if seeds and request.seed is not None and seeds != {request.seed}:
                raise FaultRefused(f"{kind} {at.name} with seed {request.seed}: another fault there draws with seed "
                                   f"{', '.join(map(str, seeds))}, and a link has one draw: give the same, or none",
                                   conflict=True)
            link = at.link
            total = sum(getattr(link, name) for name in FAULTS) + sum(s for s, _ in self._shares[at.key].values())
            if total + share > 1:
                raise FaultRefused(f"{kind} {at.name}: a packet has one fault at most, so that shares add up to 1 or "
                                   f"less; {total:g} are taken, {share:g} asked for", conflict=True)

        def begin() -> None:
            for at in links:
                self._shares[at.key][kind] = (share, request.seed)
            try:
                self._write_shares()
            except FaultRefused:
                for at in links:
                    self._shares[at.key].pop(kind, None)
                raise

        def end() -> None:
            for at in links:
                self._shares[at.key].pop(kind, None)
            self._write_shares()

        done = {"loss": "lost", "duplicate": "doubled", "reorder": "held back", "corrupt": "changed"}[kind]
        seed = "" if request.seed is None else f", seed {request.seed}"
        where = "from hosts" if kind == "corrupt" else "each way"
        return FaultPlan(f"{share:.3g} of the packets on {_names(links)} are {done}, {where}{seed}", begin, end,
                         frozenset(f"the {kind} of link {at.name}" for at in links))

    def _write_shares(self) -> None:
        """Tell the controllers all shares, of which they know the last that they were told.  Raises FaultRefused."""
        for number, network in enumerate(self.networks):
            wanted = []
            for (plane, link), kinds in self._shares.items():
                if plane == number and kinds:
                    seed = next((seed for _, seed in kinds.values() if seed is not None), None)
                    wanted.append(LinkFaults(network.fabric.links[link].a, seed=seed,
                                             **{kind: share for kind, (share, _) in kinds.items()}))
            set_faults(network, wanted)

    # ---- interfaces ----------------------------------------------------------------------------------------------

    def _carrier(self, request: Inject) -> FaultPlan:
        links = self._links(request)
        period = None
        if request.kind == "flap":
            period = DEFAULT_FLAP if request.amount is None else request.amount
            if period < 0.01:
                raise FaultRefused(f"flap {request.target} every {period:g} s: expected 0.01 s or more")

        def turn(up: bool) -> None:
            for at in links:
                at.network.set_link(at.link, up=up)

        what = "is cut" if period is None else f"is down for {period:g} s and up for {period:g} s, in turn"
        return FaultPlan(f"{_names(links)} {what}", partial(turn, False), partial(turn, True),
                         frozenset(f"link {at.name}, up or down" for at in links), period)

    def _queue(self, request: Inject) -> FaultPlan:
        links = self._links(request)
        if request.one_way:
            if ":" not in request.target:
                raise FaultRefused(f"{request.kind} {request.target} one way: expected the port that packets leave by, "
                                   "such as leaf1:3")
            node, _, port = request.target.partition(":")
            ends = [(links[0], node, int(port))]
        else:
            ends = [(at, end.node, end.port) for at in links for end in at.link.ends]
        guests = [node for at, node, _ in ends if not at.runs(node)]
        if guests:
            raise FaultRefused(f"{request.kind} {request.target}: {', '.join(guests)} has no namespace here, since it "
                               "is a virtual machine: name the switch's end and --one-way")
        seconds = DEFAULT_DELAY if request.amount is None else request.amount
        if request.kind == "delay":
            self._needs_netem(links[0])
        injectors = {id(at.network): FaultInjector(at.network) for at, *_ in ends}

        def begin() -> None:
            for at, node, port in ends:
                injector = injectors[id(at.network)]
                if request.kind == "delay":
                    injector.delay(node, port, seconds)
                else:
                    injector.blackhole(node, port)

        def end() -> None:
            for at, node, port in ends:
                injectors[id(at.network)].end_queue(node, port)

        where = f"what leaves by {request.target}" if request.one_way else f"on {_names(links)}, each way,"
        what = "is swallowed, with both ends up" if request.kind == "silence" else f"is {seconds * 1000:g} ms late"
        return FaultPlan(f"{'what goes ' * (not request.one_way)}{where} {what}", begin, end,
                         frozenset(f"the queue of {node}:{port}" for _, node, port in ends))

    @staticmethod
    def _needs_netem(at: FabricLinkAt) -> None:
        """Raise FaultRefused where the kernel cannot delay packets."""
        add = ["tc", "qdisc", "add", "dev", PROBE_DEVICE, "root", "netem", "delay", "1ms"]
        done = subprocess.run(add, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode:
            raise FaultRefused(f"delay {at.name}: this kernel cannot hold packets back: `{' '.join(add)}` says "
                               f"{done.stderr.strip()!r}: expected one with netem (CONFIG_NET_SCH_NETEM, modprobe "
                               "sch_netem; Debian and Ubuntu have it). What every kernel can do: loss, reorder, cut")
        subprocess.run(["tc", "qdisc", "del", "dev", PROBE_DEVICE, "root"], check=True, timeout=10)

    # ---- processes -----------------------------------------------------------------------------------------------

    def _process(self, request: Inject) -> FaultPlan:
        if request.target == CONTROLLER or request.target.endswith(f"/{CONTROLLER}"):
            return self._controller(request)
        if (rank := fault_targets.rank(self.networks, request.target)) is not None:
            return self._rank(request, rank)
        network = fault_targets.of_switch(self.networks, request.target)
        if network is None:
            raise FaultRefused(f"{request.kind} {request.target!r}: expected a switch "
                               f"({fault_targets.switches(self.networks)}), controller, or a rank (rank3, JOB/3); "
                               f"{fault_targets.what(self.networks, request.target)}")
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
                         partial(_signal_switch, network, name, signal.SIGCONT), holds, at_end=True)

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
                self._write_shares()

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
        if request.kind == "restart":
            raise FaultRefused(f"restart {request.target}: expected kill or stop: a rank's launcher starts it, and its "
                               "job goes on without it where it can (`netfold run` ends)")
        signals: dict[str, Callable[[], None]] = {
            "kill": partial(rank.signal, signal.SIGKILL), "stop": partial(rank.signal, signal.SIGSTOP)}
        holds = frozenset([f"the processes of {rank}"])
        if request.kind == "kill":
            return FaultPlan(f"{rank} was killed", signals["kill"], None, holds)
        return FaultPlan(f"{rank} stands still, as if it hung", signals["stop"], partial(rank.signal, signal.SIGCONT),
                         holds, at_end=True)


def _signal_switch(network: Network, name: str, number: signal.Signals) -> None:
    """Send a signal to a switch's process and to those that it has started.  Raises FaultRefused."""
    child = next(switch for switch in network.switches if switch.name == name).child
    if child is None or child.poll() is not None:
        raise FaultRefused(f"{name} does not run", conflict=True)
    for pid in (child.pid, *children(child.pid)):
        os.kill(pid, number)


def _names(links: Sequence[FabricLinkAt]) -> str:
    shown = [f"{at.link.a} - {at.link.b}" for at in links]
    return ", ".join(shown) if len(shown) <= 4 else f"{', '.join(shown[:3])} and {len(shown) - 3} more links"
