# SPDX-License-Identifier: Apache-2.0
"""The exceptions that netfold.host raises.

Every message says what happened, where (job, rank, operation, tree), what was expected, what came, and what to do.
After any of these but ``Busy``, ``JoinRefused``, ``RanksChanged`` and ``Unproven`` the communicator is broken: the
ranks no longer agree on what was reduced, so all later calls raise the same error again.  Close it and join anew; or go
on with the ranks that are left (``Communicator.shrink``).
"""

from __future__ import annotations

from typing import Final

TIMED_OUT: Final = "Timed out"
"""The words that programs look for in a time-out's message, whichever library they use: torch's begin so."""


class NetFoldError(RuntimeError):
    """Base of all exceptions that netfold.host raises on its own account.  A RuntimeError, since programs on
    torch.distributed catch those."""


class JoinRefused(NetFoldError):
    """The controller cannot be reached, did not answer in time, or refuses this rank.

    code, said  name of the refusal's gRPC status code, and the controller's words; empty: nobody has answered

    Remedy: ask the controller by `netfold status --controller ADDRESS`. Nobody answers: start it, or correct the
    address, which is one that this host reaches. It refuses: give all ranks the same job, number of ranks and token,
    start those that it names as missing, or end an old job of that name by `netfold drop`.
    """

    def __init__(self, message: str, code: str = "", said: str = "") -> None:
        super().__init__(message)
        self.code, self.said = code, said


class CollectiveTimeout(NetFoldError, TimeoutError):
    """No result came within the timeout: a rank is gone, has stopped, or never called the operation.

    Remedy: look at what the ranks named as missing are doing (`netfold flight` shows each one's last operations,
    `netfold stall JOB` the switch where packets wait); they have died, hang, or call another operation. Where they are
    only slow (a checkpoint, a data set): a longer `timeout=`.
    """

    def __init__(self, message: str) -> None:
        words = message.replace(f"{TIMED_OUT}: ", "")  # of an error that this one quotes
        super().__init__(f"{TIMED_OUT}: {words}")


class RankMismatch(NetFoldError):
    """The ranks called different operations, or with different numbers of elements, dtypes or reductions.

    Remedy: call the same operations in the same order with the same sizes, dtypes and reductions on every rank; the
    message has both values. A branch on the rank's number around a collective is the usual cause.
    """


class PeerLost(NetFoldError, ConnectionError):
    """A rank is gone: its connection broke, the controller reported its death, or it has left in order.

    Remedy: of a rank that is lost, read its own error and log first: it is the cause. Of one that left, the message
    says after which operation and why: let all ranks end after the same one. Then start the job anew, or go on with
    the others by `shrink()`.
    """


class Evicted(NetFoldError):
    """The controller has taken this rank for dead, and the others go on without it.

    Remedy: join anew (`grow()` of the others lets this rank in). If the rank was only slow, find out what held it for
    so long: a stopped process, a machine without memory.
    """


class RanksChanged(NetFoldError):
    """The ranks have changed, and the operation that was under way is not finished; the communicator is usable.

    change  which ranks there are, and which operations are finished

    Remedy: repeat the operations after the number that the message names; `change` has the ranks that are left. The
    communicator goes on.
    """

    def __init__(self, message: str, change: object) -> None:
        super().__init__(message)
        self.change = change


class RailDown(NetFoldError):
    """One of several rails makes no progress any more; where it reaches the caller, none of the rails does.

    Remedy: no rail is left, and the message has each one's cause: mend the network that it names, then join anew.
    """


class TreesLost(NetFoldError):
    """A switch or link that the job folds over failed, and no replacement was found in time.

    Remedy: look at `netfold status` for the switch or link that is down, mend it, and join anew. `rail="auto"` goes on
    over TCP by itself, where hosts reach each other.
    """


class JobEnded(NetFoldError):
    """The controller removed the job from the switches: an operator dropped it, or its ranks joined anew.

    Remedy: an operator ended the job, or another one of the same name took its place: ask who did, give the jobs
    different names, and join anew.
    """


class TransportError(OSError, NetFoldError):  # in this order, for errno
    """The operating system refused a socket, an address or a packet.

    Remedy: the message names the address, socket or device and the system's reason: give the host's own address on the
    fabric (`ip addr`), end what holds the port (`ss -lunp`), or mend the interface's MTU.
    """


class PlanError(NetFoldError):
    """The plan contradicts itself or this rank's request, or has addresses by which not all ranks reach each other.

    Remedy: the message says what contradicts what: install the same version of NetFold on hosts and controller, or ask
    for a rail that this job can have (`rail="auto"` takes what there is). Of addresses, it names the rank: set
    NETFOLD_ADDRESS there to the address that the others reach.
    """


class Unproven(NetFoldError):
    """What arrived does not prove to come from a rank of the job, and was not used.

    Remedy: nothing wrong was used. Somebody sends to the ranks who does not know the job's secret, or changes what they
    send: find out who reaches their addresses, then join anew.
    """


class Busy(NetFoldError):
    """Two threads used one communicator at the same time, so that the order of operations would differ from rank to
    rank.

    Remedy: call collectives from one thread, or hold a lock around them.
    """


class Aborted(NetFoldError):
    """The program has given the communicator up, with what was under way.

    Remedy: nothing to mend here: the program has called `abort()`, and the message has its reason. Join anew to go on.
    """


class Closed(NetFoldError):
    """The communicator has been closed, or this process was forked from the one that has joined.

    Remedy: a call came after `close()`, `destroy_process_group()` or the end of the `with` block: end the use first. In
    a forked child, such as a worker of a data loader, call nothing of its parent's communicator.
    """
