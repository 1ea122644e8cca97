# SPDX-License-Identifier: Apache-2.0
"""Values as people write them in commands: numbers, addresses, prefixes, masks and ranges."""

from __future__ import annotations

import ipaddress
from typing import Any

from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.program import Action, Table

_T = TYPES["standard"]
_KINDS = _T.BmMatchParamType


class CommandError(Exception):
    """A command is wrong; `what` is how its message begins."""

    what = "Error"


class MatchKeyError(CommandError):
    """A match key is wrong."""

    what = "Invalid match key"


class RuntimeDataError(CommandError):
    """An action's parameter is wrong."""

    what = "Invalid runtime data"


def to_bytes(value: int, size: int) -> bytes:
    """A number in so many bytes. Raises CommandError."""
    if value < 0:
        value = 0  # as BMv2's own command line has it
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise CommandError("Parameter is too large") from None


def parse(text: str, bits: int) -> bytes:
    """A value of so many bits: an IPv4 (32 bits), MAC (48) or IPv6 address (128), or a number in C's notation."""
    if bits == 32 and "." in text:
        return _address(text.split("."), 4, 10, "Invalid IPv4 address")
    if bits == 48 and ":" in text:
        return _address(text.split(":"), 6, 16, "Invalid MAC address")
    if bits == 128 and ":" in text:
        try:
            return ipaddress.IPv6Address(text).packed
        except ValueError:
            raise CommandError("Invalid IPv6 address") from None
    try:
        value = int(text, 0)
    except ValueError:
        raise CommandError("Invalid input, could not cast to integer, try in hex with 0x prefix") from None
    return to_bytes(value, (bits + 7) // 8)


def _address(parts: list[str], size: int, base: int, wrong: str) -> bytes:
    try:
        found = bytes(int(part, base) for part in parts)
    except ValueError:
        raise CommandError(wrong) from None
    if len(found) != size:
        raise CommandError(wrong)
    return found


def _in(text: str, bits: int, error: type[CommandError]) -> bytes:
    try:
        return parse(text, bits)
    except CommandError as why:
        raise error(f"Error while parsing {text} - {why}") from None


def parse_params(action: Action, texts: list[str], *, name: str | None = None) -> list[bytes]:
    """The parameters of an action; `name` is how the user called it."""
    if len(texts) != len(action.params):
        raise CommandError(f"Action {name or action.name} needs {len(action.params)} parameters")
    return [_in(text, bits, RuntimeDataError) for text, (_, bits) in zip(texts, action.params, strict=True)]


def _pair(text: str, mark: str, kind: str, what: str) -> list[str]:
    parts = text.split(mark)
    if len(parts) != 2:
        raise MatchKeyError(f"Invalid {kind} value {text}, use '{mark}' to separate {what}")
    return parts


def _field(text: str, kind: str, bits: int) -> Any:
    def value(part: str) -> bytes:
        return _in(part, bits, MatchKeyError)

    if kind == "exact":
        return _T.BmMatchParam(_KINDS.EXACT, exact=_T.BmMatchParamExact(value(text)))
    if kind == "lpm":
        prefix, length = _pair(text, "/", "LPM", "prefix and length")
        key = value(prefix)
        try:
            return _T.BmMatchParam(_KINDS.LPM, lpm=_T.BmMatchParamLPM(key, int(length)))
        except ValueError:
            raise MatchKeyError(f"Invalid LPM value {text}, use '/' to separate prefix and length") from None
    if kind == "ternary":
        key, mask = map(value, _pair(text, "&&&", kind, "key and mask"))
        return _T.BmMatchParam(_KINDS.TERNARY, ternary=_T.BmMatchParamTernary(key, mask))
    if kind == "valid":
        try:
            return _T.BmMatchParam(_KINDS.VALID, valid=_T.BmMatchParamValid(bool(int(text))))
        except ValueError:
            raise MatchKeyError(f"Error while parsing {text} - expected 0 or 1") from None
    start, end = map(value, _pair(text, "->", "range", "range start and range end"))
    if start > end:
        raise MatchKeyError(f"start is less than end in expression {text}")
    return _T.BmMatchParam(_KINDS.RANGE, range=_T.BmMatchParamRange(start, end))


def parse_key(table: Table, texts: list[str], *, name: str | None = None) -> list[Any]:
    """A match key; `name` is how the user called the table."""
    if len(texts) != len(table.key):
        raise CommandError(f"Table {name or table.name} needs {len(table.key)} key fields")
    return [_field(text, kind, bits) for text, (_, kind, bits) in zip(texts, table.key, strict=True)]


def colons(data: bytes) -> str:
    """Bytes as an address writes them."""
    return data.hex(":") if data else ""


def shown(param: Any) -> str:
    """A field of a match key, before it is added."""
    kind = _KINDS._VALUES_TO_NAMES[param.type]
    if param.exact:
        return f"{kind}-{colons(param.exact.key)}"
    if param.lpm:
        return f"{kind}-{colons(param.lpm.key)}/{param.lpm.prefix_length}"
    if param.ternary:
        return f"{kind}-{colons(param.ternary.key)} &&& {colons(param.ternary.mask)}"
    if param.range:
        return f"{kind}-{colons(param.range.start)} -> {colons(param.range.end_)}"
    return f"{kind}-"


def dumped(param: Any) -> str:
    """A field of the match key of an entry, its kind first."""
    kind = f"{_KINDS._VALUES_TO_NAMES[param.type]:10}"
    if param.exact:
        return kind + str(param.exact.key.hex())
    if param.lpm:
        return f"{kind}{param.lpm.key.hex()}/{param.lpm.prefix_length}"
    if param.ternary:
        return f"{kind}{param.ternary.key.hex()} &&& {param.ternary.mask.hex()}"
    if param.range:
        return f"{kind}{param.range.start.hex()} -> {param.range.end_.hex()}"
    return f"{kind}{'01' if param.valid and param.valid.key else '00'}"
