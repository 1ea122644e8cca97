# SPDX-License-Identifier: Apache-2.0
"""Addresses at which ranks listen: ADDRESS:PORT, as others can connect to it."""

from __future__ import annotations

import ipaddress
import re

_LISTENER = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}):(\d{1,5})", re.ASCII)


def parse(listener: str) -> tuple[ipaddress.IPv4Address, int]:
    """Address and port of a TCP listener.  Raises ValueError for what nobody can connect to; the message is a clause,
    such as "got 0.0.0.0, which is no machine's address"."""
    match = _LISTENER.fullmatch(listener)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError(f"expected ADDRESS:PORT, an IPv4 address and a port within 1..65535, got {listener!r:.80}")
    return parse_address(match[1]), int(match[2])


def parse_address(text: str) -> ipaddress.IPv4Address:
    """An IPv4 address that one machine may have.  Raises ValueError, as `parse`."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"expected an IPv4 address, got {text!r:.80}") from None
    if address.is_multicast:
        raise ValueError(f"got {address}, a multicast address")
    if address.is_reserved or address in ipaddress.IPv4Network("0.0.0.0/8"):
        raise ValueError(f"got {address}, which is no machine's address")
    return address
