# SPDX-License-Identifier: Apache-2.0
"""The options of `netfold bench loss`, `recovery` and `soak`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from netfold.bench.options.shared import (
    Bytes,
    Iterations,
    LinksOptions,
    PacketsOptions,
    Rounds,
    RoundsOptions,
    Seed,
    Topo,
)

RECOVERY_FAULTS: Final[Mapping[str, str]] = {
    "spine": "a spine is killed",
    "link": "a link between leaf and spine goes down",
    "silent": "a leaf's uplink drops packets silently in both directions",
    "leaf": "a leaf is killed and started again",
    "return": "a spine is killed, and started again after some seconds",
}
"""The faults of `netfold bench recovery`, in words."""
LEAVES, SPINES, HOSTS = 2, 2, 4
"""The fabric of `netfold bench soak`, besides a host for strangers."""
MOST_FAULTS: Final = SPINES + LEAVES + LEAVES * SPINES + HOSTS + 7
"""Faults in a round at most: each hits a switch, a link or a rank of its own, and the others come once."""
USUAL: Final[Mapping[str, tuple[str, int]]] = {"softswitch": ("1gbit", 200_000), "bmv2": ("50mbit", 8_000)}
"""Rate of links, and elements of the longest tensor, in `netfold bench soak`."""


@dataclass(frozen=True, kw_only=True)
class LossOptions(PacketsOptions, RoundsOptions):
    """The cost of lost packets: time and bytes on links, relative to no losses, and the level that answered."""

    topo: Topo = "leafspine,2,1,4"
    nbytes: Bytes = "8000000"
    iterations: Iterations = 5
    losses: Annotated[str, typer.Option(help="Shares lost on every link, each way.")] = "0.001,0.01,0.05,0.1"
    credits: Annotated[str, typer.Option(help="By commas, as 2x170K: in turn with the window alone.")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        from netfold.host.innet.core import Credits

        self.need(1, "iterations")
        self.bytes_of("nbytes", 1)
        try:
            right = all(0 <= share < 1 for share in self.shares)
        except ValueError:
            right = False
        if not right:
            self.refuse("losses", "shares of 0 or more, below 1, with commas, as 0.001,0.01")
        for credits in self.controls[1:]:
            Credits.parse(credits, self.path_mtu)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of lost packets, none the first."""
        return tuple(sorted({0.0, *map(float, self.losses.split(","))}))

    @property
    def controls(self) -> tuple[str, ...]:
        """Values of NETFOLD_CREDITS that are measured in turn; an empty one stands for the window alone."""
        return ("", *filter(None, self.credits.split(",")))


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions(LinksOptions, RoundsOptions):
    """How long running sums pause when a spine, a link or a leaf fails, and when a spine comes back."""

    rounds: Rounds = 5
    faults: Annotated[str, typer.Option(help=f"By commas: {', '.join(RECOVERY_FAULTS)}.")] = "spine,link,leaf"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names("faults", RECOVERY_FAULTS)


@dataclass(frozen=True, kw_only=True)
class SoakOptions(LinksOptions, RoundsOptions):
    """Run checked sums while switches, links, ranks, controllers and disks fail and an outsider attacks, several at a
    time: no sum may be wrong, and none may hang.

    Exit status 1 if a round failed; its seed repeats it.
    """

    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units; default: 1gbit, of BMv2 50mbit.")] = ""
    rounds: Annotated[int, typer.Option(help="Each on a fabric and with a seed of its own.")] = 10
    seconds: Annotated[float, typer.Option(help="Begin no round after so many seconds; 0: run all rounds.")] = 0.0
    faults: Annotated[str, typer.Option(help="By commas: spine, leaf, cut, silent, stop, controller, standby, spoof, "
                                        "flood, mesh, service, disk; default: all.")] = ""
    per_round: Annotated[int, typer.Option(help="Faults in a round.")] = 6
    logs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the logs of failed rounds here.")] = None
    seed: Seed = 0
    elements: int = 0
    """Elements of the longest tensor; 0: as many as are usual for the switches."""

    def __post_init__(self) -> None:
        rate, elements = USUAL.get(self.switch, ("none", 0))
        self._set(rate=self.rate or rate, elements=self.elements or elements)
        super().__post_init__()
        from netfold.bench.harness.schedule import FAULTS

        self._set(faults=self.faults or ",".join(FAULTS))
        self.names("faults", FAULTS)
        self.need(0, "seconds")
        if not 1 <= self.per_round <= MOST_FAULTS:
            self.refuse("per_round", f"1 .. {MOST_FAULTS}")
