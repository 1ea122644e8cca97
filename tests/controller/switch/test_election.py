# SPDX-License-Identifier: Apache-2.0
"""Election ids: which are of this fabric, which are higher, and what a controller does that is not primary any more."""

from __future__ import annotations

import pytest

from netfold.controller.switch.election import HIGHEST, Candidacy, Elections, Superseded

NOW = 1_700_000_000_000
OURS, THEIRS = Elections(b"k" * 32, lambda: NOW), Elections(b"x" * 32, lambda: NOW + 5)
LATER = Elections(b"k" * 32, lambda: NOW + 9)


def test_only_the_fabric_key_makes_ids_of_the_fabric() -> None:
    """An id of ours is told by its seal; another key's, one that is changed and plain numbers are strangers'."""
    assert OURS.is_ours(OURS.first())
    assert LATER.is_ours(OURS.above(THEIRS.first()))
    for stranger in (THEIRS.first(), OURS.first() + 1, OURS.first() + (1 << 64), 1, 0, HIGHEST):
        assert not OURS.is_ours(stranger)


def test_an_id_above_another_is_higher_or_the_highest() -> None:
    """Also above an id from the future; above the highest there is none, and the highest is what is left to claim."""
    assert OURS.first() < LATER.first()
    for other in (0, OURS.first(), THEIRS.first(), 1 << 120, (HIGHEST >> 64) - 1 << 64):
        assert OURS.above(other) > other
    assert OURS.above(HIGHEST) == OURS.above(HIGHEST - 1) == HIGHEST


def test_a_stranger_is_outbid() -> None:
    """Whether the controller had the switch before or not; so is one that copies the controller's own id."""
    candidacy = Candidacy(OURS)
    for _ in range(2):
        stranger = candidacy.number + (1 << 70)
        candidacy.lost(stranger, "lost")
        assert candidacy.number > stranger
        own = candidacy.number
        candidacy.lost(own, "in use")
        assert candidacy.number > own
        candidacy.won()


def test_a_later_controller_of_the_fabric_is_yielded_to() -> None:
    """By one that has had the switch; one that starts takes the switch from any other."""
    candidacy, later = Candidacy(OURS), LATER.first()
    candidacy.lost(later, "lost")
    assert candidacy.number > later
    candidacy.won()
    candidacy.lost(later, "an id that is over")
    with pytest.raises(Superseded, match="lost; it is a later controller of this fabric"):
        candidacy.lost(LATER.above(candidacy.number), "lost")
