# SPDX-License-Identifier: GPL-2.0-only
"""Scapy layers that scapy's own RoCE module lacks: RETH and immediate data.

``import support.models.scapy_roce`` makes ``Ether(frame)`` dissect every packet that NetFold sends, ICRC included;
``BTH`` comes from scapy.contrib.roce, which also computes the ICRC when a packet is built.  Scapy is GPL-2.0-only, and
so is this file: no distribution carries it.
"""

from __future__ import annotations

from scapy.contrib.roce import BTH
from scapy.fields import IntField, LongField, XIntField
from scapy.packet import Packet, bind_layers

from netfold.wire.roce import Opcode

WRITE_LAST_WITH_IMMEDIATE = 0x09


class RETH(Packet):
    """RDMA extended transport header: address, remote key, length of the whole message in bytes."""

    name = "RETH"
    fields_desc = [LongField("address", 0), XIntField("rkey", 0), IntField("length", 0)]  # noqa: RUF012


class ImmDt(Packet):
    """Four bytes of immediate data."""

    name = "ImmDt"
    fields_desc = [XIntField("data", 0)]  # noqa: RUF012


for _opcode in (Opcode.WRITE_FIRST, Opcode.WRITE_ONLY):
    bind_layers(BTH, RETH, opcode=int(_opcode))
bind_layers(BTH, ImmDt, opcode=WRITE_LAST_WITH_IMMEDIATE)
