# SPDX-License-Identifier: Apache-2.0
"""Names and values of packet tests, resolved against the objects of a running program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from softswitch.engine.entities import MeterConfig
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.program_info import ActionInfo, KeyField, MatchKind, Named, TableInfo, by_name
from softswitch.stf.script import number

_STAR_TO_ZERO = str.maketrans("*", "0")

_Thing = TypeVar("_Thing", bound=Named | ActionInfo)


def by_ending(things: Sequence[_Thing], name: str, kind: str) -> _Thing:
    """The object of this name, else the only one whose name ends so (after a dot if possible), as in p4c's runner."""
    found = by_name(things, name) or [thing for thing in things if thing.name.endswith(name)]
    if len(found) != 1:
        have = ", ".join(thing.name for thing in things) or "none"
        raise InvalidArgument(f"{kind} {name} is {'ambiguous' if found else 'unknown'} (there is {have})")
    return found[0]


def field_index(table: TableInfo, name: str) -> int:
    """The index of a key field: by its name or last part; NAME$1 stands for NAME[1], $valid or valid for $valid$."""
    wanted = re.sub(r"\$(\d+)", r"[\1]", name)
    if wanted == "valid" or wanted.endswith((".valid", "$valid")):
        wanted = re.sub(r"\$?valid$", "$valid$", wanted)
    names = [key.name for key in table.keys]
    for found in (
        [i for i, key in enumerate(names) if key in (wanted, wanted + "$", wanted + ".$valid$")],
        [i for i, key in enumerate(names) if key.endswith(("." + wanted, "." + wanted + "$"))],
    ):
        if len(found) == 1:
            return found[0]
    raise InvalidArgument(f"table {table.name} has no key field {name} (it has {', '.join(names)})")


def any_value(key: KeyField) -> tuple[int, int]:
    """The (value, mask) of a field that a test does not mention: anything, or 0 where it is exact."""
    return (0, key.ones) if key.match is MatchKind.EXACT else key.any


def field_value(key: KeyField, text: str) -> tuple[int, int]:
    """The (value, mask) that a value of the test means for this field."""
    if ".." in text:
        low, high = (number(part) for part in text.split(".."))
        if key.match is not MatchKind.RANGE:
            raise InvalidArgument(f"key field {key.name} is no range, got {text}")
        return low, high
    if "/" in text:
        value, length = (number(part) for part in text.split("/"))
        return key.prefix(value, length)
    digits = text.translate(_STAR_TO_ZERO)
    match key.match:
        case MatchKind.RANGE:
            return number(text), number(text)
        case MatchKind.TERNARY:
            return number(digits), _mask(text, key)
        case MatchKind.LPM if not text.isdecimal():
            per_digit = {"x": 4, "b": 1, "o": 3}[text[1].lower()]
            return key.prefix(number(digits), (len(text) - 2 - text.count("*")) * per_digit)
    if "*" in text:
        raise InvalidArgument(f"key field {key.name} takes no * ({key.match.name.lower()}), got {text}")
    return number(text), key.ones


def _mask(text: str, key: KeyField) -> int:
    """The mask of a ternary value covers the digits that are written: 0x1 leaves the bits above its digit open."""
    if text.isdecimal():
        return key.ones
    full = {"x": "f", "b": "1", "o": "7"}[text[1].lower()]
    return number(text[:2] + re.sub(r"[^*]", full, text[2:]).translate(_STAR_TO_ZERO)) & key.ones


def rates(args: Sequence[str]) -> MeterConfig:
    """Parse simple_switch_CLI's RATE:BURST RATE:BURST, committed first, with rates in units a microsecond."""
    if len(args) != 2 or any(":" not in arg for arg in args):
        raise InvalidArgument(f"expected RATE:BURST RATE:BURST, got {' '.join(args)}")
    (cir, cburst), (pir, pburst) = (arg.split(":") for arg in args)
    return MeterConfig(round(float(cir) * 1e6), int(cburst), round(float(pir) * 1e6), int(pburst))
