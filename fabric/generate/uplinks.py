# SPDX-License-Identifier: Apache-2.0
"""A topology's description of one link or several parallel links: their number and rate."""

from __future__ import annotations

import re
from typing import NamedTuple

from netfold.fabric.graph import FabricError, bits_per_second

MOST_LINKS = 64
"""Most parallel links between two switches."""


class Uplink(NamedTuple):
    """Links side by side between two switches."""

    links: int = 1
    rate: str | None = None
    """Rate of each link; None: that of all links."""


def uplinks(text: str) -> list[Uplink]:
    """``1gbit:250mbit``, ``2:1`` or ``2x1gbit:1``: number and rate of the links to each switch above, in order.

    Raises FabricError.
    """
    found = []
    for word in text.split(":"):
        match = re.fullmatch(r"(?:(\d{1,3})(?:x|$))?((?:\d.*)?)", word, re.ASCII)
        if match is None or not word or not 1 <= int(match[1] or 1) <= MOST_LINKS:
            raise FabricError(f"expected a rate, a number of links or both for each switch above, as 1gbit:250mbit, "
                              f"2:1 or 2x1gbit:1gbit, with at most {MOST_LINKS} links; got {word!r}")
        found.append(Uplink(int(match[1] or 1), rate(match[2]) if match[2] else None))
    return found


def rate(text: str) -> str:
    """A rate in tc's units.  Raises FabricError for what is none."""
    bits_per_second(text)
    return text


def number(text: str) -> int:
    """A whole number of at least 1.  Raises FabricError."""
    if not re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII):
        raise FabricError(f"expected a whole number of 1..99999, got {text!r}")
    return int(text)
