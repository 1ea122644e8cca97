# SPDX-License-Identifier: Apache-2.0
"""The switches' state of a slot (SlotState) once all packets have arrived: a model of p4src/slot.p4."""

from __future__ import annotations

from dataclasses import replace

from netfold.controller.switch.probe import SlotState
from netfold.fabric.folding import slots
from netfold.wire.roce import LaneOperation


def fold(stream: slots.Stream, psn: int, ranks: set[int]) -> dict[str, dict[int, SlotState]]:
    """The state of a tree's switches if exactly these ranks have sent a PSN."""
    states: dict[str, dict[int, SlotState]] = {f.switch: {} for f in stream.tree.folds}
    complete: set[str] = set()
    for f in reversed(stream.tree.folds):
        bitmap = sum(1 << n for n, child in enumerate(f.children)
                     if (child.rank in ranks if child.rank is not None else child.node in complete))
        if bitmap == (1 << len(f.children)) - 1:
            complete.add(f.switch)
        if bitmap:
            slot = stream.bases[f.switch] + psn % stream.slots
            states[f.switch][slot] = SlotState(stream.epoch, psn, False, False, bitmap, LaneOperation.SUM16)
    if stream.tree.root in complete:  # the result goes down to every switch
        states = {name: {slot: replace(s, done=True) for slot, s in held.items()}
                  for name, held in states.items()}
    return states
