# SPDX-License-Identifier: Apache-2.0
"""Notifies the primary controllers, on their streams, of ports that go down or come back.

P4Runtime has no message for this (gNMI has one); `StreamMessageResponse.other` is meant for extensions (16.6). It holds
a google.protobuf.Struct, which every client can read and may ignore: {"port": 3, "up": false}.
"""

from __future__ import annotations

from finsy.proto import p4r
from google.protobuf.struct_pb2 import Struct


def encode(port: int, *, up: bool) -> p4r.StreamMessageResponse:
    """Encodes the message that a port is up or down."""
    status = Struct()
    status.update({"port": port, "up": up})
    message = p4r.StreamMessageResponse()
    message.other.Pack(status)
    return message
