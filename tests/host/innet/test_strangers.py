# SPDX-License-Identifier: Apache-2.0
"""Packets for a rank's queue pairs that its own first switch has not made: they are no results, whatever they say."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.host.innet.abi import DATA
from netfold.host.innet.core import Core, result_origin
from netfold.host.native.library import Origin
from netfold.wire import roce
from support.models.slot_model import address, as_result, plan_trees


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
    core = Core(address(0), 2, plan_trees(0, 2))
    stream = core.trees[0].data
    lanes = np.ones(roce.LANES, np.int32)
    out = np.zeros_like(lanes)
    core.start(1, lanes, out, 1.0, 0)
    (packet,) = [packet for sent in iter(lambda: core.send(0), None) for packet in sent.packets()
                 if roce.BTH.unpack_from(packet)[3] & ~7 == stream.peer_qp]
    opcode, flags, pkey, qp, psn = roce.BTH.unpack_from(packet)
    head = roce.BTH.pack(opcode, flags, pkey, stream.qp + (qp & 7), psn)
    assert stream.predecessor == address(1)
    origin = Origin.of(address(source), stream.predecessor_port + port, result_origin(stream).ttl + ttl)
    core.receive(as_result(head + packet[roce.BTH_BYTES :], origin, core.address), 1, origin)
    assert (core.refused()[0], core.unfolded()) == counted
    assert core.state(0, DATA).counters.received == (counted == (0, 0))
