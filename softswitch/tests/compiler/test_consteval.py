# SPDX-License-Identifier: Apache-2.0
"""Operators on values known at compile time."""

from __future__ import annotations

import pytest

from softswitch.compiler.consteval import binary
from softswitch.compiler.types import Bits


@pytest.mark.parametrize(("op", "value", "signed", "result"), [
    ("<<", 1, False, 0), ("<<", -1, True, 0), (">>", 255, False, 0), (">>", -1, True, -1), (">>", 127, True, 0),
])
def test_a_shift_by_more_than_any_memory_has_bits_is_one_by_the_width(
    op: str, value: int, signed: bool, result: int
) -> None:
    """A program may shift by any number; its compiler must not make a number of as many bits for it."""
    assert binary(op, value, 1 << 70, Bits(8, signed)) == result
