# SPDX-License-Identifier: Apache-2.0
"""The controllers of a switch: for each role, the one with the highest election id is primary (P4Runtime 5).

This is plain state without sockets: messages to a controller go to the `send` of its Session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from finsy.proto import p4r, rpc_code

from softswitch.engine.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from softswitch.p4runtime import roles
from softswitch.p4runtime.roles import Access, Permission

MAX_ROLES = 64
"""Roles whose highest election id is remembered after their controllers have left."""

Send = Callable[[p4r.StreamMessageResponse], None]


def election_number(message: p4r.Uint128) -> int:
    """The 128-bit number of an election id; 0, also where it is unset, never makes a primary."""
    return message.high << 64 | message.low


@dataclass(eq=False)
class Session:
    """One controller's stream.

    peer    its address, for messages
    may     whether it may be primary (primaries.py)
    role    name of its role ("" is the default role), None before arbitration
    access  what the config of its role allows, which counts while it is primary
    """

    send: Send
    peer: str = ""
    may: bool = True
    role: str | None = None
    election_id: int = 0
    access: Access = field(default_factory=Access)


class Arbitration:
    """Decides which controller of each role is primary, and may write.

    default_role_only  whether no other role may have a controller: each has a primary of its own, which would write
                       without the default role's hearing of it
    """

    def __init__(self, device_id: int, *, default_role_only: bool = False) -> None:
        self._device_id = device_id
        self._default_role_only = default_role_only
        self._lock = threading.Lock()
        self._sessions: list[Session] = []
        self.highest: dict[str, int] = {}
        """The highest election id of each role so far; it still counts after its controller has left."""

    def check_device(self, device_id: int) -> None:
        """Raises NotFound for the id of another device."""
        if device_id != self._device_id:
            raise NotFound(f"no device {device_id} here: this is device {self._device_id}")

    def update(self, session: Session, message: p4r.MasterArbitrationUpdate) -> None:
        """Registers a session, or registers it again, and notifies all controllers that this concerns.

        Raises NotFound, InvalidArgument, FailedPrecondition, PermissionDenied, Unimplemented: its stream must then end.
        """
        self.check_device(message.device_id)
        role = roles.name(message.role)
        if role and self._default_role_only:
            raise PermissionDenied(f"role {role!r}: this switch has the default role alone (--default-role-only): "
                                   "arbitrate without a role; who is not primary reads")
        election = election_number(message.election_id)
        access = roles.decode(message.role)
        with self._lock:
            if session.role is not None and session.role != role:
                raise FailedPrecondition(
                    f"the stream's role is {session.role!r} and cannot become {role!r}: open another stream"
                )
            for other in self._sessions:
                if (other is not session and session.may and other.may and other.role == role and election
                        and other.election_id == election):
                    raise InvalidArgument(f"election id {election} is in use by another controller of this role")
            for other in self._primaries():
                if other.role != role and (both := _conflict(access, other.access)):
                    shown = ", ".join(f"{ident:#010x}" for ident in sorted(both)[:5])
                    raise InvalidArgument(f"role.config of role {role!r}: {shown} would not be exclusive: role "
                                          f"{other.role!r} names them too")
            before = self._primary(role)
            if session not in self._sessions:
                self._sessions.append(session)
            session.role, session.election_id, session.access = role, election, access
            if session.may:
                self.highest[role] = max(self.highest.pop(role, 0), election)
                self._forget_roles()
            self._notify(role, session, before)

    def leave(self, session: Session) -> None:
        """Removes a session whose stream has ended, and notifies the other controllers of its role."""
        with self._lock:
            if session not in self._sessions:
                return
            role = session.role or ""
            before = self._primary(role)
            self._sessions.remove(session)
            if before is session:
                self._notify(role, None, before)

    def check_write(self, role: str, election_id: p4r.Uint128) -> None:
        """Raises PermissionDenied unless this is the primary of the role."""
        election = election_number(election_id)
        with self._lock:
            primary = self._primary(role)
            if primary is None:
                raise PermissionDenied(
                    "no controller is primary"
                    + (f" for role {role!r}" if role else "")
                    + ": open a stream and arbitrate first"
                )
            if primary.election_id != election:
                raise PermissionDenied(f"the primary has election id {primary.election_id}, not {election}")

    def permission(self, role: str) -> Permission:
        """The present permission of a role. Raises NotFound if no controller with this role is connected."""
        with self._lock:
            return self._permission(role)

    def _permission(self, role: str) -> Permission:
        primary = self._primary(role)
        if not role:
            return Permission(role, Access())
        if primary is None and not any(session.role == role for session in self._sessions):
            raise NotFound(f"role {role!r}: no controller with this role is connected")
        taken = {i: other.role or "" for other in self._primaries() if other.role != role
                 for i in other.access.exclusive}
        return Permission(role, primary.access if primary is not None else Access(), taken)

    def _forget_roles(self) -> None:
        """Forgets the highest election ids of the roles that are not used any more, the oldest first, beyond MAX_ROLES:
        clients may make up as many names as they like."""
        used = {session.role for session in self._sessions}
        for role in [role for role in self.highest if role not in used][: max(0, len(self.highest) - MAX_ROLES)]:
            del self.highest[role]

    def is_primary(self, session: Session) -> bool:
        with self._lock:
            return session.role is not None and self._primary(session.role) is session

    def primaries(self) -> list[Session]:
        """The primary controllers of all roles, which receive packets, digests and idle notifications."""
        with self._lock:
            return self._primaries()

    def _primaries(self) -> list[Session]:
        names = {s.role for s in self._sessions if s.role is not None and s.may}
        return [p for p in (self._primary(role) for role in sorted(names)) if p is not None]

    def _primary(self, role: str) -> Session | None:
        candidates = [s for s in self._sessions if s.role == role and s.election_id and s.may]
        best = max(candidates, key=lambda s: s.election_id, default=None)
        return best if best is not None and best.election_id >= self.highest.get(role, 0) else None

    def _notify(self, role: str, changed: Session | None, before: Session | None) -> None:
        """Notifies all controllers of the role where the primary has changed, else only the one that asked."""
        primary = self._primary(role)
        for session in self._sessions:
            if session.role == role and (primary is not before or session is changed):
                session.send(self._status(session, primary))

    def _status(self, session: Session, primary: Session | None) -> p4r.StreamMessageResponse:
        message = p4r.StreamMessageResponse()
        update = message.arbitration
        update.device_id = self._device_id
        role = session.role or ""
        if role.startswith("#"):
            update.role.id = int(role[1:])
        elif role:
            update.role.name = role
        highest = primary.election_id if primary is not None else self.highest.get(role, 0)
        if highest:
            update.election_id.high, update.election_id.low = highest >> 64, highest & (2**64 - 1)
        if session is primary:
            update.status.code, update.status.message = rpc_code.OK, "you are primary"
        elif primary is not None:
            update.status.code, update.status.message = rpc_code.ALREADY_EXISTS, f"{primary.peer} is primary"
        else:
            update.status.code, update.status.message = rpc_code.NOT_FOUND, "no controller is primary"
        if session.election_id and not session.may:
            update.status.message += f"; {session.peer} may not be (--primary)"
        return message


def _conflict(one: Access, other: Access) -> frozenset[int]:
    """The objects that one of two roles is to have for itself alone, and the other one names as well."""
    return (one.exclusive & (other.exclusive | other.shared)) | (other.exclusive & one.shared)

