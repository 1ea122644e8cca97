# SPDX-License-Identifier: Apache-2.0
"""Notices for controllers, on their streams: ports that go down or come back, and packet-ins that were lost.

P4Runtime has no message for these (gNMI has one for ports); `StreamMessageResponse.other` is meant for extensions
(16.6).  It holds a google.protobuf.Struct, which every client can read and may ignore: {"port": 3, "up": false}, or
{"packet_ins_lost": 120}, which counts from the last such notice.
"""

from __future__ import annotations

from collections.abc import Mapping

from finsy.proto import p4r
from google.protobuf.struct_pb2 import Struct


def port_status(port: int, *, up: bool) -> p4r.StreamMessageResponse:
    """Encodes the notice that a port is up or down."""
    return _notice({"port": port, "up": up})


def packet_ins_lost(number: int) -> p4r.StreamMessageResponse:
    """Encodes the notice that so many packet-ins were lost since the last one."""
    return _notice({"packet_ins_lost": number})


def _notice(fields: Mapping[str, float | bool]) -> p4r.StreamMessageResponse:
    notice = Struct()
    notice.update(dict(fields))
    message = p4r.StreamMessageResponse()
    message.other.Pack(notice)
    return message
