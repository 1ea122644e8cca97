# SPDX-License-Identifier: Apache-2.0
"""The bound on connections that have not proven themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netfold.host.mesh.unproven import SPARE, UnprovenLimit


def test_a_flood_from_one_address_drives_out_itself_alone() -> None:
    """Each connection beyond the bound costs the flooding address its oldest, and others keep theirs."""
    limit: UnprovenLimit[str] = UnprovenLimit(2)
    assert limit.most == 2 + SPARE
    assert limit.add("rank", "10.0.0.1", 0.0) is None
    dropped = [limit.add(f"flood {number}", "10.0.0.9", 0.0) for number in range(1000)]
    first = limit.most - 1
    assert dropped == [None] * first + [f"flood {number}" for number in range(1000 - first)]
    assert len(limit) == limit.most
    limit.remove("rank")  # it has proven itself


def test_connections_have_their_time_each() -> None:
    """They expire in the order of their arrival; those that are proven by then do not."""
    limit: UnprovenLimit[int] = UnprovenLimit(2, seconds=5.0)
    assert limit.deadline() is None
    for number in range(4):
        limit.add(number, "10.0.0.1", float(number))
    limit.remove(1)
    assert limit.expired(4.9) == []
    assert limit.expired(7.0) == [0, 2]
    assert limit.deadline() == 8.0
    assert len(limit) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"))))
def test_no_more_than_the_bound_are_ever_kept(steps: list[tuple[int, str]]) -> None:
    """Whatever comes and goes, the bound holds, and every connection is returned once at most."""
    limit: UnprovenLimit[int] = UnprovenLimit(-SPARE + 3, seconds=10.0)
    kept: set[int] = set()
    for now, (what, source) in enumerate(steps):
        if what == 3 and kept:
            limit.remove(kept.pop())
        elif (dropped := limit.add(now, source, float(now))) is not None:
            assert dropped in kept | {now}
            kept = (kept | {now}) - {dropped}
        else:
            kept.add(now)
        for late in limit.expired(now - 0.5):
            kept.remove(late)
        assert len(limit) == len(kept) <= 3
    while (one := limit.drop_one()) is not None:
        kept.remove(one)
    assert not kept
