# SPDX-License-Identifier: Apache-2.0
"""Integers as the bytes of fields."""

from __future__ import annotations

import pytest

from softswitch.engine.byte_form import pack_fields, unpack_fields
from softswitch.engine.errors import InvalidArgument


@pytest.mark.parametrize("values", [[-1, 0], [8, 0], [0, 1 << 16], [0], [0, 0, 0]])
def test_what_does_not_fit_its_fields_is_refused(values: list[int]) -> None:
    """Negative, too large, too few, too many: by the engine's own error."""
    with pytest.raises(InvalidArgument, match="my_action: "):
        pack_fields(values, [3, 16], "my_action")


def test_fields_come_back() -> None:
    """The largest values of each."""
    assert unpack_fields(pack_fields([7, 0xFFFF], [3, 16], "my_action"), [3, 16]) == [7, 0xFFFF]
