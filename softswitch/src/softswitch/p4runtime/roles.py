# SPDX-License-Identifier: Apache-2.0
"""The permissions of a controller's role (P4Runtime 1.4, section 5: MasterArbitrationUpdate.role and its config).

P4Runtime leaves the format of a role's config to the switch.  This one takes Stratum's, the message
stratum.P4RoleConfig (stratum/public/proto/p4_role_config.proto), and refuses any other:

    exclusive_p4_ids     objects of the program that this role writes, and no other named role
    shared_p4_ids        objects that other roles may write as well
    receives_packet_ins  it receives packet-ins, and may send packet-outs
    packet_in_filter     only those packet-ins that have this metadata
    can_push_pipeline    it may push a program

The default role, which has no name and no config, may do everything; so may a named role without a config, except for
objects that another role owns exclusively. Multicast groups and clone sessions have no id that a config could name:
only roles without a config write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from finsy.proto import p4r
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from softswitch.engine.errors import InvalidArgument, PermissionDenied, Unimplemented

NAME_MAX = 256
"""Characters of a role's name."""
CONFIG_MAX = 1 << 16
"""Bytes of a role's config: some ten thousand ids."""

_Field = descriptor_pb2.FieldDescriptorProto
_IDS: dict[str, Callable[[Any], int]] = {
    "table_entry": lambda m: m.table_id,
    "action_profile_member": lambda m: m.action_profile_id,
    "action_profile_group": lambda m: m.action_profile_id,
    "meter_entry": lambda m: m.meter_id,
    "direct_meter_entry": lambda m: m.table_entry.table_id,
    "counter_entry": lambda m: m.counter_id,
    "direct_counter_entry": lambda m: m.table_entry.table_id,
    "value_set_entry": lambda m: m.value_set_id,
    "register_entry": lambda m: m.register_id,
    "digest_entry": lambda m: m.digest_id,
    "extern_entry": lambda m: m.extern_id,
}


def _config_class() -> Any:
    """The class of stratum.P4RoleConfig, made of its fields' numbers and types."""
    file = descriptor_pb2.FileDescriptorProto(name="p4_role_config.proto", package="stratum", syntax="proto3")
    config = file.message_type.add(name="P4RoleConfig")
    inner = config.nested_type.add(name="PacketFilter")
    inner.field.add(name="metadata_id", number=1, type=_Field.TYPE_UINT32, label=_Field.LABEL_OPTIONAL)
    inner.field.add(name="value", number=2, type=_Field.TYPE_BYTES, label=_Field.LABEL_OPTIONAL)
    config.field.add(name="exclusive_p4_ids", number=1, type=_Field.TYPE_UINT32, label=_Field.LABEL_REPEATED)
    config.field.add(name="shared_p4_ids", number=2, type=_Field.TYPE_UINT32, label=_Field.LABEL_REPEATED)
    config.field.add(name="packet_in_filter", number=3, type=_Field.TYPE_MESSAGE, label=_Field.LABEL_OPTIONAL,
                     type_name=".stratum.P4RoleConfig.PacketFilter")
    config.field.add(name="receives_packet_ins", number=4, type=_Field.TYPE_BOOL, label=_Field.LABEL_OPTIONAL)
    config.field.add(name="can_push_pipeline", number=5, type=_Field.TYPE_BOOL, label=_Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("stratum.P4RoleConfig"))


P4RoleConfig = _config_class()


@dataclass(frozen=True)
class Access:
    """The permissions in a role's config; without a config, all."""

    restricted: bool = False
    exclusive: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    packets: bool = True
    packet_in_filter: tuple[int, bytes] | None = None
    push: bool = True

    def names(self, ident: int) -> bool:
        """True if the role's own config lets it write this object."""
        return not self.restricted or ident in self.exclusive or ident in self.shared

    def receives(self, message: p4r.StreamMessageResponse) -> bool:
        """True if a message of the data plane is for this role."""
        kind = message.WhichOneof("update")
        if kind == "packet":
            wanted = self.packet_in_filter
            return self.packets and (wanted is None or wanted in ((m.metadata_id, m.value)
                                                                  for m in message.packet.metadata))
        if kind == "digest":
            return self.names(message.digest.digest_id)
        if kind == "idle_timeout_notification":
            return all(self.names(entry.table_id) for entry in message.idle_timeout_notification.table_entry)
        return True


def name(role: p4r.Role) -> str:
    """The name of a role; #NUMBER for one that has an id, as before P4Runtime 1.3.  Raises InvalidArgument."""
    if len(role.name) > NAME_MAX or role.name.startswith("#"):
        raise InvalidArgument(f"role.name: expected at most {NAME_MAX} characters, and no # as the first, got "
                              f"{len(role.name)}: {role.name[:20]!r}")
    return role.name or (f"#{role.id}" if role.id else "")


def decode(role: p4r.Role) -> Access:
    """The permissions of the role of an arbitration update. Raises InvalidArgument and Unimplemented."""
    if not role.HasField("config"):
        return Access()
    if not (role.name or role.id):
        raise InvalidArgument("role.config: the default role has none, since it may do everything; name the role")
    if len(role.config.value) > CONFIG_MAX:
        raise InvalidArgument(f"role.config of role {role.name!r}: expected at most {CONFIG_MAX} bytes, got "
                              f"{len(role.config.value)}")
    config = P4RoleConfig()
    try:
        if not role.config.Unpack(config):
            raise Unimplemented(f"role.config of role {role.name!r}: expected a stratum.P4RoleConfig, the only format "
                                f"that is supported, got {role.config.type_url!r}")
    except DecodeError as error:
        raise InvalidArgument(f"role.config of role {role.name!r} cannot be read: {error}") from error
    wanted = None
    if config.HasField("packet_in_filter"):
        if not config.receives_packet_ins:
            raise InvalidArgument(f"role.config of role {role.name!r}: packet_in_filter without receives_packet_ins")
        if not config.packet_in_filter.value:
            raise InvalidArgument(f"role.config of role {role.name!r}: packet_in_filter has no value")
        canonical = config.packet_in_filter.value.lstrip(b"\0") or b"\0"  # as packet_io.py encodes it (8.4)
        wanted = config.packet_in_filter.metadata_id, canonical
    return Access(
        True, frozenset(config.exclusive_p4_ids), frozenset(config.shared_p4_ids), config.receives_packet_ins, wanted,
        config.can_push_pipeline,
    )


@dataclass(frozen=True)
class Permission:
    """The present permissions of a role, beside the other roles.

    taken  objects that other named roles own exclusively, with the role's name
    """

    role: str
    access: Access
    taken: Mapping[int, str] = field(default_factory=dict)

    def check_push(self) -> None:
        """Raises PermissionDenied where the role may not push a program."""
        if not self.access.push:
            raise PermissionDenied(f"role {self.role!r} may not push a pipeline: its config lacks can_push_pipeline")

    def check_packet_out(self) -> None:
        """Raises PermissionDenied where the role may not send packets."""
        if not self.access.packets:
            raise PermissionDenied(f"role {self.role!r} may not send packets: its config lacks receives_packet_ins")

    def check_object(self, ident: int, what: str) -> None:
        """Raises PermissionDenied where the role may not write an object."""
        if not self.access.names(ident):
            raise PermissionDenied(f"{what} {ident:#010x}: the config of role {self.role!r} does not name it")
        if ident in self.taken:
            raise PermissionDenied(f"{what} {ident:#010x}: only role {self.taken[ident]!r} may write it")

    def check_write(self, updates: Iterable[p4r.Update]) -> None:
        """Raises PermissionDenied where the role may not write one of these."""
        if not self.access.restricted and not self.taken:
            return
        for update in updates:
            kind = update.entity.WhichOneof("entity") or "empty entity"
            if kind in _IDS:
                self.check_object(_IDS[kind](getattr(update.entity, kind)), kind)
            elif self.access.restricted:
                raise PermissionDenied(f"{kind}: it has no P4 id that the config of role {self.role!r} could name")

    def check_read(self, asked: Iterable[p4r.Entity]) -> None:
        """Raises PermissionDenied where the role asks for an object by its id that its config does not name."""
        for entity in asked:
            kind = entity.WhichOneof("entity")
            ident = _IDS[kind](getattr(entity, kind)) if kind in _IDS else 0
            if ident and not self.access.names(ident):
                raise PermissionDenied(f"{kind} {ident:#010x}: the config of role {self.role!r} does not name it")

    def shows(self, entity: p4r.Entity) -> bool:
        """True if a read of everything shows this entity to the role."""
        kind = entity.WhichOneof("entity")
        return kind not in _IDS or self.access.names(_IDS[kind](getattr(entity, kind)))
