# SPDX-License-Identifier: Apache-2.0
"""Action profile members and groups (P4Runtime 9.2)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from softswitch.engine.entities import DoAction, Group
from softswitch.engine.errors import InvalidArgument, Unimplemented
from softswitch.engine.program_info import ProfileInfo
from softswitch.p4runtime import one_shot
from softswitch.p4runtime.actions import decode_table_action, encode_action
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.schema import TableSchema


def _visible(ident: int, what: str) -> int:
    if not 0 < ident < one_shot.FIRST_ID:
        raise InvalidArgument(f"{what} id {ident} is not within 1..{one_shot.FIRST_ID - 1}")
    return ident


def _action(context: Context, profile: ProfileInfo, message: p4r.Action) -> tuple[TableSchema, DoAction]:
    table = context.schema.table_of_profile(profile)
    return table, decode_table_action(table, message)


def write_member(context: Context, kind: str, message: p4r.ActionProfileMember) -> None:
    """Writes a member. Raises InvalidArgument, AlreadyExists, NotFound, and FailedPrecondition for one in use."""
    profile = context.schema.profile(message.action_profile_id)
    ident = _visible(message.member_id, "member")
    context.one_shot.refuse_beside_sets(profile)
    if kind == "delete":
        context.engine.write_member(kind, profile, ident)
        context.one_shot.members[profile.id].discard(ident)
        return
    table, do = _action(context, profile, message.action)
    context.engine.write_member(kind, profile, ident, table.info, do)
    context.one_shot.members[profile.id].add(ident)


def read_members(context: Context, asked: p4r.ActionProfileMember) -> Iterator[p4r.Entity]:
    """Reads one member or all members, of one profile or of all."""
    for profile in _asked(context, asked.action_profile_id):
        for member in context.engine.members(profile, asked.member_id or None):
            if member.member >= one_shot.FIRST_ID:
                continue
            entity = p4r.Entity()
            found = entity.action_profile_member
            found.action_profile_id, found.member_id = profile.id, member.member
            encode_action(context.schema.actions[member.action_id], member.params, found.action)
            yield entity


def write_group(context: Context, kind: str, message: p4r.ActionProfileGroup) -> None:
    """Writes a group. Raises InvalidArgument, AlreadyExists, NotFound, Unimplemented for members that watch ports."""
    profile = context.schema.profile(message.action_profile_id)
    if not profile.selector:
        raise InvalidArgument(f"action profile {profile.name} has no selector, so no groups")
    context.one_shot.refuse_beside_sets(profile)
    ident, members = _visible(message.group_id, "group"), []
    for member in message.members:
        if member.WhichOneof("watch_kind") is not None:
            raise Unimplemented("members do not watch ports here: remove the member when its port goes down")
        if member.weight < 1:
            raise InvalidArgument(
                f"group {message.group_id}: member {member.member_id} has weight {member.weight}; "
                "it must be at least 1"
            )
        members.append((_visible(member.member_id, "member"), member.weight))
    if len({ident for ident, _ in members}) < len(members):
        raise InvalidArgument(f"group {message.group_id} names a member twice; give it a weight instead")
    max_size = 0 if kind == "delete" else _max_size(context, kind, profile, ident, message.max_size)
    context.engine.write_group(kind, profile, Group(ident, tuple(members), max_size))


def _max_size(context: Context, kind: str, profile: ProfileInfo, ident: int, asked: int) -> int:
    """The largest sum of weights of a group, which its insertion sets for good; 0: as the selector's."""
    if asked < 0:
        raise InvalidArgument(f"group {ident}: max_size must be at least 0, got {asked}")
    if 0 < profile.max_group_size < asked:
        raise InvalidArgument(f"group {ident}: max_size {asked} is more than the {profile.max_group_size} that "
                              f"action selector {profile.name} allows")
    if kind == "insert":
        return asked
    (group,) = context.engine.groups(profile, ident)
    if asked not in (0, group.max_size):
        raise InvalidArgument(f"group {ident}: max_size cannot change after insertion: expected {group.max_size}, or 0 "
                              f"to leave it, got {asked}")
    return group.max_size


def read_groups(context: Context, asked: p4r.ActionProfileGroup) -> Iterator[p4r.Entity]:
    """Reads one group or all groups, of one selector or of all."""
    for profile in _asked(context, asked.action_profile_id):
        if not profile.selector:
            continue
        for group in context.engine.groups(profile, asked.group_id or None):
            if group.group >= one_shot.FIRST_ID:
                continue
            entity = p4r.Entity()
            found = entity.action_profile_group
            found.action_profile_id, found.group_id, found.max_size = profile.id, group.group, group.max_size
            for member, weight in group.members:
                found.members.add(member_id=member, weight=weight)
            yield entity


def _asked(context: Context, ident: int) -> list[ProfileInfo]:
    return [context.schema.profile(ident)] if ident else list(context.schema.profiles.values())
