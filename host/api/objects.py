# SPDX-License-Identifier: Apache-2.0
"""Python objects between the ranks of a communicator.

Unpickling runs code that the sender chooses.  So an object travels as tag | pickle, and is unpickled only if the tag
proves that a rank which knows the job's secret has sent it in this very exchange:

    tag = HMAC-SHA256(key, exchange | sender's rank | pickle)
    exchange = of every rank, in order: bytes of its pickle 8 | nonce 16        which all ranks gather first

The tag is needed on every transport: queue pairs do not authenticate packets, and TCP's handshake authenticates the
peer, but not the bytes that follow.  Ranks of one job trust each other's objects.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
import struct
from typing import Any, Final

import numpy as np

from netfold.host.api.communicator import Communicator
from netfold.host.errors import Unproven
from netfold.host.job_secret import derive
from netfold.host.operation.arrays import Flat

PURPOSE: Final = "objects"
TAG_BYTES: Final = 32
NONCE_BYTES: Final = 16
OFFER = struct.Struct(f"!Q{NONCE_BYTES}s")
MOST_BYTES: Final = 1 << 40
"""Most bytes of a pickle; a greater size has not come from a rank."""


class _Exchange:
    """One exchange of objects, by all ranks together.

    mine  this rank's pickle; empty if it sends none
    """

    def __init__(self, comm: Communicator, mine: bytes) -> None:
        self._comm = comm
        self._mine = mine
        plan = comm.plan
        self._key = derive(plan.secret, PURPOSE, plan.job, plan.epoch)
        offer = OFFER.pack(len(mine), secrets.token_bytes(NONCE_BYTES))
        self._offers = comm.all_gather(np.frombuffer(offer, np.uint8)).tobytes()
        own = self._offers[comm.rank * OFFER.size :][: OFFER.size]
        self.sizes = [nbytes for nbytes, _ in OFFER.iter_unpack(self._offers)]
        """Bytes of each rank's pickle."""
        if own != offer or max(self.sizes) > MOST_BYTES:
            raise self._unproven(f"the offers of an exchange of objects are damaged (sizes {self.sizes})")

    def sealed(self) -> Flat:
        """This rank's tag and pickle."""
        return np.frombuffer(self._tag(self._comm.rank, self._mine) + self._mine, np.uint8)

    def opened(self, rank: int, sealed: Flat) -> Any:
        """The object of a rank, once its tag is verified.  Raises Unproven."""
        tag, data = sealed[:TAG_BYTES].tobytes(), sealed[TAG_BYTES:].tobytes()
        if not hmac.compare_digest(tag, self._tag(rank, data)):
            raise self._unproven(f"an object of {len(data)} bytes that is said to be rank {rank}'s")
        return pickle.loads(data)

    def _tag(self, rank: int, data: bytes) -> bytes:
        return hmac.digest(self._key, self._offers + rank.to_bytes(4, "big") + data, "sha256")

    def _unproven(self, what: str) -> Unproven:
        plan = self._comm.plan
        return Unproven(
            f"job {plan.job!r}, rank {plan.rank} of {plan.world}: {what}: expected the tag of a rank that knows the "
            "job's secret; nothing was unpickled. Somebody else sends to the ranks of this job, or changes what they "
            "send: look at who can reach them, then join anew"
        )


def allgather(comm: Communicator, value: Any) -> list[Any]:
    """Every rank's object, in order of rank.  Raises Unproven, and the errors of ``Communicator.all_gather``."""
    mine = pickle.dumps(value)
    if comm.size == 1:
        return [pickle.loads(mine)]
    exchange = _Exchange(comm, mine)
    counts = [TAG_BYTES + nbytes for nbytes in exchange.sizes]
    everyones = comm.all_gather(exchange.sealed(), counts=counts)
    return [exchange.opened(rank, one) for rank, one in enumerate(np.split(everyones, np.cumsum(counts)[:-1]))]


def broadcast(comm: Communicator, value: Any, root: int) -> Any:
    """The root's object on every rank.

    Raises ValueError for a root that does not exist, Unproven, and the errors of ``Communicator.broadcast``.
    """
    if not 0 <= root < comm.size:
        raise ValueError(f"root_rank={root}: expected a rank of 0 .. {comm.size - 1}")
    if comm.size == 1:
        return value
    exchange = _Exchange(comm, pickle.dumps(value) if comm.rank == root else b"")
    if comm.rank == root:
        comm.broadcast(exchange.sealed().copy(), root=root)
        return value
    sealed = np.empty(TAG_BYTES + exchange.sizes[root], np.uint8)
    return exchange.opened(root, comm.broadcast(sealed, root=root))


def share_state(comm: Communicator, version: int, state: Any) -> tuple[int, Any]:
    """The most advanced rank's state, and its version, on every rank.

    For when ranks have changed (``Communicator.shrink``, ``grow``): some may have finished a step that others have not,
    and new ones have no state.  If all versions are equal, only the versions are sent.

    version  progress of this rank, such as its number of steps; -1 if it has no state
    state    any object that can be pickled: arrays, a ``state_dict`` of torch; changed only if another rank's state is
             returned, once all of that has arrived
    Raises Unproven, and the errors of collectives.
    """
    versions = comm.all_gather(np.array([version], np.int64))
    root = int(versions.argmax())
    if (versions == version).all():
        return version, state
    return int(versions[root]), broadcast(comm, state, root)
