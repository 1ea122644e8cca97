# SPDX-License-Identifier: Apache-2.0
"""Calls of a fabric's controller from a thread of its launcher, which has no event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import grpc
import msgspec

from netfold.rpc.channel import channel
from netfold.topo.faults.board import FaultRefused
from netfold.topo.faults.targets import FaultyFabric
from netfold.wire import operator

SECONDS: Final = 10.0

Reply = TypeVar("Reply")


def set_faults(network: FaultyFabric, links: Sequence[operator.LinkFaults]) -> None:
    """Have the switches inject these faults and no others, beside those of the fabric file.  Raises FaultRefused."""
    _call(network, "Faults", operator.SetFaults(list(links)), operator.FaultsSet, SECONDS)


def connections(network: FaultyFabric) -> list[operator.QueuePairUse]:
    """The meaning of queue pairs on the links of jobs' trees; empty if no controller answers."""
    try:
        return _call(network, "Connections", operator.AskConnections(), operator.Connections, 2.0).connections
    except FaultRefused:
        return []


def _call(network: FaultyFabric, method: str, request: msgspec.Struct, answer: type[Reply], seconds: float) -> Reply:
    with channel(network.jobs) as opened:
        call: Any = opened.unary_unary(f"/{operator.SERVICE}/{method}", bytes, bytes)
        try:
            return msgspec.json.decode(call(msgspec.json.encode(request), timeout=seconds), type=answer)
        except grpc.RpcError as error:
            raise FaultRefused(f"the controller of {network.fabric.name} says: {error.details()}", conflict=True) \
                from error
