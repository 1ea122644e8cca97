# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors over Thrift: members and groups have the lowest free handle, from 0 on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from softswitch.engine.entities import DoAction, Group
from softswitch.engine.errors import AlreadyExists, EngineError, FailedPrecondition, NotFound, ResourceExhausted
from softswitch.engine.program_info import ActionInfo, ProfileInfo, TableInfo
from softswitch.p4runtime.context import Context
from softswitch.thrift.entry_structs import pack_params, shortest, signed
from softswitch.thrift.switch import STANDARD, Switch, fail_table


def _lowest_free(used: Iterable[int]) -> int:
    taken = set(used)
    return next(n for n in range(len(taken) + 1) if n not in taken)


class Profiles:
    """The methods bm_mt_act_prof_*."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def _profile(self, cxt_id: int, name: str, *, selector: bool = False) -> tuple[Context, ProfileInfo]:
        context = self._switch.context()
        profile = next((p for p in context.engine.info.profiles if p.name == name), None)
        if profile is None:
            fail_table("INVALID_ACTION_PROFILE_NAME")
        if selector and not profile.selector:
            fail_table("NO_ACTION_PROFILE_SELECTION")
        return context, profile

    def _action(self, context: Context, profile: ProfileInfo, name: str) -> tuple[TableInfo, ActionInfo]:
        """An action of the tables that use the profile, and one of these tables."""
        for table in context.engine.info.tables:
            if table.profile == profile.index:
                for action in table.actions:
                    if action.name == name:
                        return table, action
        fail_table("INVALID_ACTION_NAME")

    def _write_member(self, kind: str, cxt_id: int, name: str, handle: int | None, action_name: str,
                      data: Any) -> int:
        context, profile = self._profile(cxt_id, name)
        table, action = self._action(context, profile, action_name)
        params = pack_params(action, data)
        if handle is None:
            handle = _lowest_free(member.member for member in context.engine.members(profile))
        try:
            context.engine.write_member(kind, profile, handle & 0xFFFFFFFF, table, DoAction(action.index, params))
        except NotFound:
            fail_table("INVALID_MBR_HANDLE")
        except ResourceExhausted:
            fail_table("TABLE_FULL")
        return signed(handle & 0xFFFFFFFF)

    # ---- members ---------------------------------------------------------------------------------------------

    def bm_mt_act_prof_add_member(self, cxt_id: int, act_prof_name: str, action_name: str, action_data: Any) -> int:
        return self._write_member("insert", cxt_id, act_prof_name, None, action_name, action_data)

    def bm_mt_act_prof_modify_member(self, cxt_id: int, act_prof_name: str, mbr_handle: int, action_name: str,
                                     action_data: Any) -> None:
        self._write_member("modify", cxt_id, act_prof_name, mbr_handle, action_name, action_data)

    def bm_mt_act_prof_delete_member(self, cxt_id: int, act_prof_name: str, mbr_handle: int) -> None:
        context, profile = self._profile(cxt_id, act_prof_name)
        try:
            context.engine.write_member("delete", profile, mbr_handle & 0xFFFFFFFF)
        except NotFound:
            fail_table("INVALID_MBR_HANDLE")
        except FailedPrecondition:
            fail_table("MBR_STILL_USED")

    def _describe(self, context: Context, profile: ProfileInfo, member: Any) -> Any:
        for table in context.engine.info.tables:
            if table.profile == profile.index:
                for action in table.actions:
                    if action.id == member.action_id:
                        return STANDARD.BmMtActProfMember(signed(member.member), action.name,
                                                          [shortest(v) for v in action.unpack(member.params)])
        raise EngineError(f"action profile {profile.name}: member {member.member} has an action of no table")

    def bm_mt_act_prof_get_members(self, cxt_id: int, act_prof_name: str) -> list[Any]:
        context, profile = self._profile(cxt_id, act_prof_name)
        members = sorted(context.engine.members(profile), key=lambda member: member.member)
        return [self._describe(context, profile, member) for member in members]

    def bm_mt_act_prof_get_member(self, cxt_id: int, act_prof_name: str, mbr_handle: int) -> Any:
        context, profile = self._profile(cxt_id, act_prof_name)
        try:
            (member,) = context.engine.members(profile, mbr_handle & 0xFFFFFFFF)
        except NotFound:
            fail_table("INVALID_MBR_HANDLE")
        return self._describe(context, profile, member)

    # ---- groups ----------------------------------------------------------------------------------------------

    def _group(self, context: Context, profile: ProfileInfo, handle: int) -> Group:
        try:
            (group,) = context.engine.groups(profile, handle & 0xFFFFFFFF)
        except NotFound:
            fail_table("INVALID_GRP_HANDLE")
        return group

    def _change(self, cxt_id: int, name: str, mbr_handle: int, grp_handle: int, *, add: bool) -> None:
        context, profile = self._profile(cxt_id, name, selector=True)
        ident = mbr_handle & 0xFFFFFFFF
        try:
            context.engine.members(profile, ident)
        except NotFound:
            fail_table("INVALID_MBR_HANDLE")
        group = self._group(context, profile, grp_handle)
        within = any(member == ident for member, _ in group.members)
        if add and within:
            fail_table("MBR_ALREADY_IN_GRP")
        if not add and not within:
            fail_table("MBR_NOT_IN_GRP")
        members = (*group.members, (ident, 1)) if add else tuple(m for m in group.members if m[0] != ident)
        size = group.max_size and max(group.max_size, len(members))
        context.engine.write_group("modify", profile, Group(group.group, members, size))

    def bm_mt_act_prof_create_group(self, cxt_id: int, act_prof_name: str) -> int:
        context, profile = self._profile(cxt_id, act_prof_name, selector=True)
        handle = _lowest_free(group.group for group in context.engine.groups(profile))
        try:
            context.engine.write_group("insert", profile, Group(handle, ()))
        except (AlreadyExists, ResourceExhausted):
            fail_table("ERROR")
        return handle

    def bm_mt_act_prof_delete_group(self, cxt_id: int, act_prof_name: str, grp_handle: int) -> None:
        context, profile = self._profile(cxt_id, act_prof_name, selector=True)
        try:
            context.engine.write_group("delete", profile, Group(grp_handle & 0xFFFFFFFF, ()))
        except NotFound:
            fail_table("INVALID_GRP_HANDLE")
        except FailedPrecondition:
            fail_table("GRP_STILL_USED")

    def bm_mt_act_prof_add_member_to_group(self, cxt_id: int, act_prof_name: str, mbr_handle: int,
                                           grp_handle: int) -> None:
        self._change(cxt_id, act_prof_name, mbr_handle, grp_handle, add=True)

    def bm_mt_act_prof_remove_member_from_group(self, cxt_id: int, act_prof_name: str, mbr_handle: int,
                                                grp_handle: int) -> None:
        self._change(cxt_id, act_prof_name, mbr_handle, grp_handle, add=False)

    def bm_mt_act_prof_get_groups(self, cxt_id: int, act_prof_name: str) -> list[Any]:
        context, profile = self._profile(cxt_id, act_prof_name, selector=True)
        groups = sorted(context.engine.groups(profile), key=lambda group: group.group)
        return [_describe_group(group) for group in groups]

    def bm_mt_act_prof_get_group(self, cxt_id: int, act_prof_name: str, grp_handle: int) -> Any:
        context, profile = self._profile(cxt_id, act_prof_name, selector=True)
        return _describe_group(self._group(context, profile, grp_handle))


def _describe_group(group: Group) -> Any:
    return STANDARD.BmMtActProfGroup(signed(group.group), sorted(signed(member) for member, _ in group.members))
