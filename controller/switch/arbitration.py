# SPDX-License-Identifier: Apache-2.0
"""Arbitration with a switch: who is its primary client, and by which election id (P4Runtime specification, section 5).

Every client of a switch arbitrates, and is told who is primary now, and whenever that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from finsy.proto import p4r, rpc_code

EOF: Final[object] = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


def number_of(message: p4r.Uint128) -> int:
    """The number that an election id is."""
    return message.high << 64 | message.low


def message_of(number: int) -> p4r.Uint128:
    """The message of an election id."""
    return p4r.Uint128(high=number >> 64, low=number & (1 << 64) - 1)


async def look(stream: Any, device_id: int, mine: int, claim: Callable[[int], int]) -> int:
    """Ask the switch for the highest election id that it has had, by an id that takes it from no controller, and have
    ``claim`` make one above it.  Raises AioRpcError and ConnectionError."""
    told = await _answer_to(stream, device_id, mine)
    return claim(0 if told.status.code == rpc_code.OK else number_of(told.election_id))


async def bid(stream: Any, device_id: int, election_id: int) -> p4r.MasterArbitrationUpdate:
    """Arbitrate with an election id.  Returns the switch's answer.  Raises AioRpcError and ConnectionError."""
    answer = await _answer_to(stream, device_id, election_id)
    while answer.status.code != rpc_code.OK and 0 < number_of(answer.election_id) < election_id:
        answer = await _next(stream)  # the switch said that of an earlier id of ours
    return answer


async def _answer_to(stream: Any, device_id: int, election_id: int) -> p4r.MasterArbitrationUpdate:
    mine = p4r.MasterArbitrationUpdate(device_id=device_id, election_id=message_of(election_id))
    await stream.write(p4r.StreamMessageRequest(arbitration=mine))
    return await _next(stream)


async def _next(stream: Any) -> p4r.MasterArbitrationUpdate:
    answer: Any = await stream.read()
    if answer is EOF or not answer.HasField("arbitration"):
        raise ConnectionError(f"expected an answer to arbitration, got {answer}")
    told: p4r.MasterArbitrationUpdate = answer.arbitration
    return told
