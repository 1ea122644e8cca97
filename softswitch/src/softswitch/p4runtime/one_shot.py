# SPDX-License-Identifier: Apache-2.0
"""One-shot action sets: members and a group of a selector that are written with a table entry (P4Runtime 9.2.3)."""

from __future__ import annotations

from collections import Counter, defaultdict

from finsy.proto import p4r

from softswitch.engine.engine import Engine
from softswitch.engine.entities import Do, DoGroup, Entry, Group
from softswitch.engine.errors import EngineError, InvalidArgument, NotFound, ResourceExhausted, Unimplemented
from softswitch.engine.program_info import ProfileInfo
from softswitch.p4runtime.actions import decode_table_action
from softswitch.p4runtime.schema import TableSchema

FIRST_ID = 1 << 31
"""First id of the members and groups created for one-shot action sets; clients see and use only lower ids."""


class OneShotSets:
    """Action sets that were written with an entry: each is a group with members of its own, deleted with the entry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = FIRST_ID
        self._sets: dict[tuple[int, int], p4r.ActionProfileActionSet] = {}
        """(Table id, group) -> the action set as it was written."""
        self._members: dict[tuple[int, int], list[int]] = {}
        self._tables: dict[int, TableSchema] = {}
        self._sets_of: Counter[int] = Counter()
        """Profile id -> number of action sets."""
        self.members: defaultdict[int, set[int]] = defaultdict(set)
        """Profile id -> members that clients wrote themselves."""

    def refuse_beside_sets(self, profile: ProfileInfo) -> None:
        """Refuses members and groups of a selector that has one-shot action sets.  Raises InvalidArgument.

        A selector is programmed one way or the other (P4Runtime 9.2.3), and changes over only while it is empty.
        """
        if self._sets_of[profile.id]:
            raise InvalidArgument(f"action selector {profile.name} has one-shot action sets: delete their entries "
                                  "before you write or name members and groups")

    def create(self, table: TableSchema, message: p4r.ActionProfileActionSet) -> DoGroup:
        """Makes the members and the group of an action set, which no entry uses yet.

        Raises InvalidArgument, ResourceExhausted, Unimplemented, and what the engine raises.
        """
        profile = table.profile
        assert profile is not None
        if self.members[profile.id]:
            raise InvalidArgument(f"table {table.name}: action selector {profile.name} has members that were written "
                                  "by themselves: delete them before you use one-shot action sets")
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
        engine, members = self._engine, list[int]()
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
        stored = p4r.ActionProfileActionSet()
        stored.CopyFrom(message)
        group = self._next
        self._sets[table.id, group], self._members[table.id, group] = stored, members
        self._tables[group] = table
        self._sets_of[profile.id] += 1
        return DoGroup(group)

    def of_entry(self, entry: Entry) -> Do | None:
        """The action set that the entry in the switch uses now, if any."""
        try:
            do = self._engine.entry(entry.table, entry.key, entry.mask, entry.priority).do
        except NotFound:
            return None
        return do if isinstance(do, DoGroup) and do.group >= FIRST_ID else None

    def abandon(self, do: Do) -> None:
        """Deletes the members and the group of an action set that no entry uses."""
        if not isinstance(do, DoGroup) or do.group not in self._tables:
            return
        table = self._tables.pop(do.group)
        assert table.profile is not None
        engine = self._engine
        engine.write_group("delete", table.profile, Group(do.group, ()))
        for member in self._members.pop((table.id, do.group)):
            engine.write_member("delete", table.profile, member)
        del self._sets[table.id, do.group]
        self._sets_of[table.profile.id] -= 1

    def is_gone(self, table: TableSchema, do: DoGroup) -> bool:
        """True for the group of an action set whose entry was deleted or got another one."""
        return do.group >= FIRST_ID and (table.id, do.group) not in self._sets

    def describe(self, table: TableSchema, do: DoGroup, message: p4r.TableAction) -> bool:
        """Fills the message with the action set as the client wrote it; False where `do` is an ordinary group."""
        stored = self._sets.get((table.id, do.group))
        if stored is None:
            return False
        message.action_profile_action_set.CopyFrom(stored)
        return True
