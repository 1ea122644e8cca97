# SPDX-License-Identifier: Apache-2.0
"""Election ids: which are of this fabric, which are higher, and to which a controller yields that is not primary any
more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from finsy.proto import p4r, rpc_code

from netfold.controller.switch.arbitration import bid, message_of
from netfold.controller.switch.election import HIGHEST, Candidacy, Elections, Superseded

NOW = 1_700_000_000_000
KEY, LEAF, SPINE = b"k" * 32, 1, 2
OURS, THEIRS = Elections(KEY, LEAF, lambda: NOW), Elections(b"x" * 32, LEAF, lambda: NOW + 5)
LATER = Elections(KEY, LEAF, lambda: NOW + 9)
CLOCK = 1 << 84
"""The amount that one millisecond adds to an election id."""


def test_only_the_fabric_key_makes_ids_of_the_fabric_and_of_one_switch() -> None:
    """An id of ours is told by its seal; another key's, another switch's, one that is changed and plain numbers are
    strangers'."""
    first = OURS.above(0)
    assert OURS.is_ours(first)
    assert LATER.is_ours(OURS.above(THEIRS.above(0)))
    elsewhere = Elections(KEY, SPINE, lambda: NOW).above(0)
    for stranger in (THEIRS.above(0), elsewhere, first + CLOCK, first ^ 1 << 42, 1, 0, HIGHEST):
        assert not OURS.is_ours(stranger)


def test_an_id_above_another_is_higher_or_the_highest() -> None:
    """Also above an id from the future; above the highest there is none, and the highest is what is left to claim."""
    assert OURS.above(0) < LATER.above(0)
    for other in (0, OURS.above(0), THEIRS.above(0), 1 << 120, HIGHEST - CLOCK):
        assert OURS.above(other) > other
    assert OURS.above(HIGHEST) == OURS.above(HIGHEST - 1) == HIGHEST


def test_a_client_that_only_looks_is_below_any_controller_and_no_stranger() -> None:
    """BMv2 makes a standby primary while there is no controller: the next one pushes no program for that."""
    looking = OURS.looking()
    assert 0 < looking < 1 << 63 < OURS.above(0)
    assert OURS.is_looking(looking)
    assert not OURS.is_ours(looking)
    elsewhere = Elections(KEY, SPINE, lambda: NOW).looking()
    for stranger in (THEIRS.looking(), elsewhere, looking ^ 1, looking + (1 << 42), looking << 64, OURS.above(0), 1, 0):
        assert not OURS.is_looking(stranger)
    candidacy = Candidacy(OURS)
    assert candidacy.claim(looking) > looking
    assert candidacy.trusts(looking)
    assert not candidacy.others


def test_only_an_id_that_covers_another_one_succeeds_it() -> None:
    """The same millisecond's id over another one does not, nor does that of another switch or key."""
    before = OURS.above(0)
    after = LATER.above(before)
    assert LATER.succeeds(after, before)
    for other in (0, before + 1, after):
        assert not LATER.succeeds(after, other)
    for number in (after ^ 1, THEIRS.above(before), Elections(KEY, SPINE, lambda: NOW).above(before), HIGHEST):
        assert not LATER.succeeds(number, before)


def test_a_stranger_is_outbid() -> None:
    """Again and again, and so is one that repeats the controller's own id."""
    candidacy = Candidacy(OURS)
    candidacy.claim(0)
    for _ in range(2):
        stranger = candidacy.number + (1 << 110)
        candidacy.lost(stranger, "lost")
        assert candidacy.number > stranger
        own = candidacy.number
        candidacy.lost(own, "in use")
        assert candidacy.number > own


def test_a_later_controller_of_the_fabric_is_yielded_to() -> None:
    """It looks which id is the highest and covers that; the one that starts takes the switch from any other, and so
    does one whose clock is behind."""
    first = Candidacy(OURS)
    first.claim(0)
    for elections in (LATER, Elections(KEY, LEAF, lambda: NOW - 10**9)):
        later = Candidacy(elections)
        assert later.claim(first.number) > first.number
        assert not later.others
        with pytest.raises(Superseded, match="lost; it is a later controller of this fabric"):
            first.lost(later.number, "lost")


def test_a_successor_that_a_stranger_outbids_meanwhile_is_still_yielded_to() -> None:
    """It covers the id that the first controller had when it looked."""
    first = Candidacy(OURS)
    looked_at = first.claim(0)
    first.lost(looked_at + CLOCK, "lost to a stranger")
    assert first.yields_to(LATER.above(looked_at))


def test_a_successor_covers_the_id_that_it_has_watched_where_the_switch_forgets_it() -> None:
    """BMv2 tells no id once its primary has gone; the first controller may be cut off only."""
    first = Candidacy(OURS)
    first.claim(0)
    assert first.yields_to(Candidacy(LATER, first.number).claim(0))
    assert not first.yields_to(Candidacy(LATER).claim(0))


def test_no_replay_of_an_id_makes_a_controller_yield() -> None:
    """Not one of its own, of an earlier controller, of a successor that another controller had, of another switch, nor
    the highest of all, though a stranger knows them all, and the switch forgets them when it is started anew."""
    elder = Candidacy(OURS)
    known = {elder.claim(0)}
    elder.lost(elder.number + (1 << 110), "outbid, by a clock of years")
    known.add(elder.number)
    known.add(Candidacy(LATER).claim(elder.number))
    controller = Candidacy(LATER)
    known |= {controller.claim(0), HIGHEST}
    spine = Candidacy(Elections(KEY, SPINE, lambda: NOW))
    spine.claim(0)
    spine.lost(spine.number + (1 << 110), "outbid")
    known.add(spine.number)
    for replayed in known:
        assert not controller.yields_to(replayed)
        before = controller.number
        controller.lost(replayed, "a stranger has it")
        assert controller.number >= max(before, replayed)


def test_after_a_stranger_the_program_counts_as_changed() -> None:
    """The last primary that a starting controller sees leaves the switch as it is, if it was of this fabric."""
    trusted, other = Candidacy(OURS), Candidacy(OURS)
    trusted.claim(LATER.above(0))
    other.claim(THEIRS.above(0))
    assert (len(trusted.others), len(other.others)) == (0, 1)


def test_another_controller_of_the_fabric_is_trusted_and_a_stranger_is_not() -> None:
    """Nor is one that repeats an id of this controller."""
    candidacy = Candidacy(OURS)
    mine = candidacy.claim(0)
    assert candidacy.trusts(LATER.above(0))
    assert not candidacy.trusts(THEIRS.above(0))
    assert not candidacy.trusts(mine)


class Told:
    """A stream on which a switch names primaries of these ids, none of them as this client's success."""

    def __init__(self, *ids: int) -> None:
        self._ids = iter(ids)

    async def write(self, request: Any) -> None:
        """The bid."""

    async def read(self) -> p4r.StreamMessageResponse:
        """The next answer; a client that asks for more than there are waits for what never comes."""
        message = p4r.StreamMessageResponse()
        message.arbitration.election_id.CopyFrom(message_of(next(self._ids)))
        message.arbitration.status.code = rpc_code.ALREADY_EXISTS
        return message


@pytest.mark.parametrize("higher", [7, 8, 1 << 64])
def test_the_answer_to_a_bid_is_the_first_that_is_not_about_an_earlier_one(higher: int) -> None:
    """A switch tells of lower ids as long as it has not read the bid; then of the bid itself or a higher one."""
    answer = asyncio.run(bid(Told(5, 6, higher), 1, 7))
    assert answer.election_id == message_of(higher)
