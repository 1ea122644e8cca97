# SPDX-License-Identifier: Apache-2.0
"""What can go wrong on a rank, by name.

Every message says what happened, where (job, rank, operation, tree), what was expected, what came, and what to do.
After any of these but ``Busy`` and ``JoinRefused`` the communicator is broken: the ranks no longer agree on what was
reduced, so all later calls raise the same error again.  Close it and join anew.
"""

from __future__ import annotations


class NetFoldError(Exception):
    """Base of everything that netfold.host raises on its own account."""


class JoinRefused(NetFoldError):
    """The controller is out of reach, did not answer in time, or does not want this rank."""


class CollectiveTimeout(NetFoldError, TimeoutError):
    """No result came for the whole timeout: a rank is gone, stopped, or never called."""


class RankMismatch(NetFoldError):
    """The ranks call different things: another order, number of elements, dtype or operation."""


class PeerLost(NetFoldError, ConnectionError):
    """A rank is gone: its connection broke, or the controller says so."""


class RailDown(NetFoldError):
    """A rail of several moves nothing any more; to the caller: none of them does."""


class TreesLost(NetFoldError):
    """A switch or link that the job folds over went away, and nothing took its place in time."""


class JobEnded(NetFoldError):
    """The controller took the job off the switches: an operator dropped it, or its ranks joined anew."""


class TransportError(NetFoldError, OSError):
    """The operating system refused a socket, an address, or a packet."""


class PlanError(NetFoldError):
    """The controller's plan contradicts itself or what this rank asked for."""


class Busy(NetFoldError):
    """Two threads used one communicator at the same time: their order would differ from rank to rank."""


class Closed(NetFoldError):
    """The communicator was closed."""
