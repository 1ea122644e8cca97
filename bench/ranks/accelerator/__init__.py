# SPDX-License-Identifier: Apache-2.0
"""One rank of `bench/scripts/accelerator.py`, and its checks by name, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from netfold.bench.ranks.accelerator.arrays import arrays, graphs, lanes, machine
from netfold.bench.ranks.accelerator.collectives import coalesced, collectives, overlap
from netfold.bench.ranks.accelerator.collnet import collnet
from netfold.bench.ranks.accelerator.death import death
from netfold.bench.ranks.accelerator.inside import inside
from netfold.bench.ranks.accelerator.training import ddp, fsdp, optimizers
from netfold.bench.ranks.accelerator.wait import wait

CHECKS: Final[dict[str, Callable[[], str]]] = {
    check.__name__: check for check in (
        machine, collectives, coalesced, overlap, ddp, fsdp, optimizers, arrays, lanes, graphs, death, wait,
        collnet, inside)
}
"""By name, in the order in which they are made."""
