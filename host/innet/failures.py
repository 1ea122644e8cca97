# SPDX-License-Identifier: Apache-2.0
"""The errors of an operation that has failed in the network: what the rank's fold knows of it, in words."""

from __future__ import annotations

import os
from collections.abc import Sequence

from netfold.host.errors import CollectiveTimeout, RankMismatch
from netfold.host.innet import abi
from netfold.host.innet.abi import AGREEMENT, DATA, Failure, StreamState
from netfold.host.innet.core import Core
from netfold.host.innet.packet_link import PacketLink
from netfold.host.mesh.mesh import ranks
from netfold.wire import roce
from netfold.wire.jobs import MissingContributions
from netfold.wire.plan import RankTree


def timed_out(
    who: str, seconds: float, missing: MissingContributions, core: Core, link: PacketLink, trees: Sequence[RankTree]
) -> CollectiveTimeout:
    """The error of an operation without any new result for so long.

    who      job, rank and operation
    missing  what the controller says of the slots that are waited for
    """
    lines = [
        f"{who}: no result from the network for {seconds:g} s: "
        + (f"{ranks(missing.ranks)} gone, stopped, or never called this operation" if missing.ranks else
           "a rank is gone, stopped, or never called this operation, or a switch of a tree is gone"),
        *(f"  {why}" for why in missing.why),
    ]
    for index, tree in enumerate(trees):
        for kind, label in ((AGREEMENT, "exponents"), (DATA, "sums")):
            lines.append(f"  tree {tree.name}, {label}: {_stands(core.state(index, kind))}")
    count, code = link.transient_errors()
    if count:
        lines.append(f"  the kernel refused packets {count} times, last with: {os.strerror(code)}")
    if core.unfolded():
        lines.append(f"  {core.unfolded()} packets came from the rank before as it sent them: a switch has no "
                     "entries of this job")
    refused, last = core.refused()
    if refused:
        lines.append(f"  {refused} packets for its queue pairs came from elsewhere, the last one from {last}; they "
                     "were dropped")
    if core.corrupt():
        lines.append(f"  {core.corrupt()} results had a wrong ICRC, so that they changed on the way from this rank's "
                     "switch; they were dropped")
    if core.foreign():
        lines.append(f"  {core.foreign()} packets came for queue pairs that this rank does not have")
    lines.append(f"  expected: every rank within the timeout of {seconds:g} s; look at `netfold stall`, or give a "
                 "longer timeout=")
    return CollectiveTimeout("\n".join(lines))


def disagreed(who: str, failure: Failure, trees: Sequence[RankTree]) -> RankMismatch:
    """The error of ranks that did not call the same operation.

    who  job, rank and operation
    """
    who = f"{who}, tree {trees[failure.tree].name}"
    todo = "call the same operations in the same order on every rank, then join anew"
    if failure.error == abi.SIGNATURES_DIFFER:
        apart = [
            f"{name} {abi.show(name, low)} .. {abi.show(name, high)}"
            for name, low, high in zip(abi.FIELDS, failure.low, failure.high, strict=True)
            if low != high
        ]
        return RankMismatch(f"{who}: the ranks disagree; over all ranks: {', '.join(apart)}; {todo}")
    return RankMismatch(
        f"{who}: the ranks disagree at PSN {failure.psn}: expected {_header(failure, 'expected')}, "
        f"got {_header(failure, 'got')}; {todo}"
    )


def _stands(stream: StreamState) -> str:
    """Where a stream of the operation stands."""
    if stream.packets == 0:
        return "nothing to fold"
    if stream.results == stream.packets:
        return f"all {stream.packets} results in"
    counters = stream.counters
    return (
        f"{stream.results} of {stream.packets} results in, {stream.sent_ahead} sent, waiting for PSN {stream.una_psn}, "
        f"{counters.retransmitted} retransmissions, {counters.asks} asks and {counters.timeouts} time-outs so far"
    )


def _header(failure: Failure, side: str) -> str:
    """The header of a packet that ranks disagree about: the ``expected`` one, or the one that was ``got``."""
    opcode = roce.Opcode(getattr(failure, f"{side}_opcode"))
    if not opcode.has_reth:
        return opcode.name
    address = getattr(failure, f"{side}_address")
    length = getattr(failure, f"{side}_length")
    return f"{opcode.name} of operation {address >> 32}, offset {address & 0xFFFFFFFF}, {length} bytes"
