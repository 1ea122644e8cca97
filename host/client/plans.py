# SPDX-License-Identifier: Apache-2.0
"""Checks a plan before it is followed, and derives from it what a rank needs to know."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from netfold.host.client import addresses
from netfold.host.errors import PlanError
from netfold.wire import roce
from netfold.wire.jobs import MAX_WORLD
from netfold.wire.plan import Peer, Plan


def ring_order(plan: Plan) -> list[int]:
    """Ranks in the order of the ring: the controller's order, else by address, since hosts under one leaf mostly have
    neighbouring addresses."""
    if plan.ring:
        return plan.ring

    def place(peer: Peer) -> tuple[list[int], int]:
        parts = peer.address.split(".")
        return [int(part) for part in parts] if all(part.isdigit() for part in parts) else [], peer.rank

    return [peer.rank for peer in sorted(plan.peers, key=place)]


def fabric_of(plan: Plan) -> str:
    """A checksum of the ranks' addresses and the trees' names: measured figures of links hold for all jobs that have
    the same one."""
    places = [peer.address for peer in sorted(plan.peers, key=lambda peer: peer.rank)]
    return f"{zlib.crc32(repr((places, sorted(tree.name for tree in plan.trees))).encode()):08x}"


def sharing(plan: Plan) -> str:
    """The ranks that share one address, and the address, for error messages."""
    ranks = next(ranks for ranks in plan.machines if len(ranks) > 1)
    return f"ranks {', '.join(map(str, ranks))} have one, {plan.peers[ranks[0]].address}"


def check_plan(plan: Plan) -> None:
    """Raises PlanError where a plan contradicts itself."""

    def refuse(what: str) -> PlanError:
        return PlanError(f"plan of job {plan.job!r} for rank {plan.rank}: {what}")

    if not 0 <= plan.rank < plan.world <= MAX_WORLD:
        raise refuse(f"rank {plan.rank} of world {plan.world}: expected 0 <= rank < world <= {MAX_WORLD}")
    if sorted(peer.rank for peer in plan.peers) != list(range(plan.world)):
        raise refuse(f"peers are ranks {[peer.rank for peer in plan.peers]}: expected each of 0..{plan.world - 1} once")
    if wrong := addresses.problem(plan.peers):
        raise refuse(wrong)
    machines = plan.machines or [[rank] for rank in range(plan.world)]
    if sorted(rank for ranks in machines for rank in ranks) != list(range(plan.world)):
        raise refuse(f"machines are {machines}: expected each of 0..{plan.world - 1} once")
    here = next(ranks for ranks in machines if plan.rank in ranks)
    place, folding = here.index(plan.rank), min(map(len, machines))
    if plan.trees and (plan.inside or place >= folding):
        raise refuse(f"it has trees, and is rank {place} of its machine's {len(here)}, inside={plan.inside}: expected "
                     f"trees of the first {folding} of each machine alone")
    if plan.inside and place < folding:
        raise refuse(f"it folds inside its machine alone, and is rank {place} of its {len(here)}: expected trees, "
                     f"since each machine has {folding} ranks or more")
    if plan.ring and sorted(plan.ring) != list(range(plan.world)):
        raise refuse(f"the ring visits {plan.ring}: expected each of 0..{plan.world - 1} once")
    if plan.places and (len(set(map(len, plan.places))) > 1 or sorted(
            rank for row in plan.places for rank in row) != list(range(plan.world))):
        raise refuse(f"places are {plan.places}: expected rows of one length, with each of 0..{plan.world - 1} once")
    udp_ports = f"{roce.UDP_PORT} or {roce.UDP_PORTS[0]}..{roce.UDP_PORTS[-1]}"
    for peer in plan.peers:
        if not roce.is_udp_port(peer.udp_port):
            raise refuse(f"UDP port {peer.udp_port} of rank {peer.rank}: expected {udp_ports}")
    seen: dict[int, str] = {}
    for tree in plan.trees:
        if not 0 < tree.weight < float("inf"):
            raise refuse(f"tree {tree.name!r} has weight {tree.weight}: expected a positive number")
        if tree.stays and (not plan.round or plan.stand_in or plan.fold_address):
            raise refuse(f"tree {tree.name!r} stays as it is: expected that after a recovery round alone, where "
                         "switches fold, and not of RC ranks")
        for kind, stream in (("data", tree.data), ("agreement", tree.agreement)):
            name = f"tree {tree.name!r}, {kind} stream"
            if stream.slots < 2 or stream.slots & (stream.slots - 1) or stream.slots > 1 << 20:
                raise refuse(f"{name}: {stream.slots} slots: expected a power of two, 2 .. 2^20")
            if not 0 <= stream.psn <= roce.PSN_MASK:
                raise refuse(f"{name}: first PSN {stream.psn}: expected 24 bits")
            if plan.fold_address:  # an RC rank's queue pairs are its NIC's (`Connect`)
                numbers = (stream.qp, stream.peer_qp, stream.source_port, stream.predecessor_port)
                if any(numbers) or plan.verb != "send" or plan.message < 1:
                    raise refuse(
                        f"{name}: queue pairs and ports {numbers}, verb {plan.verb!r}, messages of {plan.message} "
                        "packets: expected zeros, 'send' and 1 or more of an RC rank"
                    )
                continue
            for qp in (stream.qp, stream.peer_qp):
                if not 0 < qp <= 0xFFFFFF or qp % roce.QUEUE_PAIRS:
                    raise refuse(f"{name}: queue pair {qp}: expected a multiple of {roce.QUEUE_PAIRS} below 2^24")
            if not 0 < stream.source_port <= 0xFFFF or roce.is_udp_port(stream.source_port):
                raise refuse(f"{name}: source port {stream.source_port}: expected 1 .. 65535, not {udp_ports}")
            if not 0 < stream.predecessor_port <= 0xFFFF:
                raise refuse(f"{name}: source port {stream.predecessor_port} of results: expected 1 .. 65535")
            if not roce.is_udp_port(stream.peer_port):
                raise refuse(f"{name}: UDP port {stream.peer_port} of the next rank: expected {udp_ports}")
            if stream.qp in seen:
                raise refuse(f"{name}: queue pair {stream.qp} is also that of {seen[stream.qp]}")
            seen[stream.qp] = name

def path_reason(plan: Plan, rail: str, helpers: Sequence[int]) -> str:
    """Why reductions of this plan are carried as they are, in words for ``Communicator.explain`` and errors."""
    if plan.world == 1:
        return "this job has one rank"
    if rail in ("tcp", "roce"):
        return f"asked for by rail={rail!r}"
    if helpers:
        return f"ranks {list(helpers)} help"
    if plan.inside:
        return "the controller planned trees for this job, over which the ranks before this one on its machine fold"
    if plan.trees:
        return f"the controller planned {len(plan.trees)} tree(s) for this job: {', '.join(t.name for t in plan.trees)}"
    return f"nothing folds for this job: {plan.reason or 'the controller gave no reason'}"
