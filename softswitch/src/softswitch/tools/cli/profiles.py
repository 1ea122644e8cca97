# SPDX-License-Identifier: Apache-2.0
"""The commands of action profiles and selectors."""

from __future__ import annotations

from typing import Any

from softswitch.tools.cli.program import Action, Profile
from softswitch.tools.cli.shell import Shell, command
from softswitch.tools.cli.values import CommandError, parse_params

_MEMBER, _GROUP = "member handle", "group handle"


class ProfileCommands(Shell):
    """act_prof_*."""

    def _params(self, action: Action, args: list[str]) -> list[bytes]:
        """The parameters of an action, behind "=>" or without it."""
        return parse_params(action, args[1:] if args[:1] == ["=>"] else args)

    def _profile(self, name: str, *, selector: bool = False) -> Profile:
        profile: Profile = self.find("action profile", name)
        if selector and not profile.selector:
            raise CommandError("Cannot run this command on an action profile without selector")
        return profile

    def _profile_action(self, profile: Profile, profile_name: str, name: str) -> Action:
        action: Action | None = self.names.find("action", name)
        if action is None or action.name not in profile.actions:
            raise CommandError(f"Action profile '{profile_name}' has no action '{name}'")
        return action

    @command
    def do_act_prof_create_member(self, args: list[str]) -> None:
        ("Add a member to an action profile: act_prof_create_member <action profile name> <action_name> "
         "[action parameters]")
        self.at_least(args, 2)
        profile = self._profile(args[0])
        action = self._profile_action(profile, args[0], args[1])
        handle = self.client.bm_mt_act_prof_add_member(0, profile.name, action.name, parse_params(action, args[2:]))
        print("Member has been created with handle", handle)

    @command
    def do_act_prof_delete_member(self, args: list[str]) -> None:
        "Delete a member in an action profile: act_prof_delete_member <action profile name> <member handle>"
        self.exactly(args, 2)
        profile = self._profile(args[0])
        self.client.bm_mt_act_prof_delete_member(0, profile.name, self.number(args[1], _MEMBER))

    @command
    def do_act_prof_modify_member(self, args: list[str]) -> None:
        ("Modify member in an action profile: act_prof_modify_member <action profile name> <action_name> "
         "<member_handle> [action parameters]")
        self.at_least(args, 3)
        profile = self._profile(args[0])
        action = self._profile_action(profile, args[0], args[1])
        handle = self.number(args[2], _MEMBER)
        self.client.bm_mt_act_prof_modify_member(0, profile.name, handle, action.name, self._params(action, args[3:]))

    @command
    def do_act_prof_create_group(self, args: list[str]) -> None:
        "Add a group to an action pofile: act_prof_create_group <action profile name>"
        self.exactly(args, 1)
        handle = self.client.bm_mt_act_prof_create_group(0, self._profile(args[0], selector=True).name)
        print("Group has been created with handle", handle)

    @command
    def do_act_prof_delete_group(self, args: list[str]) -> None:
        "Delete a group from an action profile: act_prof_delete_group <action profile name> <group handle>"
        self.exactly(args, 2)
        profile = self._profile(args[0], selector=True)
        self.client.bm_mt_act_prof_delete_group(0, profile.name, self.number(args[1], _GROUP))

    @command
    def do_act_prof_add_member_to_group(self, args: list[str]) -> None:
        ("Add member to group in an action profile: act_prof_add_member_to_group <action profile name> "
         "<member handle> <group handle>")
        self.exactly(args, 3)
        profile = self._profile(args[0], selector=True)
        self.client.bm_mt_act_prof_add_member_to_group(
            0, profile.name, self.number(args[1], _MEMBER), self.number(args[2], _GROUP))

    @command
    def do_act_prof_remove_member_from_group(self, args: list[str]) -> None:
        ("Remove member from group in action profile: act_prof_remove_member_from_group <action profile name> "
         "<member handle> <group handle>")
        self.exactly(args, 3)
        profile = self._profile(args[0], selector=True)
        self.client.bm_mt_act_prof_remove_member_from_group(
            0, profile.name, self.number(args[1], _MEMBER), self.number(args[2], _GROUP))

    # ---- dumps -----------------------------------------------------------------------------------------------

    def _dump_call(self, name: str, data: list[bytes]) -> None:
        print(f"Action entry: {name} - {', '.join(one.hex() for one in data)}")

    def _dump_member(self, member: Any) -> None:
        print(f"Dumping member {member.mbr_handle}")
        self._dump_call(member.action_name, member.action_data)

    def _dump_group(self, group: Any) -> None:
        print(f"Dumping group {group.grp_handle}")
        print(f"Members: [{', '.join(map(str, group.mbr_handles))}]")

    def _dump_profile(self, profile: Profile) -> None:
        print("==========\nMEMBERS")
        for member in self.client.bm_mt_act_prof_get_members(0, profile.name):
            print("**********")
            self._dump_member(member)
        if profile.selector:
            groups = self.client.bm_mt_act_prof_get_groups(0, profile.name)
            print("==========\nGROUPS")
            for group in groups:
                print("**********")
                self._dump_group(group)

    @command
    def do_act_prof_dump(self, args: list[str]) -> None:
        "Display entries in an action profile: act_prof_dump <action profile name>"
        self.exactly(args, 1)
        self._dump_profile(self._profile(args[0]))

    @command
    def do_act_prof_dump_member(self, args: list[str]) -> None:
        ("Display some information about a member: act_prof_dump_member <action profile name> <member handle>")
        self.exactly(args, 2)
        profile = self._profile(args[0])
        self._dump_member(self.client.bm_mt_act_prof_get_member(0, profile.name, self.number(args[1], _MEMBER)))

    @command
    def do_act_prof_dump_group(self, args: list[str]) -> None:
        "Display some information about a group: table_dump_group <action profile name> <group handle>"
        self.exactly(args, 2)
        profile = self._profile(args[0])
        self._dump_group(self.client.bm_mt_act_prof_get_group(0, profile.name, self.number(args[1], _GROUP)))
