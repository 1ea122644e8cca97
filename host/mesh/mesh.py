# SPDX-License-Identifier: Apache-2.0
"""The interface that collectives are written on: messages between any two ranks, posted now and waited for later.

    pending = mesh.receive(peer, into)      posts; the memory belongs to the mesh until the message has arrived
    mesh.send(peer, data)                   posts; the memory belongs to the mesh until the message is sent
    mesh.wait([pending])                    makes progress on every posted message until these are done

Messages from one rank to another with the same ``tag`` arrive in the order sent; different tags are independent, so
that one collective can run several strands (``collectives/flow.py``) between the same two ranks.  Every message
carries its ``Call``: ranks that call different operations find out at the first message instead of mixing bytes.

``tcp.TcpMesh`` and ``roce.mesh.RoceMesh`` are the transports; ``memory.MemoryMesh`` does the same within one process,
for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from netfold.host.errors import NetFoldError
from netfold.host.operation.arrays import Flat
from netfold.host.tracing.timeline import Timeline
from netfold.wire.plan import Secret

WATCHED_SLICE_SECONDS = 0.01
"""Seconds between two calls of whoever watches a mesh or rail (``watched_by``); they bound how soon one of several
rails is found dead."""
WAIT_SECONDS = 10.0
"""Seconds without any progress after which a rank reports for whom it waits, whatever its timeout."""
LOST_RANK_SECONDS = 0.2
"""Seconds without any progress after which the loss of a rank, as the controller reports it, ends an operation.  A rank
that died after its last message need not end it."""


@dataclass(frozen=True)
class Call:
    """The operation that a message belongs to, which must be the same on all ranks.  ``number`` counts a group's
    operations; ``text`` describes the operation (kind, elements, dtype, algorithm)."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"operation {self.number} ({self.text})"


_NO_SPAN = nullcontext()
IDLE = Call(0, "between operations")


class Pending:
    """A posted send or receive.  ``done`` turns true once its memory belongs to the caller again."""

    __slots__ = ("done",)

    def __init__(self, done: bool = False) -> None:
        self.done = done

    def finish(self) -> None:
        """Marks it as done: its memory belongs to the caller again."""
        self.done = True


DONE = Pending(done=True)


class Informed(Protocol):
    """A receiver of the controller's reports of lost ranks, such as a mesh."""

    def told_by(self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]]) -> None:
        """See ``Mesh``."""


class Mesh(ABC):
    """Ranks 0 .. size-1, each able to send to each other one.  To be used by one thread at a time."""

    rank: int
    size: int
    kind: str = "TCP"
    """Name of the transport, for messages to people."""
    rail: str = "tcp"
    """Name of the rail that this mesh is, as in ``rail=``."""
    merged_segments: int = 1
    """Number of segments of a long piece that travel as one message: more than one if a message costs more than the
    cache misses of a longer one (``collectives.flow.segments_on``).  The same on all ranks of a mesh."""
    secret: Secret
    """The job's secret, from which its ranks derive keys and names that nobody else knows (``job_secret``)."""
    timeline: Timeline | None = None
    """Records the spans spent on sending, waiting and receiving, if a timeline was asked for."""

    @abstractmethod
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        """Posts ``data`` to ``peer``.  Arrays without elements are not sent, since both ends know the sizes."""

    @abstractmethod
    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        """Posts a receive for the next message of ``peer`` with this tag, which must have exactly the size of
        ``into``."""

    @abstractmethod
    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        """Returns when all of ``pending`` are done, or with ``first`` when at least one is.

        Raises CollectiveTimeout when no byte moved for the mesh's timeout, PeerLost, RankMismatch, TransportError.
        """

    @abstractmethod
    def flush(self) -> None:
        """Waits until everything posted is done.  Raises what ``wait`` raises."""

    @abstractmethod
    def begin(self, call: Call) -> None:
        """Marks all messages posted from here on as belonging to ``call``."""

    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        """Announces which collective's messages come next, by its name in fabric/routing/collectives.py, so that a mesh
        with planned paths can plan them for it.  All who take part announce the same, between operations.

        ranks  who takes part, in the collective's order: of its ring, above all; default: all, by number
        root   a place in ``ranks``, where the collective has one
        """
        del algorithm, ranks, root

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """Calls ``watch`` every ``WATCHED_SLICE_SECONDS`` from now on while anything is waited for, with the monotonic
        seconds of the last progress; what it raises ends the operation.  None: stops that."""
        raise NotImplementedError(f"a mesh over {self.kind} cannot be watched")

    def told_by(
        self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]] = dict
    ) -> None:
        """From now on, what waits without progress for ``LOST_RANK_SECONDS`` ends where ``lost`` returns a rank that
        the controller has lost, and why, and where it waits for one of the ranks that ``left`` returns, with when and
        why each has left in order.  A mesh whose ranks cannot die one by one does nothing."""
        del lost, left

    def look(self) -> None:
        """Moves what can be moved at once, while this rank waits for something else.  Raises PeerLost where a rank is
        lost from which a message is awaited, and what ``interrupt`` was called with.  A mesh whose ranks cannot die one
        by one does nothing."""
        self.wait([])

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: what is waited for ends with this error, and so does all that follows."""
        raise NotImplementedError(f"a mesh over {self.kind} cannot be interrupted")

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """Tells the peers that this rank gave up because of ``error``, as far as that is possible without waiting."""

    def leave(self, why: str) -> None:
        """Tells the peers that this rank leaves in order, before ``close``: those that still wait for it then hear when
        and why.  Waits for nobody.

        why  "after operation 3", say, of which ``connection.TEXT_BYTES`` bytes are sent
        """
        del why

    @abstractmethod
    def close(self) -> None:
        """Releases all resources; safe to call twice."""

    def spanned(self, name: str) -> AbstractContextManager[None]:
        """A context whose duration the timeline, if there is one, records as a span of this name."""
        return _NO_SPAN if self.timeline is None else self.timeline.span(name)

    @contextmanager
    def operation(self, call: Call) -> Iterator[None]:
        """A context in which everything posted belongs to ``call``.  Waits for all of it at the end; an error inside is
        reported to the peers (``abort``) and raised again."""
        self.begin(call)
        try:
            yield
            self.flush()
        except BaseException as error:
            self.abort(error)
            raise
        self.begin(IDLE)


class Subset(Mesh):
    """Some ranks of a mesh in an order of their own: ``ranks[i]`` is rank i here.  Messages travel over that mesh."""

    def __init__(self, mesh: Mesh, ranks: Sequence[int]) -> None:
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < mesh.size for rank in ranks):
            raise ValueError(f"ranks={list(ranks)}: expected different ranks of 0 .. {mesh.size - 1}")
        if mesh.rank not in ranks:
            raise ValueError(f"ranks={list(ranks)}: rank {mesh.rank} is not in its own subset")
        self.mesh = mesh
        self.kind, self.rail, self.secret = mesh.kind, mesh.rail, mesh.secret
        self.merged_segments = mesh.merged_segments
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(mesh.rank)
        self.size = len(self.ranks)

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        return self.mesh.send(self.ranks[peer], data, tag=tag)

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        return self.mesh.receive(self.ranks[peer], into, tag=tag)

    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        self.mesh.wait(pending, first=first)

    def flush(self) -> None:
        self.mesh.flush()

    def look(self) -> None:
        self.mesh.look()

    def begin(self, call: Call) -> None:
        self.mesh.begin(call)

    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        self.mesh.expect(algorithm, ranks=[self.ranks[rank] for rank in ranks or range(self.size)], root=root)

    def abort(self, error: BaseException) -> None:
        self.mesh.abort(error)

    def close(self) -> None:
        """Does nothing: the mesh belongs to whoever made it."""


def as_bytes(array: Flat, what: str) -> memoryview:
    """The memory of a flat array as bytes.  Raises ValueError for arrays that cannot be sent without a copy."""
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{what} shape {array.shape}, strides {array.strides}: expected one dimension, contiguous")
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def culprits(waits: Mapping[int, Set[int]], rank: int) -> list[int]:
    """Follows the wait-for graph from ``rank`` to the ranks that wait for nobody themselves; sorted.

    waits  waiting rank -> the ranks that it waits for
    Where all ranks wait in a circle, the result is the ranks that ``rank`` itself waits for.
    """
    reached, queue = {rank}, [rank]
    for at in queue:
        for other in waits.get(at, ()):
            if other not in reached:
                reached.add(other)
                queue.append(other)
    return sorted(at for at in reached if at not in waits) or sorted(waits[rank])


def ranks(numbers: Sequence[int]) -> str:
    """Rank numbers for a message: "rank 3", or "ranks 3, 5"."""
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def no_such_peer(rank: int, size: int, peer: int) -> ValueError:
    """The error for a peer number that does not exist or is this rank's own."""
    return ValueError(f"rank {rank}: peer={peer}: expected another rank of 0 .. {size - 1}")
