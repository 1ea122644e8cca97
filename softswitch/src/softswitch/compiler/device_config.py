# SPDX-License-Identifier: Apache-2.0
"""The program that a switch receives: P4 text, or BMv2's JSON with that text inside (bmv2_json.py).

The JSON may come from an untrusted client: `source` reads it in the process that compiles it, within that process's
limits of time and memory (confined.py); the server itself only looks at its first bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

MEMBER = "softswitch"
"""The member of the JSON's outermost object that holds the text: {"source": ..., "name": ...}."""

_CONTROL = "softswitch_control"
"""The member that holds `Control`, in the JSON of programs that need it."""

TEXT_MAX = 4 << 20
"""Bytes of the longest program text."""

JSON_MAX = 16 << 20
"""Bytes of the longest JSON, which is also the longest message."""


@dataclass(frozen=True)
class Control:
    """Properties of a program that P4Runtime's server needs and P4Info lacks.

    headers    of controller headers by their names: (id or 0, bits) of each field on the wire; @hidden ones have no id
    port_type  the type of the port fields in standard_metadata_t, if it has @p4runtime_translation, or ""
    """

    headers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    port_type: str = ""

    def member(self) -> str:
        """The member of the JSON, ready to stand after others."""
        return f'"{_CONTROL}": {json.dumps({"headers": self.headers, "port_type": self.port_type})}'


def control(text: str) -> Control:
    """The Control in a program's JSON, as our own compiler wrote it; an empty one where the program needs none."""
    if f'"{_CONTROL}"' not in text:
        return Control()
    found = json.loads(text).get(_CONTROL, {})
    headers = {name: [(ident, bits) for ident, bits in fields] for name, fields in found.get("headers", {}).items()}
    return Control(headers, found.get("port_type", ""))


class UnreadableConfigError(ValueError):
    """The bytes are no program that this switch can run; the message says what was expected.

    Remedy: push P4 source text or what `softswitch compile` and its stand-in for p4c have written.
    """


def is_json(data: bytes) -> bool:
    """True if these bytes are meant as JSON: no P4 program begins with a brace."""
    return data[:64].lstrip().startswith(b"{")


def unwrapped(data: bytes) -> bytes:
    """The program in a message p4.tmp.P4DeviceConfig, in which older control planes put it; other bytes as they are.

    The message has reassign (field 1, bool), extras (2, a message) and device_data (3, bytes), and BMv2's server takes
    it as it takes the bytes alone. Neither P4 nor JSON begins with the byte of one of its fields.
    """
    if data[:1] not in (b"\x08", b"\x12", b"\x1a"):
        return data
    at, found = 0, None
    while at < len(data):
        tag = data[at]
        value, at = _varint(data, at + 1)
        if tag == 0x08:
            continue
        if tag not in (0x12, 0x1A) or at + value > len(data):
            raise UnreadableConfigError("expected P4 text, JSON or a p4.tmp.P4DeviceConfig, got bytes "
                                        f"{data[:8].hex()}...")
        if tag == 0x1A:
            found = data[at : at + value]
        at += value
    if found is None:
        raise UnreadableConfigError("a p4.tmp.P4DeviceConfig without device_data: expected the program there")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A protobuf integer and the place behind it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise UnreadableConfigError("a p4.tmp.P4DeviceConfig that ends within a number")


def source(data: bytes) -> str:
    """The P4 text of a program's bytes. Raises UnreadableConfigError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UnreadableConfigError("expected P4 source text (`softswitch compile --preprocessed`) or JSON "
                                    f"(`softswitch compile --json`) in UTF-8: {error}") from None
    if not is_json(data):
        return _bounded(text)
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise UnreadableConfigError(f"expected JSON, since it begins with a brace: {error}") from None
    except RecursionError:
        raise UnreadableConfigError("JSON that nests too deeply") from None
    own = whole.get(MEMBER)
    if own is None:
        raise UnreadableConfigError(
            f"JSON without the member {MEMBER!r}: p4c made it for BMv2, and it holds no P4 text that this switch could "
            "compile; expected what `softswitch compile --json`, or the p4c-bm2-ss of `softswitch tools`, writes"
        )
    inside = own.get("source") if isinstance(own, dict) else None
    if not isinstance(inside, str) or not inside.strip():
        raise UnreadableConfigError(f'JSON: expected {{"source": P4 text}} in {MEMBER!r}')
    return _bounded(inside)


def _bounded(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:  # "\\ud800" of JSON: half of a character
        raise UnreadableConfigError(f"the P4 text in the JSON is no Unicode text: {error}") from None
    if size > TEXT_MAX:
        raise UnreadableConfigError(f"the program has {size} bytes of P4 text, and may have {TEXT_MAX}")
    return text
