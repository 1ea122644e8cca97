# SPDX-License-Identifier: Apache-2.0
"""Ports that go down or come back, on the stream of the primary controllers.

P4Runtime has no message for it (gNMI has); `StreamMessageResponse.other` is its place for what it does not say (16.6).
There it is a google.protobuf.Struct, which every client can read and may ignore: {"port": 3, "up": false}.
"""

from __future__ import annotations

from finsy.proto import p4r
from google.protobuf.struct_pb2 import Struct


def encode(port: int, *, up: bool) -> p4r.StreamMessageResponse:
    """The message that a port is up or down."""
    status = Struct()
    status.update({"port": port, "up": up})
    message = p4r.StreamMessageResponse()
    message.other.Pack(status)
    return message
