# SPDX-License-Identifier: Apache-2.0
"""Errors of the switch engine, one class for each gRPC status that a refused request can end with."""

from __future__ import annotations


class EngineError(Exception):
    """A switch refused a request; subclasses have the names of P4Runtime's errors, `code` is the gRPC status code."""

    code = 2


class InvalidArgument(EngineError):
    """The request is wrong whatever the state of the switch: unknown object, malformed key, value out of range.

    Remedy: correct the request: the message names the object and the value that it expects. It would be wrong in any
    state of the switch.
    """

    code = 3


class NotFound(EngineError):
    """The entry, member, group or session does not exist.

    Remedy: insert it first, or correct its id; a new pipeline configuration removes all entries of the old one.
    """

    code = 5


class AlreadyExists(EngineError):
    """An entry with the same identity exists already.

    Remedy: modify it instead of inserting it, or read what the switch holds first.
    """

    code = 6


class PermissionDenied(EngineError):
    """The program declares the object constant.

    Remedy: do not change objects that the program declares constant; become primary (a higher election id) before
    writing.
    """

    code = 7


class ResourceExhausted(EngineError):
    """The table, group or reply is full.

    Remedy: delete unneeded entries, or give the table a larger size in the program.
    """

    code = 8


class FailedPrecondition(EngineError):
    """The switch's present state does not allow it: a member that entries use, a packet-out without CPU port.

    Remedy: bring the switch into the state that the message names first: push a pipeline, or remove the users of the
    object.
    """

    code = 9


class OutOfRange(EngineError):
    """An index beyond the end of a register, counter or meter.

    Remedy: give an index or value within the bounds that the message names, which the program declares.
    """

    code = 11


class Unimplemented(EngineError):
    """The switch does not support this.

    Remedy: use another way: the message says what is not supported. docs/softswitch.md lists all of it.
    """

    code = 12


class Internal(EngineError):
    """The switch violated its protocol, or its process ended.

    Remedy: read the switch's log; a program's process that ended is started anew. Report it with the program and the
    request.
    """

    code = 13


class Unavailable(EngineError):
    """The switch is not ready for this yet; the message says when it is.

    Remedy: wait as long as the message says, and ask again: the program's process died several times in a row, or
    another request is being carried out.
    """

    code = 14


class EngineTimeout(EngineError):
    """The switch process did not answer within the allowed time.

    Remedy: find out what delays the switch's process: a machine without a free processor, or a program that never ends
    for some packet.
    """

    code = 4


ERRORS: dict[int, type[EngineError]] = {
    kind.code: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition,
                 OutOfRange, Unimplemented, Internal)
}
