# SPDX-License-Identifier: Apache-2.0
"""Errors of the switch engine, one class for each gRPC status that a refused request can end with."""

from __future__ import annotations


class EngineError(Exception):
    """A switch refused a request; subclasses name the kind with P4Runtime's words, `code` is the gRPC status code."""

    code = 2


class InvalidArgument(EngineError):
    """A request that no state of the switch could honour: unknown object, malformed key, value out of range."""

    code = 3


class NotFound(EngineError):
    """The entry, member, group or session is not there."""

    code = 5


class AlreadyExists(EngineError):
    """An entry with the same identity is there already."""

    code = 6


class PermissionDenied(EngineError):
    """The program declares the object constant."""

    code = 7


class ResourceExhausted(EngineError):
    """The table, group or reply is full."""

    code = 8


class FailedPrecondition(EngineError):
    """The switch's present state forbids it: a member that entries still use, a packet-out without CPU port."""

    code = 9


class OutOfRange(EngineError):
    """An index beyond the end of a register, counter or meter."""

    code = 11


class Unimplemented(EngineError):
    """The switch does not do this."""

    code = 12


class Internal(EngineError):
    """The switch broke its own rules, or died."""

    code = 13


class EngineTimeout(EngineError):
    """The switch process did not answer within the allowed time."""

    code = 4


ERRORS: dict[int, type[EngineError]] = {
    kind.code: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition,
                 OutOfRange, Unimplemented, Internal)
}
