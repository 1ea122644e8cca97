# SPDX-License-Identifier: Apache-2.0
"""A state of the whole system: switches, ranks, and what the network may still deliver."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class ModelSlot(NamedTuple):
    """A slot: PSN (-1: never used), children whose contributions are in it, whether it is done, and its words.

    The words are the ranks whose lanes for this PSN they hold, as bits: a sum of the words of several ranks is their
    union, and where two overlap, a contribution was added twice.  What an older PSN left has the bit after the last
    rank's (`ModelFabric.leftover`).
    """

    psn: int
    bitmap: int
    done: bool
    words: int
    empty: bool = False  # all that came is presence: the words are leftovers
    content: int = 0  # children to which the acknowledgement is enough


FREE = ModelSlot(-1, 0, False, 0)


class State(NamedTuple):
    """A state of the system.  Sets of PSNs, ranks and children are bit masks; PSNs count from 0 and never wrap here."""

    received: tuple[int, ...]  # of each rank: results of this epoch, and all PSNs before its start
    had: tuple[int, ...]  # of each rank: results that it has, of any epoch
    acknowledged: tuple[int, ...]  # of each RC sender: the first PSN that it believes its successor lacks
    confirmed: tuple[int, ...]  # of each RC sender: the highest that it has believed so, in any epoch
    flow_expected: tuple[int, ...]  # of each RC rank at its leaf: the next contribution in order
    flow_acknowledged: tuple[int, ...]  # of each RC rank at its leaf: the first PSN its successor has not acknowledged
    told: int  # RC ranks that their leaf has told of a gap which is not filled yet
    starts: tuple[int, ...]  # of each rank: the PSN at which this epoch began
    begun: tuple[int, ...]  # of each rank: PSNs of the operations that it has begun
    leaving: int  # ranks that have asked to leave
    settled: int  # ranks that have reported that they lack nothing
    left: int  # ranks that have left
    replans: int  # times that all switches may still lose their state
    restarts: int  # times that a single switch may still lose its state
    lost: bool  # a switch has lost its state in this epoch, and the ranks do not know yet
    slots: tuple[tuple[ModelSlot, ...], ...]  # of each switch
    sums: tuple[int, ...]  # of each leaf: PSNs whose sum it has sent up, and which may still arrive
    content_sums: tuple[int, ...]  # of each leaf: the same of sums that say that the acknowledgement is enough
    results: tuple[int, ...]  # of each switch: PSNs whose result it has sent down, and which may still arrive
    acknowledgements: tuple[int, ...]  # of each rank, then each leaf: PSNs that it was sent presence for in their place
    old_limits: tuple[int, ...]  # of each rank: PSNs below have been sent in an epoch whose packets still count
    old_received: tuple[int, ...]  # of each rank: PSNs below have been received in such an epoch


def lowest_missing(received: int) -> int:
    """The lowest PSN that is not in a set."""
    return (~received & received + 1).bit_length() - 1


@cache  # explorations ask for few sets, and for each of them in every state
def bits(mask: int) -> tuple[int, ...]:
    """The members of a set, in ascending order."""
    return tuple([i for i in range(mask.bit_length()) if mask >> i & 1])
