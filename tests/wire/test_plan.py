# SPDX-License-Identifier: Apache-2.0
"""What all plans of a job say alike: compressed once, whole again at every rank."""

from __future__ import annotations

import base64
import zlib

import msgspec
import pytest

from netfold.wire.plan import MOST_BYTES, Peer, Plan, SharedParts, pack, whole

PEERS = [Peer(rank, f"10.0.{rank // 250}.{rank % 250}", f"10.0.{rank // 250}.{rank % 250}:{40000 + 7 * rank % 9999}")
         for rank in range(1023)]
PARTS = SharedParts(PEERS, [[rank] for rank in range(1023)], list(range(1023))[::-1], [])


def plan(shared: str, peers: list[Peer] | None = None) -> Plan:
    """A plan without trees."""
    return Plan("j", 1, 3, 1023, peers or [], [], shared=shared)


def test_a_rank_has_what_all_ranks_have() -> None:
    """In the fields of its plan, from a third of the bytes."""
    packed = pack(PARTS)
    assert whole(plan(packed)) == msgspec.structs.replace(
        plan("", PEERS), machines=PARTS.machines, ring=PARTS.ring)
    assert 3 * len(packed) < len(msgspec.json.encode(PARTS))


def test_a_plan_that_shares_nothing_stays_as_it_is() -> None:
    """Such as one that no controller has made."""
    own = plan("", PEERS)
    assert whole(own) is own


@pytest.mark.parametrize("shared", [
    "no base64!", base64.b64encode(b"no zlib").decode(), base64.b64encode(zlib.compress(b"{}")).decode(),
    pack(PARTS)[:400], base64.b64encode(zlib.compress(bytes(MOST_BYTES + 1))).decode(),
    base64.b64encode(zlib.compress(msgspec.json.encode(PARTS) + b" " * MOST_BYTES)).decode(),
])
def test_what_does_not_decode_is_refused_by_name(shared: str) -> None:
    """Nor does it fill the rank's memory, whatever it would become."""
    with pytest.raises(ValueError, match="plan of job 'j' for rank 3: shared: "):
        whole(plan(shared))
