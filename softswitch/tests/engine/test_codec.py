# SPDX-License-Identifier: Apache-2.0
"""Replies of a switch as values."""

from __future__ import annotations

import struct

import pytest

from softswitch.engine.codec import Reader
from softswitch.engine.errors import Internal


def test_a_reply_that_ends_too_early_is_an_error_and_no_shorter_value() -> None:
    """The message says where it ends; what is whole is read."""
    reader = Reader(b"abc")
    assert reader.take(2) == b"ab"
    with pytest.raises(Internal, match="cut short: expected 2 bytes at 2, it has 3"):
        reader.take(2)
    assert reader.rest() == b"c"
    with pytest.raises(Internal, match="cut short"):
        Reader(struct.pack("<H", 5) + b"text").text()
