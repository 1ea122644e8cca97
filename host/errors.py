# SPDX-License-Identifier: Apache-2.0
"""The exceptions that netfold.host raises.

Every message says what happened, where (job, rank, operation, tree), what was expected, what came, and what to do.
After any of these but ``Busy``, ``JoinRefused``, ``RanksChanged`` and ``Unproven`` the communicator is broken: the
ranks no longer agree on what was reduced, so all later calls raise the same error again.  Close it and join anew; or go
on with the ranks that are left (``Communicator.shrink``).
"""

from __future__ import annotations


class NetFoldError(Exception):
    """Base of all exceptions that netfold.host raises on its own account."""


class JoinRefused(NetFoldError):
    """The controller cannot be reached, did not answer in time, or refuses this rank."""


class CollectiveTimeout(NetFoldError, TimeoutError):
    """No result came within the timeout: a rank is gone, has stopped, or never called the operation."""


class RankMismatch(NetFoldError):
    """The ranks called different operations, or with different numbers of elements, dtypes or reductions."""


class PeerLost(NetFoldError, ConnectionError):
    """A rank is gone: its connection broke, or the controller reported its death."""


class Evicted(NetFoldError):
    """The controller has taken this rank for dead, and the others go on without it."""


class RanksChanged(NetFoldError):
    """The ranks have changed, and the operation that was under way is not finished; the communicator is usable.

    change  which ranks there are, and which operations are finished
    """

    def __init__(self, message: str, change: object) -> None:
        super().__init__(message)
        self.change = change


class RailDown(NetFoldError):
    """One of several rails makes no progress any more; where it reaches the caller, none of the rails does."""


class TreesLost(NetFoldError):
    """A switch or link that the job folds over failed, and no replacement was found in time."""


class JobEnded(NetFoldError):
    """The controller removed the job from the switches: an operator dropped it, or its ranks joined anew."""


class TransportError(NetFoldError, OSError):
    """The operating system refused a socket, an address or a packet."""


class PlanError(NetFoldError):
    """The controller's plan contradicts itself or this rank's request."""


class Unproven(NetFoldError):
    """What arrived does not prove to come from a rank of the job, and was not used."""


class Busy(NetFoldError):
    """Two threads used one communicator at the same time, so that the order of operations would differ from rank to
    rank."""


class Aborted(NetFoldError):
    """The program has given the communicator up, with what was under way."""


class Closed(NetFoldError):
    """The communicator has been closed."""
