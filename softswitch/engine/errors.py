# SPDX-License-Identifier: Apache-2.0
"""Errors of the switch engine, one class for each gRPC status that a refused request can end with."""

from __future__ import annotations


class EngineError(Exception):
    """A switch refused a request; subclasses have the names of P4Runtime's errors, `code` is the gRPC status code."""

    code = 2


class InvalidArgument(EngineError):
    """The request is wrong whatever the state of the switch: unknown object, malformed key, value out of range."""

    code = 3


class NotFound(EngineError):
    """The entry, member, group or session does not exist."""

    code = 5


class AlreadyExists(EngineError):
    """An entry with the same identity exists already."""

    code = 6


class PermissionDenied(EngineError):
    """The program declares the object constant."""

    code = 7


class ResourceExhausted(EngineError):
    """The table, group or reply is full."""

    code = 8


class FailedPrecondition(EngineError):
    """The switch's present state does not allow it: a member that entries use, a packet-out without CPU port."""

    code = 9


class OutOfRange(EngineError):
    """An index beyond the end of a register, counter or meter."""

    code = 11


class Unimplemented(EngineError):
    """The switch does not support this."""

    code = 12


class Internal(EngineError):
    """The switch violated its protocol, or its process ended."""

    code = 13


class Unavailable(EngineError):
    """The switch is not ready for this yet; the message says when it is."""

    code = 14


class EngineTimeout(EngineError):
    """The switch process did not answer within the allowed time."""

    code = 4


ERRORS: dict[int, type[EngineError]] = {
    kind.code: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition,
                 OutOfRange, Unimplemented, Internal)
}
