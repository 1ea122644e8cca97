# SPDX-License-Identifier: Apache-2.0
"""Packets for a rank's queue pairs that its own first switch has not made: they are no results, whatever they say."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.host.innet.abi import DATA
from netfold.host.innet.core import Core, result_origin
from netfold.host.native.library import Origin
from netfold.wire import roce
from netfold.wire.plan import RankStream
from support.models.slot_model import address, as_result, plan_trees


def begun() -> tuple[Core, RankStream, bytes]:
    """A rank of two that has sent the one packet of its data, that stream, and the packet's result, but for the ICRC.
    """
    core = Core(address(0), 2, plan_trees(0, 2))
    stream = core.trees[0].data
    lanes = np.ones(roce.LANES, np.int32)
    core.start(1, lanes, np.zeros_like(lanes), 1.0, 0)
    (packet,) = [packet for sent in iter(lambda: core.send(0), None) for packet in sent.packets()
                 if roce.BTH.unpack_from(packet)[3] & ~7 == stream.peer_qp]
    opcode, flags, pkey, qp, psn = roce.BTH.unpack_from(packet)
    return core, stream, roce.BTH.pack(opcode, flags, pkey, stream.qp + (qp & 7), psn) + packet[roce.BTH_BYTES :]


@pytest.mark.parametrize(("source", "port", "ttl", "counted"), [
    (2, 0, 0, (1, 0)),
    (1, 1, 0, (1, 0)),
    (1, 0, -1, (0, 1)),
    (1, 0, 0, (0, 0)),
], ids=["another host", "another user of the rank's host", "routed", "the switch"])
def test_a_result_counts_from_the_port_of_the_rank_before_at_its_address_alone(
    source: int, port: int, ttl: int, counted: tuple[int, int]
) -> None:
    """A packet with the right queue pair, PSN, headers and ICRC, but from elsewhere, is dropped and counted."""
    core, stream, result = begun()
    assert stream.predecessor == address(1)
    origin = Origin.of(address(source), stream.predecessor_port + port, result_origin(stream).ttl + ttl)
    core.receive(as_result(result, origin, core.address), 1, origin)
    assert (core.refused()[0], core.unfolded()) == counted
    assert core.state(0, DATA).counters.received == (counted == (0, 0))


@pytest.mark.parametrize("change", [0, 1, 2, 4])
def test_a_result_of_another_operation_is_none_of_this_ranks(change: int) -> None:
    """The lowest bits of a queue pair say what was made of the lanes: only what this rank has asked for counts."""
    core, stream, result = begun()
    opcode, flags, pkey, qp, psn = roce.BTH.unpack_from(result)
    other = roce.BTH.pack(opcode, flags, pkey, qp ^ change, psn) + result[roce.BTH_BYTES :]
    core.receive(as_result(other, result_origin(stream), core.address), 1, result_origin(stream))
    assert (core.foreign(), core.state(0, DATA).una_psn - stream.psn) == ((1, 0) if change else (0, 1))
