# SPDX-License-Identifier: Apache-2.0
"""Saturating sums of int32 on a host, by the rule of the switches (p4src/lanes.p4): a sum stops at the ends of the
range, and what has once reached an end stays there."""

from __future__ import annotations

from netfold.host.innet import native
from netfold.host.operation.arrays import Flat, address_of
from netfold.host.operation.reduction import Reduction


class SaturatingSum(Reduction):
    """The sum of int32 that the lane operation SAT32 makes of a slot's and a packet's lanes."""

    def __call__(self, first: Flat, second: Flat, out: Flat) -> None:
        """``out`` = first + second, all flat, plain and of one size; ``out`` may be either of them."""
        native.library().nf_saturating_sum(address_of(first), address_of(second), first.size, address_of(out))
