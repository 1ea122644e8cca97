# SPDX-License-Identifier: Apache-2.0
"""Checks whether all ranks of a plan can reach each other by its addresses.

Every rank has the same list, so all hear of a wrong address at the same time, before the first connection: the rank
whose address it is would wait for the others, who connect to something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address

from netfold.host.environment import ADDRESS_VARIABLE, UNKNOWN
from netfold.wire import listeners
from netfold.wire.plan import Peer

_ONE_MACHINE = "a loopback address, which only its own machine reaches"
_ONE_LINK = "a link-local address, which only its own link reaches"


def problem(peers: Sequence[Peer], machines: Sequence[str] = ()) -> str:
    """Why not all ranks can connect to each other: the ranks, what was expected, and what to set.  Empty where nothing
    is wrong that can be seen from the addresses.

    machines  of each peer, a name of the network that its loopback addresses are in; none: nobody has said
    """
    if len(peers) < 2:
        return ""
    places: dict[int, IPv4Address] = {}
    taken: dict[str, int] = {}
    for peer in peers:
        try:
            listeners.parse_address(peer.address)
            places[peer.rank], _ = listeners.parse(peer.tcp)
        except ValueError as error:
            return f"rank {peer.rank}, at {peer.address!r:.80} and {peer.tcp!r:.80}: {error}; {_remedy(peer.rank)}"
        if (other := taken.setdefault(peer.tcp, peer.rank)) != peer.rank:
            return f"ranks {other} and {peer.rank} both listen at {peer.tcp}: {_remedy(peer.rank)}"
    known = bool(machines) and UNKNOWN not in machines
    kinds = {_ONE_LINK: [rank for rank, address in places.items() if address.is_link_local]}
    if not known:  # else a loopback address is right where all ranks are on its machine
        kinds[_ONE_MACHINE] = [rank for rank, address in places.items() if address.is_loopback]
    for kind, inside in kinds.items():
        outside = [rank for rank in places if rank not in inside]
        if inside and outside:
            return _mixed(inside[0], kind, outside[0], places)
    return _across(places, dict(zip(places, machines, strict=True))) if known else ""


def _across(places: Mapping[int, IPv4Address], machines: Mapping[int, str]) -> str:
    """The fault of addresses that mean different machines to different ranks; empty: there is none."""
    for rank, address in places.items():
        for other in places:
            if machines[other] == machines[rank] or other < rank:
                continue
            if address.is_loopback:
                return _mixed(rank, _ONE_MACHINE, other, places)
            if address == places[other]:
                return (f"ranks {rank} and {other} have one address, {address}, on different machines: "
                        f"{_remedy(rank, other)}")
    return ""


def _mixed(rank: int, kind: str, other: int, places: Mapping[int, IPv4Address]) -> str:
    return (f"rank {rank} is at {places[rank]}, {kind}, and rank {other} elsewhere, at {places[other]}: "
            f"{_remedy(rank)}")


def _remedy(*ranks: int) -> str:
    where = " and ".join(f"rank {rank}" for rank in ranks)
    return (f"set {ADDRESS_VARIABLE} of {where} to the address that the other ranks reach (without it, the address "
            "comes from the way to MASTER_ADDR or the controller, and /etc/hosts may give a machine's own name a "
            "loopback address)")
