# SPDX-License-Identifier: Apache-2.0
"""Plans that a rank refuses before it opens a socket."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from netfold.host.client import membership
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan
from netfold.host.errors import PlanError
from netfold.wire.jobs import AllOpened
from netfold.wire.plan import Peer, Plan, RankStream, RankTree, Secret


def plan(**changes: Any) -> Plan:
    """A valid plan of rank 0 of 2, with changes to its data stream."""
    sound: dict[str, Any] = {"peer": "127.0.0.2", "peer_qp": 8, "qp": 16, "source_port": 50000, "psn": 0, "slots": 64,
                             "predecessor": "127.0.0.2", "predecessor_port": 50000}
    weight, stays = changes.pop("weight", 1.0), changes.pop("stays", False)
    tree = RankTree("t", weight, RankStream(**{**sound, **changes}), RankStream(**{**sound, "qp": 24}), stays)
    return Plan("j", 1, 0, 2, [Peer(0, "10.0.0.1", "10.0.0.1:1"), Peer(1, "10.0.0.2", "10.0.0.2:1")], [tree])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 65}, "65 slots: expected a power of two"),
        ({"slots": 1}, "1 slots"),
        ({"psn": 1 << 24}, "first PSN 16777216"),
        ({"qp": 0}, "queue pair 0"),
        ({"peer_qp": 1 << 24}, "queue pair 16777216"),
        ({"qp": 12}, "queue pair 12: expected a multiple of 8"),
        ({"qp": 24}, "queue pair 24 is also"),
        ({"source_port": 4791}, "source port 4791"),
        ({"weight": 0.0}, "weight 0.0"),
        ({"stays": True}, "tree 't' stays as it is: expected that after a recovery round alone"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(changes: dict[str, Any], words: str) -> None:
    """Each field is checked and named before a socket is opened."""
    check_plan(plan())
    with pytest.raises(PlanError, match=words):
        check_plan(plan(**changes))


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_plan_for_no_rank_of_its_world_is_refused(rank: int) -> None:
    """By its number, before anything is looked up by it."""
    with pytest.raises(PlanError, match=f"rank {rank} of world 2: expected 0 <= rank < world"):
        check_plan(msgspec.structs.replace(plan(), rank=rank))


def test_a_rank_goes_on_by_the_ticket_of_the_job_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the answer that others cannot fold comes a ticket without trees, by which the next controller knows the
    job; an answer without one leaves the plan as it is."""
    answers = [AllOpened({1: "no port"}, Secret("b" * 64)), AllOpened({}, Secret())]
    monkeypatch.setattr(membership, "FoldClient", lambda client: Mock(opened=lambda *asked: answers.pop(0)))
    member = Membership(msgspec.structs.replace(plan(), ticket=Secret("a" * 64)), Mock(spec=JobClient))
    assert member.opened("", 1.0) == {1: "no port"}
    assert member.plan.ticket == Secret("b" * 64)
    assert member.opened("", 1.0) == {}
    assert member.plan.ticket == Secret("b" * 64)
