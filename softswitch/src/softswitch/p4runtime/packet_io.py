# SPDX-License-Identifier: Apache-2.0
"""Packets between controller and data plane: metadata fields and the bits of the controller header (P4Runtime 16.1)."""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.engine.errors import InvalidArgument
from softswitch.p4runtime.schema import ControllerHeader


def encode_packet_in(header: ControllerHeader, frame: bytes) -> p4r.PacketIn:
    """Encodes a frame that has left by the CPU port: its packet_in header becomes metadata."""
    size = header.bits // 8
    if len(frame) < size:  # the program did not emit its packet_in header
        return p4r.PacketIn(payload=frame)
    message = p4r.PacketIn(payload=frame[size:])
    value, left = int.from_bytes(frame[:size], "big"), header.bits
    for field in header.fields:
        left -= field.codec.bits
        if field.id:
            part = (value >> left) & ((1 << field.codec.bits) - 1)
            message.metadata.add(metadata_id=field.id, value=field.codec.encode(part))
    return message


def decode_packet_out(header: ControllerHeader, message: p4r.PacketOut) -> bytes:
    """Decodes the frame for the pipeline: metadata become its packet_out header. Raises InvalidArgument, OutOfRange."""
    given: dict[int, bytes] = {}
    known = {field.id for field in header.fields if field.id}
    for metadata in message.metadata:
        if metadata.metadata_id not in known:
            raise InvalidArgument(
                f"packet-out: the program has no packet_out metadata with id {metadata.metadata_id}"
            )
        if metadata.metadata_id in given:
            raise InvalidArgument(f"packet-out: metadata {metadata.metadata_id} is given twice")
        given[metadata.metadata_id] = metadata.value
    value = 0
    for field in header.fields:
        value <<= field.codec.bits
        if not field.id:
            continue
        if field.id not in given:
            raise InvalidArgument(f"packet-out: metadata {field.name} (id {field.id}) is missing")
        value |= field.codec.decode(given[field.id], f"packet-out metadata {field.name}")
    return value.to_bytes(header.bits // 8, "big") + message.payload
