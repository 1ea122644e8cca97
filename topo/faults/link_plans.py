# SPDX-License-Identifier: Apache-2.0
"""The effect of faults of links on a fabric, wherever its links are: their plans, by the request's kind and target.

Shares of packets (loss, duplicate, reorder, corrupt) are drawn by the switches' program, which the controller tells
(controller/operations/injection.py).  Links are cut, silenced and delayed at their interfaces; derived classes
implement the access to these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from netfold.fabric.graph import FAULTS
from netfold.topo.faults import targets as fault_targets
from netfold.topo.faults.board import FaultPlan, FaultRefused
from netfold.topo.faults.controller_calls import set_faults
from netfold.topo.faults.targets import FabricLinkAt, FaultyFabric
from netfold.wire.faults import DEFAULT_DELAY, DEFAULT_FLAP, DEFAULT_SHARE, SHARES, Inject
from netfold.wire.operator import LinkFaults


class LinkFaultPlans(ABC):
    """Makes plans for the faults of a fabric, or of several planes that share their hosts."""

    def __init__(self, fabrics: Sequence[FaultyFabric]) -> None:
        self._fabrics = list(fabrics)
        self._shares: dict[tuple[int, int], dict[str, tuple[float, int]]] = defaultdict(dict)
        """Shares and seeds by fabric and link number, and by kind."""

    def plan(self, request: Inject) -> FaultPlan:
        """The plan of a request.  Raises FaultRefused."""
        self._check_options(request)
        if request.kind in SHARES:
            return self._share(request)
        if request.kind in ("cut", "flap"):
            return self._carrier(request)
        if request.kind in ("silence", "delay"):
            return self._queue(request)
        return self.process(request)

    # ---- to be defined by who reaches interfaces and processes -----------------------------------------------------

    @abstractmethod
    def set_carrier(self, at: FabricLinkAt, *, up: bool) -> None:
        """Take a link down or up.  Raises FaultRefused, FabricFailed."""

    @abstractmethod
    def slow(self, at: FabricLinkAt, node: str, port: int, seconds: float | None) -> None:
        """Hold back what leaves a port for so long; None: swallow it.  Raises FaultRefused, FabricFailed."""

    @abstractmethod
    def restore(self, at: FabricLinkAt, node: str, port: int) -> None:
        """Give a port its own queue again.  Raises FaultRefused, FabricFailed."""

    @abstractmethod
    def needs_netem(self, at: FabricLinkAt, node: str) -> None:
        """Raise FaultRefused where the kernel that a node runs on cannot delay packets."""

    @abstractmethod
    def process(self, request: Inject) -> FaultPlan:
        """The plan of a fault of a process.  Raises FaultRefused."""

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
        return fault_targets.links(self._fabrics, request.target)

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
        seeds: dict[tuple[int, int], int] = {}
        for at in links:
            there = next((seed for _, seed in self._shares[at.key].values()), None)
            if there is not None and request.seed not in (None, there):
                raise FaultRefused(f"{kind} {at.name} with seed {request.seed}: another fault there draws with seed "
                                   f"{there}, and a link has one draw: give the same, or none", conflict=True)
            seeds[at.key] = next(seed for seed in (request.seed, there, at.network.fabric.seed) if seed is not None)
            link = at.link
            total = sum(getattr(link, name) for name in FAULTS) + sum(s for s, _ in self._shares[at.key].values())
            if total + share > 1:
                raise FaultRefused(f"{kind} {at.name}: a packet has one fault at most, so that shares add up to 1 or "
                                   f"less; {total:g} are taken, {share:g} asked for", conflict=True)

        def begin() -> None:
            for at in links:
                self._shares[at.key][kind] = (share, seeds[at.key])
            try:
                self.write_shares()
            except FaultRefused:
                for at in links:
                    self._shares[at.key].pop(kind, None)
                raise

        def end() -> None:
            for at in links:
                self._shares[at.key].pop(kind, None)
            self.write_shares()

        done = {"loss": "lost", "duplicate": "doubled", "reorder": "held back", "corrupt": "changed"}[kind]
        drawn = ", ".join(map(str, sorted(set(seeds.values()))))
        where = "from hosts" if kind == "corrupt" else "each way"
        text = f"{share:.3g} of the packets on {names_of(links)} are {done}, {where}, seed {drawn}"
        return FaultPlan(text, begin, end, frozenset(f"the {kind} of link {at.name}" for at in links))

    def write_shares(self) -> None:
        """Tell the controllers all shares, of which they know the last that they were told.  Raises FaultRefused."""
        for number, network in enumerate(self._fabrics):
            wanted = []
            for (plane, link), kinds in self._shares.items():
                if plane == number and kinds:
                    seed = next(seed for _, seed in kinds.values())
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
                self.set_carrier(at, up=up)

        what = "is cut" if period is None else f"is down for {period:g} s and up for {period:g} s, in turn"
        return FaultPlan(f"{names_of(links)} {what}", partial(turn, False), partial(turn, True),
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
            for at, node in {node: (at, node) for at, node, _ in ends}.values():
                self.needs_netem(at, node)

        def begin() -> None:
            for at, node, port in ends:
                self.slow(at, node, port, seconds if request.kind == "delay" else None)

        def end() -> None:
            for at, node, port in ends:
                self.restore(at, node, port)

        where = f"what leaves by {request.target}" if request.one_way else f"on {names_of(links)}, each way,"
        what = "is swallowed, with both ends up" if request.kind == "silence" else f"is {seconds * 1000:g} ms late"
        return FaultPlan(f"{'what goes ' * (not request.one_way)}{where} {what}", begin, end,
                         frozenset(f"the queue of {node}:{port}" for _, node, port in ends))


def names_of(links: Sequence[FabricLinkAt]) -> str:
    """Links by their ends, for messages: a few of them."""
    shown = [f"{at.link.a} - {at.link.b}" for at in links]
    return ", ".join(shown) if len(shown) <= 4 else f"{', '.join(shown[:3])} and {len(shown) - 3} more links"
