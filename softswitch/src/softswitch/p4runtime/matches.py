# SPDX-License-Identifier: Apache-2.0
"""Match fields (P4Runtime 9.1.1), between FieldMatch messages and the engine's (value, mask) pairs."""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.engine.errors import InvalidArgument
from softswitch.engine.program_info import KeyField, MatchKind
from softswitch.p4runtime import bytestrings
from softswitch.p4runtime.translation import Codec, Numbers, Strings


def decode_match(
    key: KeyField, match: p4r.FieldMatch, what: str, codec: Codec, *, new: bool = True
) -> tuple[int, int]:
    """Decodes a FieldMatch to the engine's (value, mask).

    Raises InvalidArgument, OutOfRange, and what `codec.decode` raises; it says what `new` is.
    """
    kind = match.WhichOneof("field_match_type")
    wanted = key.match.name.lower()
    if kind != wanted:
        raise InvalidArgument(f"{what}: expected a match of kind {wanted}, got {kind or 'none'}")
    if key.match is MatchKind.EXACT:
        return codec.decode(match.exact.value, what, new=new), key.ones
    if key.match is MatchKind.OPTIONAL:
        return codec.decode(match.optional.value, what, new=new), key.ones
    if isinstance(codec, Strings) or (isinstance(codec, Numbers) and codec.pairs):
        raise InvalidArgument(f"{what}: values of its type have no order and no bits: only exact and optional matches "
                              "know what they mean")
    if isinstance(codec, Numbers):
        match = _narrowed(match, codec, what)
        if match.WhichOneof("field_match_type") is None:
            return key.any
    if key.match is MatchKind.LPM:
        value, length = codec.decode(match.lpm.value, what), match.lpm.prefix_len
        if length == 0:
            raise InvalidArgument(f"{what}: a prefix length of 0 is not allowed; leave the field out to match all")
        prefix = key.prefix(value, length)
        if prefix[0] != value:
            raise InvalidArgument(f"{what}: value {value:#x} has bits beyond its prefix of {length}")
        return prefix
    if key.match is MatchKind.TERNARY:
        value = codec.decode(match.ternary.value, what)
        mask = codec.decode(match.ternary.mask, what)
        if mask == 0:
            raise InvalidArgument(f"{what}: a mask of 0 is not allowed; leave the field out to match all")
        if value & ~mask:
            raise InvalidArgument(f"{what}: value {value:#x} has bits outside of its mask {mask:#x}")
        return value, mask
    low = codec.decode(match.range.low, what)
    high = codec.decode(match.range.high, what)
    if low > high:
        raise InvalidArgument(f"{what}: low end {low:#x} is above high end {high:#x}")
    if (low, high) == key.any:
        raise InvalidArgument(f"{what}: the full range is not allowed; leave the field out to match all")
    return low, high


def _narrowed(match: p4r.FieldMatch, codec: Numbers, what: str) -> p4r.FieldMatch:
    """The match on numbers of the data plane's width that means the same as one on `codec.sdn_bits`. None of the two
    can be set above the narrower width, so masks and the ends of ranges need no bits there. Raises InvalidArgument,
    OutOfRange."""
    ones, extra = (1 << codec.bits) - 1, codec.sdn_bits - codec.bits
    made = p4r.FieldMatch(field_id=match.field_id)
    wide = Codec(codec.sdn_bits)
    match match.WhichOneof("field_match_type"):
        case "ternary":
            made.ternary.value = match.ternary.value
            made.ternary.mask = wide.encode(wide.decode(match.ternary.mask, what) & ones)
            if wide.decode(match.ternary.mask, what) and not int.from_bytes(made.ternary.mask, "big"):
                codec.decode(match.ternary.value, what)
                return p4r.FieldMatch(field_id=match.field_id)
        case "range":
            made.range.low = match.range.low
            made.range.high = wide.encode(min(wide.decode(match.range.high, what), ones))
            if not wide.decode(match.range.low, what) and int.from_bytes(made.range.high, "big") == ones:
                return p4r.FieldMatch(field_id=match.field_id)
        case "lpm":
            length = match.lpm.prefix_len
            if not 0 < length <= codec.sdn_bits:
                raise InvalidArgument(f"{what}: prefix length {length} is not within 1..{codec.sdn_bits}")
            value = codec.decode(match.lpm.value, what)
            if value & ((1 << (codec.sdn_bits - length)) - 1):
                raise InvalidArgument(f"{what}: value {value:#x} has bits beyond its prefix of {length}")
            if length <= extra:
                return p4r.FieldMatch(field_id=match.field_id)
            made.lpm.value, made.lpm.prefix_len = match.lpm.value, length - extra
    return made


def encode_match(field_id: int, key: KeyField, value: int, mask: int, codec: Codec) -> p4r.FieldMatch | None:
    """Encodes a FieldMatch; None where the field matches everything and is therefore left out."""
    match = p4r.FieldMatch(field_id=field_id)
    if key.match is MatchKind.EXACT:
        match.exact.value = codec.encode(value)
        return match
    if (value, mask) == key.any or (key.match is not MatchKind.RANGE and mask == 0):
        return None
    if key.match is MatchKind.OPTIONAL:
        match.optional.value = codec.encode(value)
    elif key.match is MatchKind.LPM:
        match.lpm.value = codec.encode(value)
        match.lpm.prefix_len = mask.bit_count() + (codec.sdn_bits - codec.bits)
    elif key.match is MatchKind.TERNARY:
        match.ternary.value = codec.encode(value)
        wide = (1 << codec.sdn_bits) - 1
        match.ternary.mask = bytestrings.encode(wide if mask == key.ones and codec.sdn_bits > codec.bits else mask)
    else:
        match.range.low = codec.encode(value)
        match.range.high = codec.encode(mask)
    return match
