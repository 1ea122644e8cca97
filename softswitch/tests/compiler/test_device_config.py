# SPDX-License-Identifier: Apache-2.0
"""The program that a switch receives: text, JSON or a P4DeviceConfig, from trusted and untrusted clients."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.compiler import confined, device_config
from softswitch.compiler.device_config import UnreadableConfigError, source, unwrapped
from softswitch.compiler.driver import compile_source
from switch_support.p4 import basic


def message(data: bytes, *, reassign: bool = True, extras: bytes = b"") -> bytes:
    """A p4.tmp.P4DeviceConfig with this device_data."""
    size = len(data)
    varint = bytes((size >> shift & 0x7F) | 0x80 for shift in (0, 7, 14)) + bytes([size >> 21])
    return (b"\x08\x01" if reassign else b"") + (b"\x12" + bytes([len(extras)]) + extras if extras else b"") + (
        b"\x1a" + varint + data)


@pytest.mark.parametrize("wrapped", [
    message(b"{...}"), message(b"{...}", reassign=False), message(b"{...}", extras=b"abc"), b"{...}",
])
def test_a_program_is_found_in_the_message_of_older_control_planes(wrapped: bytes) -> None:
    """Whatever other fields the message has."""
    assert unwrapped(wrapped) == b"{...}"


@given(st.binary(max_size=64).map(lambda tail: b"\x08" + tail) | st.binary(max_size=64).map(lambda t: b"\x1a" + t))
def test_broken_messages_are_refused_or_read(data: bytes) -> None:
    """No other exception, and nothing beyond the bytes that are there."""
    try:
        assert unwrapped(data) in data
    except UnreadableConfigError:
        return


@pytest.mark.parametrize(("data", "says"), [
    (b"{", "expected JSON"), (b"{}", "p4c made it for BMv2"), (b'{"program": "x.p4", "pipelines": []}', "p4c-bm2-ss"),
    (b'{"softswitch": 3}', "expected {\"source\": P4 text}"), (b'{"softswitch": {"source": ""}}', "P4 text"),
    (b'{"softswitch": {"source": "\\ud800"}}', "no Unicode"),
    (b'{"softswitch": {"source": ["x"]}}', "P4 text"), (b"\xff\xfe", "UTF-8"), (b'{"a": ' + b"[" * 200_000, "deeply"),
    (b'{"softswitch": {"source": "' + b" " * device_config.TEXT_MAX + b'x"}}', "may have"),
])
def test_json_without_a_program_is_refused(data: bytes, says: str) -> None:
    """The message says what is wrong with it, and for p4c's own JSON what to do."""
    with pytest.raises(UnreadableConfigError, match=says):
        source(data)


def test_json_is_compiled_as_its_text_is() -> None:
    """In the process with limits: the C text, P4Info and JSON are those of the text."""
    text = compile_source(basic(), confined.NAME).preprocessed
    inside = json.dumps({"pipelines": [], "softswitch": {"source": text, "name": "any"}}).encode()
    assert confined.compile_program(inside) == confined.compile_program(text.encode())


def test_hostile_json_is_refused_in_the_process_with_limits() -> None:
    """What takes more than the memory of a compilation, or hides a file behind an #include, or is no program."""
    with pytest.raises(confined.TooCostly, match="MiB of memory"):
        confined.compile_program(b'{"a": [' + b"{}," * (4 << 20) + b"0]}", memory=256 << 20)
    with pytest.raises(confined.TooCostly, match=f"may have {device_config.JSON_MAX}"):
        confined.compile_program(b"{" + b" " * device_config.JSON_MAX)
    with pytest.raises(confined.NotAProgram, match="p4c made it"):
        confined.compile_program(b'{"pipelines": []}')
    with pytest.raises(confined.NotCompiled, match="may include core"):
        confined.compile_program(json.dumps({"softswitch": {"source": '#include "/etc/passwd"\n'}}).encode())
