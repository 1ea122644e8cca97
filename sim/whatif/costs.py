# SPDX-License-Identifier: Apache-2.0
"""The costs of packets and processors, in addition to a collective's bytes.

Processor seconds are those that the ranks of an allreduce of 64 MiB took for a GB at 1 Gb/s, 4 ranks, divided by the
bytes that each sent (docs/torch.md, "Tensors on an accelerator"): they matter where links carry several Gb/s.  A rank
has one core for them, beside those that compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TCP_SECONDS: Final = 1.24e-9 / 1.5
"""Processor seconds of a rank for a byte that it sends over TCP and the one that it receives; gloo sends 1.5 M."""
LANE_SECONDS: Final = {32: 1.28e-9, 16: 2 * 0.62e-9, 8: 4 * 0.41e-9}
"""The same for a byte of lanes, which are made of floats and turned into floats again, by their bits."""
FOLD_HEADER: Final = 58
"""Bytes around the payload of a folded packet: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4."""
ETHERNET, TCP_HEADER = 14, 52
"""Bytes before an IP packet, and those of IPv4 and TCP with its time stamps in it."""


@dataclass(frozen=True)
class HostCosts:
    """The costs of hosts and packets.  Raises ValueError for impossible values."""

    path_mtu: int
    """Payload bytes of a folded packet."""
    link_mtu: int
    """Bytes of an IP packet."""
    message: float = 25e-6
    """Seconds that a message costs beside its bytes, with the software of both ends: that of `netfold sim smp` for
    Ethernet of 1 Gb/s."""
    memory: float = 16e9
    """Bit/s between ranks of one machine, as `netfold sim smp` has it."""

    def __post_init__(self) -> None:
        if self.path_mtu < 1 or self.link_mtu <= TCP_HEADER:
            raise ValueError(f"packets of {self.path_mtu} bytes on links of MTU {self.link_mtu}: expected 1 and "
                             f"{TCP_HEADER + 1} or more")
        if not (0 <= self.message < 60 and self.memory > 0):
            raise ValueError(f"{self.message:g} s a message, {self.memory:g} bit/s of memory: expected 0 to 60 s, and "
                             "more than 0")

    @property
    def fold_bytes(self) -> float:
        """Bytes on a link for a byte of lanes."""
        return (self.path_mtu + FOLD_HEADER) / self.path_mtu

    @property
    def tcp_bytes(self) -> float:
        """Bytes on a link for a byte of a message."""
        return (self.link_mtu + ETHERNET) / (self.link_mtu - TCP_HEADER)
