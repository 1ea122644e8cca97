# SPDX-License-Identifier: Apache-2.0
"""The commands of tables, also of those with an action profile."""

from __future__ import annotations

import sys
from typing import Any

from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.profiles import ProfileCommands
from softswitch.tools.cli.program import Action, Table
from softswitch.tools.cli.shell import command
from softswitch.tools.cli.values import CommandError, colons, dumped, parse_key, parse_params, shown

_T = TYPES["standard"]
_ENTRY, _HANDLE = "entry handle", "handle"


class TableCommands(ProfileCommands):
    """show_* and table_*."""

    # ---- what there is ---------------------------------------------------------------------------------------

    @command
    def do_show_tables(self, args: list[str]) -> None:
        "List tables defined in the P4 program: show_tables"
        self.exactly(args, 0)
        for name in sorted(self.names.tables):
            print(self.names.tables[name])

    @command
    def do_show_actions(self, args: list[str]) -> None:
        "List actions defined in the P4 program: show_actions"
        self.exactly(args, 0)
        for name in sorted(self.names.actions):
            print(self.names.actions[name])

    @command
    def do_table_show_actions(self, args: list[str]) -> None:
        "List one table's actions as per the P4 program: table_show_actions <table_name>"
        self.exactly(args, 1)
        self._print_actions(self.find("table", args[0]))

    @command
    def do_table_info(self, args: list[str]) -> None:
        "Show info about a table: table_info <table_name>"
        self.exactly(args, 1)
        table = self.find("table", args[0])
        print(table)
        print("*" * 80)
        self._print_actions(table)

    def _print_actions(self, table: Table) -> None:
        for name in sorted(table.actions):
            print(table.actions[name])

    # ---- arguments -------------------------------------------------------------------------------------------

    def _action(self, table: Table, table_name: str, name: str) -> Action:
        action: Action | None = self.names.find("action", name)
        if action is None or action.name not in table.actions:
            raise CommandError(f"Table {table_name} has no action {name}")
        return action

    def _priority(self, table: Table, args: list[str]) -> int:
        """The priority of an entry, which is taken off the end of its arguments; 0 where the table has none."""
        if not table.ordered:
            return 0
        try:
            return int(args.pop())
        except (ValueError, IndexError):
            raise CommandError("Table is ternary, but could not extract a valid priority from args") from None

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        """The arguments before and after "=>"; without it, the last word belongs to neither, as in BMv2."""
        at = args.index("=>") if "=>" in args else max(0, len(args) - 1)
        return args[:at], args[at + 1 :]

    # ---- default actions -------------------------------------------------------------------------------------

    @command
    def do_table_set_default(self, args: list[str]) -> None:
        "Set default action for a match table: table_set_default <table name> <action name> <action parameters>"
        self.at_least(args, 2)
        table = self.find("table", args[0])
        action = self._action(table, args[0], args[1])
        params = parse_params(action, args[2:], name=args[1])
        print("Setting default action of", args[0])
        self._print_call(args[1], params)
        self.client.bm_mt_set_default_action(0, table.name, action.name, params)

    def _print_call(self, name: str, params: list[bytes]) -> None:
        print(f"{'action:':20} {name}")
        print(f"{'runtime data:':20} " + "\t".join(map(colons, params)))

    @command
    def do_table_reset_default(self, args: list[str]) -> None:
        "Reset default entry for a match table: table_reset_default <table name>"
        self.exactly(args, 1)
        self.client.bm_mt_reset_default_entry(0, self.find("table", args[0]).name)

    # ---- entries ---------------------------------------------------------------------------------------------

    @command
    def do_table_num_entries(self, args: list[str]) -> None:
        "Return the number of entries in a match table (direct or indirect): table_num_entries <table name>"
        self.exactly(args, 1)
        print(self.client.bm_mt_get_num_entries(0, self.find("table", args[0]).name))

    @command
    def do_table_clear(self, args: list[str]) -> None:
        "Clear all entries in a match table (direct or indirect), but not the default entry: table_clear <table name>"
        self.exactly(args, 1)
        self.client.bm_mt_clear_entries(0, self.find("table", args[0]).name, False)

    @command
    def do_table_add(self, args: list[str]) -> None:
        ("Add entry to a match table: table_add <table name> <action name> <match fields> => <action parameters> "
         "[priority]")
        self.at_least(args, 3)
        table = self.find("table", args[0])
        action = self._action(table, args[0], args[1])
        priority = self._priority(table, args)
        key_texts, param_texts = self._split(args[2:])
        if len(key_texts) != len(table.key):
            raise CommandError(f"Table {args[0]} needs {len(table.key)} key fields")
        params = parse_params(action, param_texts)
        key = parse_key(table, key_texts)
        print("Adding entry to", table.match, "match table", args[0])
        print(f"{'match key:':20} " + "\t".join(map(shown, key)))
        self._print_call(args[1], params)
        handle = self.client.bm_mt_add_entry(0, table.name, key, action.name, params, _T.BmAddEntryOptions(priority))
        print("Entry has been added with handle", handle)

    @command
    def do_table_set_timeout(self, args: list[str]) -> None:
        ("Set a timeout in ms for a given entry; the table has to support timeouts: table_set_timeout <table_name> "
         "<entry handle> <timeout (ms)>")
        self.exactly(args, 3)
        table = self.find("table", args[0])
        if not table.ages:
            raise CommandError(f"Table {args[0]} does not support entry timeouts")
        handle, timeout = self.number(args[1], _ENTRY), self.number(args[2], "timeout")
        print("Setting a", timeout, "ms timeout for entry", handle)
        self.client.bm_mt_set_entry_ttl(0, table.name, handle, timeout)

    @command
    def do_table_modify(self, args: list[str]) -> None:
        "Add entry to a match table: table_modify <table name> <action name> <entry handle> [action parameters]"
        self.at_least(args, 3)
        table = self.find("table", args[0])
        action = self._action(table, args[0], args[1])
        handle = self.number(args[2], _ENTRY)
        params = self._params(action, args[3:])
        print("Modifying entry", handle, "for", table.match, "match table", args[0])
        self.client.bm_mt_modify_entry(0, table.name, handle, action.name, params)

    @command
    def do_table_delete(self, args: list[str]) -> None:
        "Delete entry from a match table: table_delete <table name> <entry handle>"
        self.exactly(args, 2)
        table = self.find("table", args[0])
        handle = self.number(args[1], _ENTRY)
        print("Deleting entry", handle, "from", args[0])
        self.client.bm_mt_delete_entry(0, table.name, handle)

    # ---- entries of tables with an action profile ------------------------------------------------------------

    def _indirect(self, name: str, *, selector: bool) -> Table:
        table: Table = self.find("table", name)
        if selector and table.type != "indirect_ws":
            raise CommandError("Cannot run this command on non-indirect table, or on indirect table with no selector")
        if table.type == "simple":
            raise CommandError("Cannot run this command on non-indirect table")
        return table

    def _indirect_entry(self, args: list[str], *, selector: bool) -> tuple[str, list[Any], int, Any]:
        self.at_least(args, 2)
        table = self._indirect(args[0], selector=selector)
        priority = self._priority(table, args)
        key_texts, rest = self._split(args[1:])
        if len(rest) != 1:
            raise CommandError("Invalid arguments, could not find handle")
        handle = self.number(rest[0], _HANDLE)
        key = parse_key(table, key_texts)
        print("Adding entry to indirect match table", table.name)
        return table.name, key, handle, _T.BmAddEntryOptions(priority)

    @command
    def do_table_indirect_add(self, args: list[str]) -> None:
        ("Add entry to an indirect match table: table_indirect_add <table name> <match fields> => <member handle> "
         "[priority]")
        handle = self.client.bm_mt_indirect_add_entry(0, *self._indirect_entry(args, selector=False))
        print("Entry has been added with handle", handle)

    @command
    def do_table_indirect_add_with_group(self, args: list[str]) -> None:
        ("Add entry to an indirect match table: table_indirect_add <table name> <match fields> => <group handle> "
         "[priority]")
        handle = self.client.bm_mt_indirect_ws_add_entry(0, *self._indirect_entry(args, selector=True))
        print("Entry has been added with handle", handle)

    @command
    def do_table_indirect_delete(self, args: list[str]) -> None:
        "Delete entry from an indirect match table: table_indirect_delete <table name> <entry handle>"
        self.exactly(args, 2)
        table = self._indirect(args[0], selector=False)
        handle = self.number(args[1], _ENTRY)
        print("Deleting entry", handle, "from", args[0])
        self.client.bm_mt_indirect_delete_entry(0, table.name, handle)

    @command
    def do_table_indirect_set_default(self, args: list[str]) -> None:
        "Set default member for indirect match table: table_indirect_set_default <table name> <member handle>"
        self.exactly(args, 2)
        table = self._indirect(args[0], selector=False)
        self.client.bm_mt_indirect_set_default_member(0, table.name, self.number(args[1], _HANDLE))

    @command
    def do_table_indirect_set_default_with_group(self, args: list[str]) -> None:
        "Set default group for indirect match table: table_indirect_set_default <table name> <group handle>"
        self.exactly(args, 2)
        table = self._indirect(args[0], selector=True)
        self.client.bm_mt_indirect_ws_set_default_group(0, table.name, self.number(args[1], _HANDLE))

    @command
    def do_table_indirect_reset_default(self, args: list[str]) -> None:
        "Reset default entry for indirect match table: table_indirect_reset_default <table name>"
        self.exactly(args, 1)
        self.client.bm_mt_indirect_reset_default_entry(0, self.find("table", args[0]).name)

    # ---- dumps -----------------------------------------------------------------------------------------------

    def _dump_action(self, entry: Any) -> None:
        kinds = _T.BmActionEntryType
        if entry.action_type == kinds.ACTION_DATA:
            self._dump_call(entry.action_name, entry.action_data)
        elif entry.action_type == kinds.MBR_HANDLE:
            print(f"Index: member({entry.mbr_handle})")
        elif entry.action_type == kinds.GRP_HANDLE:
            print(f"Index: group({entry.grp_handle})")
        else:
            print("EMPTY")

    def _dump_entry(self, table: Table, entry: Any) -> None:
        wide = max(20, *(len(name) for name, _, _ in table.key)) if table.key else 0
        print(f"Dumping entry {hex(entry.entry_handle)}")
        print("Match key:")
        for param, (name, _, _) in zip(entry.match_key, table.key, strict=False):
            print(f"* {name:{wide}}: {dumped(param)}")
        if entry.options.priority >= 0:
            print(f"Priority: {entry.options.priority}")
        self._dump_action(entry.action_entry)
        if entry.life is not None:
            print(f"Life: {entry.life.time_since_hit_ms}ms since hit, timeout is {entry.life.timeout_ms}ms")

    @command
    def do_table_dump_entry(self, args: list[str]) -> None:
        "Display some information about a table entry: table_dump_entry <table name> <entry handle>"
        self.exactly(args, 2)
        table = self.find("table", args[0])
        self._dump_entry(table, self.client.bm_mt_get_entry(0, table.name, self.number(args[1], _ENTRY)))

    @command
    def do_table_dump_entry_from_key(self, args: list[str]) -> None:
        "Display some information about a table entry: table_dump_entry_from_key <table name> <match fields> [priority]"
        self.at_least(args, 1)
        table = self.find("table", args[0])
        options = _T.BmAddEntryOptions(self._priority(table, args))
        key = parse_key(table, args[1:], name=args[0])
        self._dump_entry(table, self.client.bm_mt_get_entry_from_key(0, table.name, key, options))

    @command
    def do_table_dump(self, args: list[str]) -> None:
        "Display entries in a match-table: table_dump <table name>"
        self.exactly(args, 1)
        table = self.find("table", args[0])
        entries = self.client.bm_mt_get_entries(0, table.name)
        print("==========\nTABLE ENTRIES")
        for entry in entries:
            print("**********")
            self._dump_entry(table, entry)
        if table.profile is not None:
            self._dump_profile(table.profile)
        default = self.client.bm_mt_get_default_entry(0, table.name)
        print("==========\nDumping default entry")
        self._dump_action(default)
        print("==========")


def _by_table(substitute: str, text: str, *, selector: bool, deprecated: bool = True) -> Any:
    """A command that names a table where `substitute` names its action profile."""

    def run(self: TableCommands, args: list[str]) -> Any:
        self.at_least(args, 1)
        table = self._indirect(args[0], selector=selector)
        assert table.profile is not None
        if deprecated:
            if table.profile.users > 1:
                raise CommandError("Legacy command does not work with shared action profiles")
            print(f"This is a deprecated command, use '{substitute}' instead", file=sys.stderr)
        return getattr(self, f"do_{substitute}")(" ".join([table.profile.name, *args[1:]]))

    run.__doc__ = f"[DEPRECATED!] {text}\nUse '{substitute}' instead" if deprecated else text
    return command(run)


for _name, _command in {
    "table_dump_member": _by_table(
        "act_prof_dump_member",
        "Display some information about a member: table_dump_member <table name> <member handle>",
        selector=False, deprecated=False),
    "table_dump_group": _by_table(
        "act_prof_dump_group", "Display some information about a group: table_dump_group <table name> <group handle>",
        selector=False, deprecated=False),
    "table_indirect_create_member": _by_table(
        "act_prof_create_member",
        "Add a member to an indirect match table: table_indirect_create_member <table name> <action_name> "
        "[action parameters]", selector=False),
    "table_indirect_delete_member": _by_table(
        "act_prof_delete_member",
        "Delete a member in an indirect match table: table_indirect_delete_member <table name> <member handle>",
        selector=False),
    "table_indirect_modify_member": _by_table(
        "act_prof_modify_member",
        "Modify member in an indirect match table: table_indirect_modify_member <table name> <action_name> "
        "<member_handle> [action parameters]", selector=False),
    "table_indirect_create_group": _by_table(
        "act_prof_create_group",
        "Add a group to an indirect match table: table_indirect_create_group <table name>", selector=True),
    "table_indirect_delete_group": _by_table(
        "act_prof_delete_group", "Delete a group: table_indirect_delete_group <table name> <group handle>",
        selector=True),
    "table_indirect_add_member_to_group": _by_table(
        "act_prof_add_member_to_group",
        "Add member to group: table_indirect_add_member_to_group <table name> <member handle> <group handle>",
        selector=True),
    "table_indirect_remove_member_from_group": _by_table(
        "act_prof_remove_member_from_group",
        "Remove member from group: table_indirect_remove_member_from_group <table name> <member handle> "
        "<group handle>", selector=True),
}.items():
    setattr(TableCommands, f"do_{_name}", _command)
