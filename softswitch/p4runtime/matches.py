# SPDX-License-Identifier: Apache-2.0
"""Match fields (P4Runtime 9.1.1), between FieldMatch messages and the engine's (value, mask) pairs."""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.engine.errors import InvalidArgument
from softswitch.engine.program_info import KeyField, MatchKind
from softswitch.p4runtime import bytestrings


def decode_match(key: KeyField, match: p4r.FieldMatch, what: str) -> tuple[int, int]:
    """Decodes a FieldMatch to the engine's (value, mask). Raises InvalidArgument, OutOfRange."""
    kind = match.WhichOneof("field_match_type")
    wanted = key.match.name.lower()
    if kind != wanted:
        raise InvalidArgument(f"{what}: expected a match of kind {wanted}, got {kind or 'none'}")
    if key.match is MatchKind.EXACT:
        return bytestrings.decode(match.exact.value, key.bits, what), key.ones
    if key.match is MatchKind.OPTIONAL:
        return bytestrings.decode(match.optional.value, key.bits, what), key.ones
    if key.match is MatchKind.LPM:
        value, length = bytestrings.decode(match.lpm.value, key.bits, what), match.lpm.prefix_len
        if length == 0:
            raise InvalidArgument(f"{what}: a prefix length of 0 is not allowed; leave the field out to match all")
        prefix = key.prefix(value, length)
        if prefix[0] != value:
            raise InvalidArgument(f"{what}: value {value:#x} has bits beyond its prefix of {length}")
        return prefix
    if key.match is MatchKind.TERNARY:
        value = bytestrings.decode(match.ternary.value, key.bits, what)
        mask = bytestrings.decode(match.ternary.mask, key.bits, what)
        if mask == 0:
            raise InvalidArgument(f"{what}: a mask of 0 is not allowed; leave the field out to match all")
        if value & ~mask:
            raise InvalidArgument(f"{what}: value {value:#x} has bits outside of its mask {mask:#x}")
        return value, mask
    low = bytestrings.decode(match.range.low, key.bits, what)
    high = bytestrings.decode(match.range.high, key.bits, what)
    if low > high:
        raise InvalidArgument(f"{what}: low end {low:#x} is above high end {high:#x}")
    if (low, high) == key.any:
        raise InvalidArgument(f"{what}: the full range is not allowed; leave the field out to match all")
    return low, high


def encode_match(field_id: int, key: KeyField, value: int, mask: int) -> p4r.FieldMatch | None:
    """Encodes a FieldMatch; None where the field matches everything and is therefore left out."""
    match = p4r.FieldMatch(field_id=field_id)
    if key.match is MatchKind.EXACT:
        match.exact.value = bytestrings.encode(value)
        return match
    if (value, mask) == key.any or (key.match is not MatchKind.RANGE and mask == 0):
        return None
    if key.match is MatchKind.OPTIONAL:
        match.optional.value = bytestrings.encode(value)
    elif key.match is MatchKind.LPM:
        match.lpm.value = bytestrings.encode(value)
        match.lpm.prefix_len = mask.bit_count()
    elif key.match is MatchKind.TERNARY:
        match.ternary.value = bytestrings.encode(value)
        match.ternary.mask = bytestrings.encode(mask)
    else:
        match.range.low = bytestrings.encode(value)
        match.range.high = bytestrings.encode(mask)
    return match
