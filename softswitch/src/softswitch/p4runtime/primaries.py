# SPDX-License-Identifier: Apache-2.0
"""Which clients may be primary, and so write: by the name in their certificate, their address, or their unix socket.

    cert:NAME          a client whose certificate, which the server's CA has signed, has this common name or DNS name
    10.0.0.5, fd00::/8 a client with this IP address, or an address of this network
    unix               a client at a unix socket of the server, which only the socket's owner may open

Without any of these, whoever reaches the server may.  A client that may not be primary is served as a backup: it reads.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

_NAMES = ("x509_common_name", "x509_subject_alternative_name")
"""Properties of gRPC's authentication context that are names of the client's certificate."""


class Primaries:
    """The rules for clients that may be primary."""

    def __init__(self, rules: Iterable[str] = ()) -> None:
        """Raises ValueError for a rule of another form."""
        self.rules = tuple(rules)
        self._unix = "unix" in self.rules
        self._names = {rule.removeprefix("cert:") for rule in self.rules if rule.startswith("cert:")}
        self._networks = []
        for rule in self.rules:
            if rule == "unix" or (rule.startswith("cert:") and rule != "cert:"):
                continue
            try:
                self._networks.append(ipaddress.ip_network(rule))
            except ValueError:
                raise ValueError(f"{rule}: expected cert:NAME, an IP address or network, or unix") from None

    @property
    def by_certificate(self) -> bool:
        """True if a rule needs certificates of clients."""
        return bool(self._names)

    def allow(self, peer: str, authentication: Mapping[str, Sequence[bytes]]) -> bool:
        """True if a client may be primary.

        peer            its address as gRPC writes it: ipv4:10.0.0.5:4711, ipv6:%5Bfd00::1%5D:4711, unix:
        authentication  gRPC's authentication context
        """
        if not self.rules:
            return True
        if any(name.decode(errors="replace") in self._names for key in _NAMES for name in authentication.get(key, ())):
            return True
        kind, _, rest = peer.partition(":")
        if kind == "unix":
            return self._unix
        try:
            address = ipaddress.ip_address(urllib.parse.unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def describe(peer: str, authentication: Mapping[str, Sequence[bytes]]) -> str:
    """A client in words: its address, and the common name of its certificate where it has one."""
    names = authentication.get("x509_common_name", ())
    address = urllib.parse.unquote(peer)
    return f"{address} (certificate {names[0].decode(errors='replace')!r})" if names else address
