# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions: the packet replication engine (P4Runtime 9.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finsy.proto import p4r

from softswitch.engine.entities import CloneSession, Multicast
from softswitch.engine.errors import InvalidArgument, Unimplemented
from softswitch.p4runtime.context import Context

PORT_BITS = 9
GROUP_BITS = 16
SESSION_BITS = 15


def _replicas(context: Context, messages: Iterable[p4r.Replica], what: str) -> tuple[tuple[int, int], ...]:
    pairs = []
    for replica in messages:
        if replica.backup_replicas:
            raise Unimplemented(f"{what}: backup replicas are not supported: change the group when a port goes down")
        if replica.WhichOneof("port_kind") == "port":
            port = context.schema.types.port.decode(replica.port, f"{what}, port")
        else:
            port = replica.egress_port
        if not 0 <= port < 1 << PORT_BITS:
            raise InvalidArgument(f"{what}: port {port} is not within 0..{(1 << PORT_BITS) - 1}")
        if replica.instance >= 1 << 16:
            raise InvalidArgument(f"{what}: instance {replica.instance} does not fit egress_rid, which has 16 bits")
        pairs.append((port, replica.instance))
    if len(set(pairs)) < len(pairs):
        twice = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise InvalidArgument(f"{what}: port {twice[0]} with instance {twice[1]} is there twice")
    return tuple(pairs)


def _fill(context: Context, message: p4r.Replica, port: int, instance: int) -> None:
    message.instance = instance
    if context.schema.types.port.sdn_bits == PORT_BITS:
        message.egress_port = port
    else:  # a translated type, which egress_port has no room for
        message.port = context.schema.types.port.encode(port)


def write_group(context: Context, kind: str, message: p4r.MulticastGroupEntry) -> None:
    """Writes a multicast group. Raises InvalidArgument, AlreadyExists, NotFound."""
    group = message.multicast_group_id
    if not 0 < group < 1 << GROUP_BITS:
        raise InvalidArgument(f"multicast group {group} is not within 1..{(1 << GROUP_BITS) - 1}")
    replicas = _replicas(context, message.replicas, f"multicast group {group}")
    context.engine.write_multicast(kind, Multicast(group, replicas))
    if message.metadata and kind != "delete":
        context.group_metadata[group] = message.metadata
    else:
        context.group_metadata.pop(group, None)


def read_groups(context: Context, asked: p4r.MulticastGroupEntry) -> Iterator[p4r.Entity]:
    """Reads one multicast group or all, with their metadata."""
    for group in context.engine.multicasts(asked.multicast_group_id or None):
        entity = p4r.Entity()
        found = entity.packet_replication_engine_entry.multicast_group_entry
        found.multicast_group_id = group.group
        found.metadata = context.group_metadata.get(group.group, b"")
        for port, instance in group.replicas:
            _fill(context, found.replicas.add(), port, instance)
        yield entity


def write_session(context: Context, kind: str, message: p4r.CloneSessionEntry) -> None:
    """Writes a clone session.

    Raises InvalidArgument, AlreadyExists, NotFound, Unimplemented for a class of service.
    """
    session = message.session_id
    what = f"clone session {session}"
    if not 0 < session < 1 << SESSION_BITS:
        raise InvalidArgument(f"{what} is not within 1..{(1 << SESSION_BITS) - 1}")
    if message.class_of_service:
        raise Unimplemented(f"{what}: there is one class of service only, 0; got {message.class_of_service}")
    if message.packet_length_bytes < 0:
        raise InvalidArgument(f"{what}: packet length {message.packet_length_bytes} is negative")
    replicas = _replicas(context, message.replicas, what)
    context.engine.write_clone_session(kind, CloneSession(session, replicas, message.packet_length_bytes))


def read_sessions(context: Context, asked: p4r.CloneSessionEntry) -> Iterator[p4r.Entity]:
    """Reads one clone session or all."""
    for session in context.engine.clone_sessions(asked.session_id or None):
        entity = p4r.Entity()
        found = entity.packet_replication_engine_entry.clone_session_entry
        found.session_id, found.packet_length_bytes = session.session, session.truncate_to
        for port, instance in session.replicas:
            _fill(context, found.replicas.add(), port, instance)
        yield entity
