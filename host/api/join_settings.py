# SPDX-License-Identifier: Apache-2.0
"""What a user asks of a communicator, and which of it fits together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from netfold.host.opening.open_mesh import PathChoice, path_choice
from netfold.host.opening.planes import RailSpec
from netfold.host.operation.coding import (
    REPRODUCIBLE_VARIABLE,
    Coding,
    LaneBits,
    lane_bits_from_environment,
    reproducible_from_environment,
)
from netfold.host.selection.choice import INNET
from netfold.host.selection.peers import ALGORITHM_VARIABLE, AUTO, KNOWN

RailName = Literal["auto", "innet", "verbs", "tcp", "roce"]

FOLDING: Final = (INNET, "verbs")
"""Rails that let the switches fold: by windowed end points, or by the queue pairs of an RDMA NIC."""


@dataclass(frozen=True)
class JoinSettings:
    """A user's settings, as ``Communicator.join`` describes them.  Raises ValueError for settings that contradict each
    other."""

    address: str
    rail: RailName = "auto"
    lane_bits: LaneBits | None = None
    algorithm: str | None = None
    helpers: Sequence[int] = ()
    timeout: float = 10.0
    reproducible: bool | None = None
    paths: PathChoice | None = None

    def __post_init__(self) -> None:
        if self.rail not in get_args(RailName):
            raise ValueError(f"rail={self.rail!r}: expected one of {', '.join(get_args(RailName))}")
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout!r}: expected seconds above 0")
        if self.paths is not None:
            path_choice(self.paths, self.rail)
        if self.algorithm_is_innet() and self.rail not in ("auto", *FOLDING):
            raise ValueError(f"algorithm='innet' (argument or {ALGORITHM_VARIABLE}), rail={self.rail!r}: give either")
        if self.resolved().rail in FOLDING and self.helpers:
            raise ValueError(
                f"rail={self.resolved().rail!r}, helpers={list(self.helpers)}: switches fold what every rank sends; "
                "use 'tcp'"
            )
        if self.coding().reproducible and self.helpers:
            raise ValueError(
                f"reproducible=True (argument or {REPRODUCIBLE_VARIABLE}), helpers={list(self.helpers)}: helpers "
                "have no data, and so cannot tell its scale; give either"
            )

    def coding(self, seed: int = 0) -> Coding:
        """The coding of calls that ask for none.  Raises ValueError for settings that contradict each other.

        seed  of stochastic rounding
        """
        exact = reproducible_from_environment() if self.reproducible is None else self.reproducible
        return Coding(self.lane_bits or lane_bits_from_environment(), seed=seed, reproducible=exact)

    def resolved(self) -> JoinSettings:
        """The same settings, with algorithm="innet" replaced by the rail that it means."""
        if not self.algorithm_is_innet():
            return self
        if self.rail in FOLDING:
            return replace(self, algorithm=AUTO)
        return replace(self, rail="innet", algorithm=AUTO)

    def algorithm_is_innet(self) -> bool:
        """True if the argument or $NETFOLD_ALGO is "innet"."""
        return (self.algorithm or os.environ.get(ALGORITHM_VARIABLE)) == INNET


def check_rails(specs: Sequence[RailSpec], settings: JoinSettings, controller: str | None) -> None:
    """Raises ValueError for settings that several rails do not support, or that contradict their planes."""
    names = "+".join(map(str, specs))
    for spec in specs:
        path_choice(settings.paths, spec.kind)
    if settings.helpers:
        raise ValueError(
            f"rails={names}, helpers={list(settings.helpers)}: helpers add for the others on one rail; use rail='tcp' "
            "alone"
        )
    between = [str(spec) for spec in specs if spec.kind not in FOLDING]
    if settings.algorithm_is_innet() and between:
        raise ValueError(
            f"rails={names}, algorithm='innet' (argument or {ALGORITHM_VARIABLE}): {', '.join(between)} cannot fold; "
            "leave it out, or use rails of the kind innet or verbs alone"
        )
    algorithm = settings.resolved().algorithm or os.environ.get(ALGORITHM_VARIABLE) or AUTO
    if algorithm not in KNOWN:
        raise ValueError(
            f"rails={names}, algorithm={algorithm!r} (argument or {ALGORITHM_VARIABLE}): expected one of "
            f"{', '.join(KNOWN)}"
        )
    addresses = [spec.plane.address for spec in specs]
    if settings.address and settings.address not in addresses:
        raise ValueError(
            f"rails={names}, address={settings.address!r}: expected none, or one of those on the planes, "
            f"{', '.join(addresses)}"
        )
    controllers = [spec.plane.controller for spec in specs]
    if controller and controller not in controllers:
        raise ValueError(
            f"rails={names}, controller={controller!r}: expected none, or one of the planes', {', '.join(controllers)};"
            " for one rail of another controller say rail="
        )
