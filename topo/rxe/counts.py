# SPDX-License-Identifier: Apache-2.0
"""Counts of packets that the RDMA device of a guest has sent, repeated and acknowledged.

The device counts its packets, errors and NAKs (hw_counters), but not data and acknowledgements apart, and no repeats.
So filters of tc count packets on the interface, in both directions: data (SEND and WRITE, opcodes 0x00 to 0x0f) and
acknowledgements (opcode 0x11: ACK, NAK, RNR NAK).  Data sent, less the data of its messages, was sent again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from netfold.topo.rxe.machine import Machine
from netfold.wire.roce import UDP_PORT, Opcode

RDMA_DEVICE: Final = "rxe0"
DIRECTIONS: Final = ("egress", "ingress")
_ACKNOWLEDGE, _DATA = 1, 2
"""The filters' preferences, by which they are found again."""
_BTH: Final = 28
"""Offset of the opcode from the IPv4 header."""


class NicCounts(msgspec.Struct, frozen=True):
    """Packets of one RDMA device."""

    data_sent: int = 0
    acknowledgements_sent: int = 0
    """ACKs, NAKs and RNR NAKs."""
    data_received: int = 0
    acknowledgements_received: int = 0
    naks_received: int = 0
    """NAKs of a missing packet."""
    rnr_received: int = 0
    """RNR NAKs: wait, and send it again."""
    duplicates_received: int = 0
    """Data packets that had already arrived."""
    errors: int = 0
    """Retries that were used up, and packets that could not be sent."""

    def since(self, before: NicCounts) -> NicCounts:
        """The counts between two readings."""
        return NicCounts(*(now - then for now, then in
                           zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)))


def filters(interface: str) -> list[str]:
    """The commands that make the filters."""
    lines = [f"tc qdisc add dev {interface} clsact"]
    for direction in DIRECTIONS:
        for preference, opcode in ((_ACKNOWLEDGE, f"{Opcode.ACKNOWLEDGE:#x} 0xff"), (_DATA, "0x00 0xf0")):
            lines.append(
                f"tc filter add dev {interface} {direction} prio {preference} protocol ip u32 "
                f"match ip protocol 17 0xff match ip dport {UDP_PORT} 0xffff "
                f"match u8 {opcode} at {_BTH} action gact pass"
            )
    return lines


def read(machine: Machine, interface: str) -> NicCounts:
    """The counts of a guest since its start.  Raises GuestFailed."""
    script = [f"tc -s -j filter show dev {interface} {direction}; echo" for direction in DIRECTIONS]
    script.append(f"grep -H . /sys/class/infiniband/{RDMA_DEVICE}/ports/1/hw_counters/*")
    output = machine.execute("\n".join(script), "reading the RDMA device's counters")
    lines = output.split("\n")
    sent, received = (_packets(msgspec.json.decode(line)) for line in lines if line.startswith("["))
    device = {path.rpartition("/")[2]: int(value) for path, _, value in (line.partition(":") for line in lines if
                                                                         line.startswith("/"))}
    return NicCounts(
        sent[_DATA], sent[_ACKNOWLEDGE], received[_DATA], received[_ACKNOWLEDGE], device["rcvd_seq_err"],
        device["rcvd_rnr_err"], device["duplicate_request"],
        device["retry_exceeded_err"] + device["retry_rnr_exceeded_err"] + device["send_err"],
    )


def _packets(shown: list[dict[str, Any]]) -> dict[int, int]:
    """Packets that each filter has counted, by its preference."""
    return {entry["pref"]: entry["options"]["actions"][0]["stats"]["packets"]
            for entry in shown if "actions" in entry.get("options", {})}
