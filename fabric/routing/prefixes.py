# SPDX-License-Identifier: Apache-2.0
"""The longest IPv4 prefixes that are enough to tell the addresses of some owners from each other's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from netfold.fabric.graph import Fabric, ip_number

Owner = TypeVar("Owner", bound=Hashable)

Prefix = tuple[int, int]
"""Address, with zeros behind the prefix, and length in bits."""


def prefixes_of(fabric: Fabric, owner_of: Mapping[str, str]) -> dict[str, list[Prefix]]:
    """Prefixes of each owner's hosts: of their own addresses, and of their fold addresses.

    owner_of  host -> its leaf, or what else it belongs to
    """
    found: dict[str, list[Prefix]] = defaultdict(list)
    for addresses in ([host.address for host in fabric.hosts], fabric.fold_addresses()):
        for leaf, some in prefixes({ip_number(address): owner_of[host.name] for host, address in
                                    zip(fabric.hosts, addresses, strict=True)
                                    if address and host.name in owner_of}).items():
            found[leaf] += some
    return dict(found)


def prefixes(owners: Mapping[int, Owner]) -> dict[Owner, list[Prefix]]:
    """As few prefixes as hold all addresses of each owner and none of another, each as long as it can be.

    owners  address, as a number of 32 bits -> whose it is
    """
    found: dict[Owner, list[Prefix]] = defaultdict(list)
    addresses = sorted(owners)
    pending = [(0, len(addresses))] if addresses else []
    while pending:
        first, after = pending.pop()
        low, high = addresses[first], addresses[after - 1]
        bits = (low ^ high).bit_length()  # in which they differ
        if len({owners[address] for address in addresses[first:after]}) == 1:
            found[owners[low]].append((low >> bits << bits, 32 - bits))
        else:
            middle = first + _below(addresses[first:after], high >> bits - 1 << bits - 1)
            pending += [(middle, after), (first, middle)]
    return dict(found)


def _below(addresses: Sequence[int], bound: int) -> int:
    """How many of these addresses, in order, lie below another one."""
    return next(place for place, address in enumerate(addresses) if address >= bound)
