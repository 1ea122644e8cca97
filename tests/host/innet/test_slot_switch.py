# SPDX-License-Identifier: Apache-2.0
"""Slots that still hold an earlier job's packets."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.host.innet.slot_switch import Packet, SlotSwitch
from netfold.wire import roce

SLOTS = 8
OLD = 0xFFFFFC
"""First PSN of the earlier stream, which wraps around."""


def answers(switch: SlotSwitch, first: int, value: int) -> list[int]:
    """The answers to both children, if any, for a stream of as many packets as there are slots, each with this value
    in its lanes."""
    told = []
    for number in range(SLOTS):
        psn = (first + number) & roce.PSN_MASK
        lanes = np.full(roce.LANES, value, np.uint32)
        for child in (0, 1):
            packet = Packet(roce.LaneOperation.SUM32, roce.Opcode.WRITE_MIDDLE, 0, psn, b"", lanes)
            told += [int(out.lanes[0]) for _, out in switch.take(child, packet) if isinstance(out, Packet)]
    return told


def later(first: int, epoch: int) -> list[int]:
    """The answers to a job whose stream meets the slots of an earlier one, with the sum 8; its own sum is 2."""
    switch = SlotSwitch(2, SLOTS, root=True)
    assert answers(switch, OLD, 4) == [8] * SLOTS
    switch.epoch = epoch
    return answers(switch, first, 1)


@pytest.mark.parametrize("first", [OLD - 5, OLD, OLD + 5, OLD - 1000])
def test_another_epoch_meets_free_slots(first: int) -> None:
    """Whatever its PSNs are, a job with an epoch of its own gets its own sums alone."""
    assert later(first & roce.PSN_MASK, epoch=2) == [2] * SLOTS


def test_of_the_first_psns_under_the_same_epoch_two_streams_less_one_get_an_old_sum() -> None:
    """docs/protocol.md, "An epoch that comes again": those whose PSNs overlap; the rest get their own sums where the
    slots hold older PSNs, and nothing where these are later."""
    near = range(-3 * SLOTS, 3 * SLOTS + 1)
    far = [1 << 22, 1 << 23, (1 << 23) + SLOTS, -(1 << 22)]
    told = {ahead: later((OLD + ahead) & roce.PSN_MASK, epoch=1) for ahead in (*near, *far)}
    wrong = {ahead for ahead, got in told.items() if 8 in got}
    assert wrong == set(range(-SLOTS + 1, SLOTS))
    assert {ahead for ahead, got in told.items() if got == [2] * SLOTS} == {*range(SLOTS, 3 * SLOTS + 1), 1 << 22}
    assert all(not got for ahead, got in told.items() if ahead in (*range(-3 * SLOTS, -SLOTS + 1), -(1 << 22)))
