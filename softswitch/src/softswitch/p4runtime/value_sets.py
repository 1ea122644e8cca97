# SPDX-License-Identifier: Apache-2.0
"""Parser value sets (P4Runtime 9.6): MODIFY replaces all members."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from softswitch.engine.errors import InvalidArgument, ResourceExhausted
from softswitch.engine.program_info import pack_key, unpack_key
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.matches import decode_match, encode_match
from softswitch.p4runtime.translation import Codec


def write(context: Context, kind: str, message: p4r.ValueSetEntry) -> None:
    """Replaces all members of a value set.  Raises InvalidArgument, ResourceExhausted."""
    value_set = context.schema.value_set(message.value_set_id)
    what = f"value set {value_set.name}"
    if kind != "modify":
        raise InvalidArgument(f"{what} can be modified, not {kind}ed: a modification gives all its members")
    if len(message.members) > value_set.size:
        raise ResourceExhausted(f"{what} has room for {value_set.size} members, got {len(message.members)}")
    places = {ident: place for place, ident in enumerate(context.schema.value_set_ids[value_set.id])}
    members = []
    for member in message.members:
        given: dict[int, tuple[int, int]] = {}
        for match in member.match:
            if match.field_id not in places:
                raise InvalidArgument(f"{what} has no field with id {match.field_id}")
            place = places[match.field_id]
            key = value_set.keys[place]
            given[place] = decode_match(key, match, f"{what}, field {key.name}", Codec(key.bits))
        pairs = [given.get(place) or key.any for place, key in enumerate(value_set.keys)]
        members.append(pack_key(value_set.keys, pairs, what))
    context.engine.write_value_set(value_set, members)


def read(context: Context, asked: p4r.ValueSetEntry) -> Iterator[p4r.Entity]:
    """Reads one value set or all, with their members."""
    schema = context.schema
    for value_set in [schema.value_set(asked.value_set_id)] if asked.value_set_id else schema.value_sets.values():
        entity = p4r.Entity()
        entity.value_set_entry.value_set_id = value_set.id
        for key, mask in context.engine.read_value_set(value_set):
            member = entity.value_set_entry.members.add()
            pairs = unpack_key(value_set.keys, key, mask)
            for ident, field, pair in zip(schema.value_set_ids[value_set.id], value_set.keys, pairs, strict=True):
                match = encode_match(ident, field, *pair, Codec(field.bits))
                if match is not None:
                    member.match.append(match)
        yield entity
