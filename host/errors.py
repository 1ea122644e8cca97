# SPDX-License-Identifier: Apache-2.0
"""The exceptions that netfold.host raises.

Every message says what happened, where (job, rank, operation, tree), what was expected, what arrived, and what to do.
After any of these but ``Busy``, ``JoinRefused``, ``RanksChanged`` and ``Unproven`` the communicator is broken: the
ranks no longer agree on what was reduced, so all later calls raise the same error again.  Close it and join anew, or
continue with the remaining ranks (``Communicator.shrink``).
"""

from __future__ import annotations

from typing import Final

TIMED_OUT: Final = "Timed out"
"""The words that programs look for in a time-out's message, whichever library they use: torch's time-outs begin with
them."""


class NetFoldError(RuntimeError):
    """Base of all exceptions that netfold.host raises on its own account.  It is a RuntimeError, since programs on
    torch.distributed catch those."""


class JoinRefused(NetFoldError):
    """The controller cannot be reached, did not answer in time, or refuses this rank.

    code, said  name of the refusal's gRPC status code, and the controller's words; both empty if nobody has answered

    Remedy: ask the controller with `netfold status --controller ADDRESS`.  If nobody answers: start it, or correct the
    address; this host must reach it.  If it refuses: give all ranks the same job, number of ranks and token.  Start
    the ranks that it names as missing, or end an old job of that name with `netfold drop`.
    """

    def __init__(self, message: str, code: str = "", said: str = "") -> None:
        super().__init__(message)
        self.code, self.said = code, said


class CollectiveTimeout(NetFoldError, TimeoutError):
    """No result came within the timeout: a rank is gone, has stopped, or never called the operation.

    Remedy: find out what the ranks named as missing are doing: `netfold flight` shows each one's last operations,
    `netfold stall JOB` the switch where packets wait.  They have died, hang, or call another operation.  If they are
    only slow (a checkpoint, a data set): set a longer `timeout=`.
    """

    def __init__(self, message: str) -> None:
        words = message.replace(f"{TIMED_OUT}: ", "")  # of an error that this one quotes
        super().__init__(f"{TIMED_OUT}: {words}")


class RankMismatch(NetFoldError):
    """The ranks called different operations, or with different numbers of elements, dtypes or reductions.

    Remedy: call the same operations in the same order with the same sizes, dtypes and reductions on every rank; the
    message has both values.  The usual cause is a collective that only some ranks call, inside an `if` on the rank's
    number.
    """


class PeerLost(NetFoldError, ConnectionError):
    """A rank is gone: its connection broke, the controller reported its death, or it has left in order.

    Remedy: for a lost rank, read its own error and log first: they show the cause.  For a rank that left, the message
    says after which operation and why: let all ranks end after the same one.  Then start the job anew, or continue with
    the others by `shrink()`.
    """


class Evicted(NetFoldError):
    """The controller has declared this rank dead, and the others go on without it.

    Remedy: join anew (`grow()` of the others admits this rank).  If the rank was only slow, find out what delayed it
    for so long: a stopped process, a machine without memory.
    """


class RanksChanged(NetFoldError):
    """The ranks have changed, and the operation that was under way is not finished; the communicator is usable.

    change  the remaining ranks, and the operations that they have finished

    Remedy: repeat the operations after the number that the message names; `change` has the remaining ranks.  The
    communicator stays usable.
    """

    def __init__(self, message: str, change: object) -> None:
        super().__init__(message)
        self.change = change


class RailDown(NetFoldError):
    """One of several rails makes no progress any more.  If the error reaches the caller, no rail does.

    Remedy: no rail is left, and the message has each one's cause: repair the network that it names, then join anew.
    """


class TreesLost(NetFoldError):
    """A switch or link that the job folds over failed, and no replacement was found in time.

    Remedy: find the switch or link that is down with `netfold status`, repair it, and join anew.  `rail="auto"`
    continues over TCP by itself, if hosts reach each other.
    """


class JobEnded(NetFoldError):
    """The controller removed the job from the switches: an operator dropped it, or its ranks joined anew.

    Remedy: an operator ended the job, or another one of the same name took its place: ask the operator, give the jobs
    different names, and join anew.
    """


class TransportError(OSError, NetFoldError):  # in this order, for errno
    """The operating system refused a socket, an address or a packet.

    Remedy: the message names the address, socket or device and the system's reason.  Give the host's own address on the
    fabric (`ip addr`), end the process that holds the port (`ss -lunp`), or correct the interface's MTU.
    """


class PlanError(NetFoldError):
    """The plan contradicts itself or this rank's request, or has addresses by which not all ranks reach each other.

    Remedy: the message names the contradiction.  Install the same version of NetFold on hosts and controller, or ask
    for a rail that this job can have (`rail="auto"` chooses one).  For addresses, it names the rank: set
    NETFOLD_ADDRESS there to an address that the others reach.
    """


class Unproven(NetFoldError):
    """Data that does not prove to come from a rank of the job arrived, and was not used.

    Remedy: no wrong data was used. A sender that does not know the job's secret reaches the ranks, or changes what they
    send: find out who reaches their addresses, then join anew.
    """


class Busy(NetFoldError):
    """Two threads used one communicator at the same time, so that the order of operations would differ from rank to
    rank.

    Remedy: call collectives from one thread, or hold a lock around them.
    """


class Aborted(NetFoldError):
    """The program has aborted the communicator, with the operations under way.

    Remedy: nothing is broken: the program has called `abort()`, and the message has its reason.  Join anew to
    continue.
    """


class Closed(NetFoldError):
    """The communicator has been closed, or this process was forked from the one that has joined.

    Remedy: a call came after `close()`, `destroy_process_group()` or the end of the `with` block: move it before that.
    In a forked child, such as a worker of a data loader, do not use the parent's communicator.
    """
