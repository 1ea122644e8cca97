# SPDX-License-Identifier: Apache-2.0
"""The options of `netfold bench paths`, `rails` and `simulator`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, get_args

import typer

from netfold.bench.options.shared import (
    UNSHAPED,
    Begin,
    Bytes,
    End,
    HostsOptions,
    Out,
    Rate,
    RoundsOptions,
    Timeout,
    Topo,
)
from netfold.fabric import graph
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import PlannerName

CASES = ("flows", "folds")
"""The cases of `netfold bench simulator`."""


@dataclass(frozen=True, kw_only=True)
class PathsOptions(HostsOptions, RoundsOptions):
    """Collectives over planned paths, ECMP, spraying and REPS: bytes of every uplink, and completion times.

    Everything runs in a sandbox on this machine, on real packets; every element of every result is checked.
    """

    topo: Topo = "leafspine,4,4,16"
    rate: Rate = "50mbit"
    nbytes: Bytes = "2M"
    modes: Annotated[str, typer.Option(help="By commas: pinned, ecmp, spray, reps; default: all that the transport "
                                       "has.")] = ""
    collectives: Annotated[
        str, typer.Option(help="By commas: all_to_all, halving_doubling, ring, all_gather.")
    ] = "all_to_all,halving_doubling,ring,all_gather"
    transport: Annotated[str, typer.Option(help="roce: queue pairs; or tcp, which has no reps.")] = "roce"
    planner: Annotated[str, typer.Option(help="fewest_pieces; or equal_split, the paper's.")] = "fewest_pieces"
    fail_link: Annotated[
        float | None, typer.Option("--fail-link", metavar="SECONDS", help="Break the first leaf's first uplink so long "
                                   "after an all-to-all has begun, in each mode and round.")
    ] = None
    silent: Annotated[
        bool, typer.Option("--silent", help="With --fail-link: it swallows packets, and both ends think it is up.")
    ] = False
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="For figures and logs.")] = Path(
        "build/bench-paths")
    probe: float = 0.5
    """Seconds between probes of a link."""

    def __post_init__(self) -> None:
        super().__post_init__()
        from netfold.bench.ranks.paths import Collective, Mode, Transport

        self.need_one("transport", get_args(Transport))
        self.need_one("planner", get_args(PlannerName))
        known = [mode for mode in get_args(Mode) if self.transport != "tcp" or mode != "reps"]
        self._set(modes=self.modes or ",".join(known))
        if "reps" in self.modes.split(",") and self.transport == "tcp":
            self.refuse("modes", "no reps over tcp: a connection cannot take a source port for each packet")
        self.names("modes", known)
        self.names("collectives", get_args(Collective), none=True)
        self.bytes_of("nbytes", 4 * self.ranks)
        if not self.uplinks:
            self.refuse("topo", "leaves that are linked to spines or aggs: the loads of these links are compared")
        if self.fail_link is not None:
            self.need(0, "fail_link")
        elif self.silent:
            raise ValueError("--silent goes with --fail-link SECONDS")
        if self.silent and self.uplinks[0][1] is None:
            self.refuse("rate", "a rate with --silent: the queue of the link's shaper swallows the packets")

    @property
    def uplinks(self) -> list[tuple[tuple[graph.End, graph.End], str | None]]:
        """The links between leaves and other switches: their ends, the leaf's first, and their rates."""
        fabric = self.fabric()
        leaf = {switch.name: switch.role == "leaf" for switch in fabric.switches}
        return [((near, far), link.rate) for link in fabric.links for near, far in (link.ends, link.ends[::-1])
                if leaf.get(near.node) and leaf.get(far.node) is False]


@dataclass(frozen=True, kw_only=True)
class RailsOptions(HostsOptions, RoundsOptions):
    """One allreduce over several rails beside each rail alone: times, shares, processor time, starts, training, a
    plane cut in the middle of a call, and one that fails and comes back during a series of calls.

    Hosts have an interface on each plane. Exit status 1 if a sum is wrong, or if ranks end with different weights.
    """

    PLANES: ClassVar = (2, 3)
    topo: Topo = "dual,leafspine,1,0,4"
    rate: Rate = "100mbit"
    rails: Annotated[str, typer.Option(help="KIND@a+KIND@b: one a plane, in order.")] = "innet@a+tcp@b"
    begin: Begin = "4K"
    end: End = "64M"
    factor: Annotated[int, typer.Option("-f", "--factor", "--stepfactor", help="From one size to the next.")] = 4
    cuts: Annotated[str, typer.Option(help="Parts of a call at which the last plane is cut.")] = "0.3,0.6,0.9"
    cut_bytes: Annotated[str, typer.Option(help="Tensor of those calls.")] = "16M"
    algorithm: Annotated[str, typer.Option(help="Between the hosts, on the rails tcp and roce.")] = "auto"
    stall: Annotated[float, typer.Option(help="Seconds of silence after which a rail is dead; more on a busy "
                                         "machine.")] = 0.08
    train: Annotated[int, typer.Option(help="Steps of a turn of training in Horovod's manner, over each rail, all and "
                                       "gloo; 0: none.")] = 4
    width: Annotated[int, typer.Option(help="Width of the trained network's hidden layers.")] = 1024
    series: Annotated[int, typer.Option(help="Sums, of a quarter of --cut-bytes, one after another while the last "
                                        "plane fails and comes back; 0: none.")] = 40
    mptcp: Annotated[bool, typer.Option("--mptcp", help="Also measure Multipath TCP over all planes.")] = False
    out: Out = None
    timeout: Timeout = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        from netfold.host.selection.peers import KNOWN

        if UNSHAPED in self.rates:
            self.refuse("rate", "rates of links: what planes carry is compared with them")
        if len(self.kinds) != len(self.planes()):
            self.refuse("rails", f"one for each plane of {self.topo}")
        self.need_positive("timeout")
        if not 0 < self.stall < self.timeout:
            self.refuse("stall", f"seconds above 0 and below --timeout {self.timeout:g}")
        self.need(0, "train", "series")
        self.need(1, "width")
        self.need(2, "factor")
        self.need_one("algorithm", KNOWN)
        self.bytes_of("cut_bytes")
        if self.bytes_of("end") < self.bytes_of("begin"):
            self.refuse("end", "the end not below the beginning")
        try:
            right = all(0 < part < 1 for part in self.parts)
        except ValueError:
            right = False
        if not right:
            self.refuse("cuts", "parts of a call between 0 and 1, by commas")

    @property
    def kinds(self) -> list[str]:
        """The rails by name, one of each plane."""
        return self.rails.split("+")

    @property
    def rates(self) -> list[str]:
        """Rates of the planes' links, in order."""
        rates = self.rate.split(",")
        return rates * (len(self.kinds) // len(rates))

    @property
    def parts(self) -> list[float]:
        """Parts of a call's time after which a plane fails."""
        return [float(part) for part in self.cuts.split(",") if part]

    @property
    def sizes(self) -> list[int]:
        """Sizes of the tensors, in whole elements."""
        found, size, last = [], self.bytes_of("begin"), self.bytes_of("end")
        while size <= last:
            found.append(size // 4 * 4)
            size *= self.factor
        return found


@dataclass(frozen=True, kw_only=True)
class SimulatorOptions(RoundsOptions):
    """The packet simulator against a real fabric: the same flows and folds; exit status 1 beyond 15 and 10 %."""

    rate: Rate = "50mbit"
    cases: Annotated[str, typer.Option(help="By commas: flows, folds (sums in the network).")] = ",".join(CASES)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names("cases", CASES)
        leafspine(2, 2, 8, rate=self.rate)
