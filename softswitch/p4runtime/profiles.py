# SPDX-License-Identifier: Apache-2.0
"""Action profile members and groups, and one-shot action sets (P4Runtime 9.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from finsy.proto import p4r

from softswitch.engine.entities import (
    Do,
    DoAction,
    DoGroup,
    EngineError,
    Entry,
    Group,
    InvalidArgument,
    NotFound,
    ProfileInfo,
    ResourceExhausted,
    Unimplemented,
)
from softswitch.p4runtime.actions import decode_table_action, encode_action
from softswitch.p4runtime.schema import Table

if TYPE_CHECKING:
    from softswitch.p4runtime.context import Context

HIDDEN = 1 << 31
"""Members and groups made for one-shot action sets have ids from here on; clients see and use only those below."""


def _visible(ident: int, what: str) -> int:
    if not 0 < ident < HIDDEN:
        raise InvalidArgument(f"{what} id {ident} is not within 1..{HIDDEN - 1}")
    return ident


def _action(context: Context, profile: ProfileInfo, message: p4r.Action) -> tuple[Table, DoAction]:
    table = context.schema.table_of_profile(profile)
    return table, decode_table_action(table, message)


def write_member(context: Context, kind: str, message: p4r.ActionProfileMember) -> None:
    """Raises InvalidArgument, AlreadyExists, NotFound, and what the engine says of members in use."""
    profile = context.schema.profile(message.action_profile_id)
    ident = _visible(message.member_id, "member")
    if kind == "delete":
        context.engine.write_member(kind, profile, ident)
        return
    table, do = _action(context, profile, message.action)
    context.engine.write_member(kind, profile, ident, table.info, do)


def read_members(context: Context, asked: p4r.ActionProfileMember) -> Iterator[p4r.Entity]:
    """One member, or all, of one profile, or all."""
    for profile in _asked(context, asked.action_profile_id):
        for member in context.engine.members(profile, asked.member_id or None):
            if member.member >= HIDDEN:
                continue
            entity = p4r.Entity()
            found = entity.action_profile_member
            found.action_profile_id, found.member_id = profile.id, member.member
            encode_action(context.schema.actions[member.action_id], member.params, found.action)
            yield entity


def write_group(context: Context, kind: str, message: p4r.ActionProfileGroup) -> None:
    """Raises InvalidArgument, Unimplemented for members that watch ports, AlreadyExists, NotFound."""
    profile = context.schema.profile(message.action_profile_id)
    if not profile.selector:
        raise InvalidArgument(f"action profile {profile.name} has no selector, so no groups")
    members = []
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
    group = Group(_visible(message.group_id, "group"), tuple(members), max(message.max_size, 0))
    context.engine.write_group(kind, profile, group)


def read_groups(context: Context, asked: p4r.ActionProfileGroup) -> Iterator[p4r.Entity]:
    """One group, or all, of one selector, or all."""
    for profile in _asked(context, asked.action_profile_id):
        if not profile.selector:
            continue
        for group in context.engine.groups(profile, asked.group_id or None):
            if group.group >= HIDDEN:
                continue
            entity = p4r.Entity()
            found = entity.action_profile_group
            found.action_profile_id, found.group_id, found.max_size = profile.id, group.group, group.max_size
            for member, weight in group.members:
                found.members.add(member_id=member, weight=weight)
            yield entity


def _asked(context: Context, ident: int) -> list[ProfileInfo]:
    return [context.schema.profile(ident)] if ident else list(context.schema.profiles.values())


class OneShot:
    """Action sets written with their entry: each becomes a group of members of its own, gone with the entry."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = HIDDEN
        self._sets: dict[tuple[int, int], p4r.ActionProfileActionSet] = {}  # (table id, group) -> as it was written
        self._members: dict[tuple[int, int], list[int]] = {}
        self._tables: dict[int, Table] = {}

    def create(self, table: Table, message: p4r.ActionProfileActionSet) -> DoGroup:
        """Members and group for an action set, not yet used by an entry."""
        profile = table.profile
        assert profile is not None
        actions = message.action_profile_actions
        if not actions:
            raise InvalidArgument(f"table {table.name}: the action set is empty")
        if profile.max_group_size and sum(a.weight for a in actions) > profile.max_group_size:
            raise ResourceExhausted(
                f"table {table.name}: the action set's weights add up to more than the "
                f"{profile.max_group_size} of action profile {profile.name}"
            )
        for action in actions:
            if action.weight < 1:
                raise InvalidArgument(f"table {table.name}: weights must be at least 1, got {action.weight}")
            if action.WhichOneof("watch_kind") is not None:
                raise Unimplemented("actions do not watch ports here")
        engine, members = self._context.engine, list[int]()
        try:
            for action in actions:
                do = decode_table_action(table, action.action)
                self._next += 1
                engine.write_member("insert", profile, self._next, table.info, do)
                members.append(self._next)
            self._next += 1
            pairs = tuple((m, a.weight) for m, a in zip(members, actions, strict=True))
            engine.write_group("insert", profile, Group(self._next, pairs))
        except EngineError:
            for member in members:
                engine.write_member("delete", profile, member)
            raise
        kept = p4r.ActionProfileActionSet()
        kept.CopyFrom(message)
        group = self._next
        self._sets[table.id, group], self._members[table.id, group] = kept, members
        self._tables[group] = table
        return DoGroup(group)

    def of_entry(self, entry: Entry) -> Do | None:
        """The action set that the entry now in the switch uses, if any."""
        try:
            do = self._context.engine.entry(entry.table, entry.key, entry.mask, entry.priority).do
        except NotFound:
            return None
        return do if isinstance(do, DoGroup) and do.group >= HIDDEN else None

    def abandon(self, do: Do) -> None:
        """Frees the members and the group of an action set that no entry uses (any longer)."""
        if not isinstance(do, DoGroup) or do.group not in self._tables:
            return
        table = self._tables.pop(do.group)
        assert table.profile is not None
        engine = self._context.engine
        engine.write_group("delete", table.profile, Group(do.group, ()))
        for member in self._members.pop((table.id, do.group)):
            engine.write_member("delete", table.profile, member)
        del self._sets[table.id, do.group]

    def describe(self, table: Table, do: DoGroup, message: p4r.TableAction) -> bool:
        """Writes the action set as the client gave it; False where `do` is an ordinary group."""
        kept = self._sets.get((table.id, do.group))
        if kept is None:
            return False
        message.action_profile_action_set.CopyFrom(kept)
        return True
