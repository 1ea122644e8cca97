# SPDX-License-Identifier: Apache-2.0
"""Allreduces of one kind that the switches fold as they are, for as long as the choice that led there stands."""

from __future__ import annotations

from typing import NamedTuple

from netfold.host.operation.coding import Coding
from netfold.host.operation.rail import FoldingRail, RepeatedKind
from netfold.host.selection.chooser import Chooser
from netfold.host.selection.measure import Measured
from netfold.host.selection.peers import Peers


class Repeated(NamedTuple):
    """One kind: dtype, size, reduction and coding.  ``rail.repeat(like, ...)`` carries it while ``hosts`` are the ranks
    between the hosts and ``chooser.measured is measured``; then its way would be chosen alike."""

    hosts: Peers
    chooser: Chooser
    measured: Measured | None
    rail: FoldingRail
    like: RepeatedKind
    element: str
    """Name of the elements' dtype."""
    coding: Coding
