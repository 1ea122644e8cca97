# SPDX-License-Identifier: Apache-2.0
"""What a collective stands on: messages between any two ranks of a job, posted now and waited for later.

    pending = mesh.receive(peer, into)      posts; the memory belongs to the mesh until the message is in
    mesh.send(peer, data)                   posts; the same until it is out
    mesh.wait([pending])                    moves every posted message until these are done

Messages from one rank to another with the same ``tag`` arrive in the order sent; different tags are independent, so
that one collective can run several strands (``collectives/flow.py``) between the same two ranks.  Every message
carries its ``Call``: ranks that call different things find out at the first message instead of mixing bytes.

``tcp.TcpMesh`` is the real one, ``memory.MemoryMesh`` its twin in one process, for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from netfold.host.operation.arrays import Flat
from netfold.host.tracing.timeline import Timeline


@dataclass(frozen=True)
class Call:
    """One operation, as all ranks must agree on it.  ``number`` counts a group's operations; ``text`` says the rest."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"operation {self.number} ({self.text})"


_NO_SPAN = nullcontext()
IDLE = Call(0, "between operations")


class Pending:
    """A posted message.  ``done`` once its memory is the caller's again."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


DONE = Pending()
DONE.done = True


class Mesh(ABC):
    """Ranks 0 .. size-1, each able to send to each.  For one thread at a time."""

    rank: int
    size: int
    kind: str = "TCP"
    """What carries it, for people."""
    timeline: Timeline | None = None
    """Is told when it sends, waits and receives, where somebody asked for one."""

    @abstractmethod
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        """Posts ``data`` to ``peer``.  Arrays without elements are not sent: both ends know the sizes."""

    @abstractmethod
    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        """Posts room for the next message of ``peer`` with this tag, which must have exactly this many bytes."""

    @abstractmethod
    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        """Returns when all of ``pending`` are done, or with ``first`` when at least one is.

        Raises CollectiveTimeout when no byte moved for the mesh's timeout, PeerLost, RankMismatch, TransportError.
        """

    @abstractmethod
    def flush(self) -> None:
        """Waits until nothing posted is left.  Raises as ``wait``."""

    @abstractmethod
    def begin(self, call: Call) -> None:
        """All messages from here on belong to ``call``."""

    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        """Says whose messages come next, by a collective's name (fabric/collectives.py): a mesh whose paths
        are planned plans them for these.  All who take part say the same.  Between operations.

        ranks  who takes part, in the collective's order: of its ring, above all; default: all, by number
        root   a place in ``ranks``, where the collective has one
        """
        del algorithm, ranks, root

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """Tells the peers that this rank gave up, as far as that is possible without waiting."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back; safe to call twice."""

    def spanned(self, name: str) -> AbstractContextManager[None]:
        """A block that the timeline, if any, shows as a span."""
        return _NO_SPAN if self.timeline is None else self.timeline.span(name)

    @contextmanager
    def operation(self, call: Call) -> Iterator[None]:
        """Everything posted inside belongs to ``call`` and is done at the end; an error inside is told to the peers."""
        self.begin(call)
        try:
            yield
            self.flush()
        except BaseException as error:
            self.abort(error)
            raise
        self.begin(IDLE)


class Subset(Mesh):
    """Some ranks of a mesh, in an order of their own: ``ranks[i]`` is rank i here.  Messages travel as the mesh's."""

    def __init__(self, mesh: Mesh, ranks: Sequence[int]) -> None:
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < mesh.size for rank in ranks):
            raise ValueError(f"ranks={list(ranks)}: expected different ranks of 0 .. {mesh.size - 1}")
        if mesh.rank not in ranks:
            raise ValueError(f"ranks={list(ranks)}: rank {mesh.rank} is not in its own subset")
        self._mesh = mesh
        self.kind = mesh.kind
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(mesh.rank)
        self.size = len(self.ranks)

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        return self._mesh.send(self.ranks[peer], data, tag=tag)

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        return self._mesh.receive(self.ranks[peer], into, tag=tag)

    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        self._mesh.wait(pending, first=first)

    def flush(self) -> None:
        self._mesh.flush()

    def begin(self, call: Call) -> None:
        self._mesh.begin(call)

    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        self._mesh.expect(algorithm, ranks=[self.ranks[rank] for rank in ranks or range(self.size)], root=root)

    def abort(self, error: BaseException) -> None:
        self._mesh.abort(error)

    def close(self) -> None:
        """Nothing: the mesh belongs to whoever made it."""


def as_bytes(array: Flat, what: str) -> memoryview:
    """The memory of a flat array as bytes.  Raises ValueError for what cannot be sent without a copy."""
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{what} shape {array.shape}, strides {array.strides}: expected one dimension, contiguous")
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def culprits(waits: Mapping[int, Set[int]], rank: int) -> list[int]:
    """Follows "waits for" from ``rank`` to the ranks that wait for nobody themselves.

    waits  for each rank that said so, the ranks that it waits for
    Where all wait in a circle, it is those that ``rank`` itself waits for.
    """
    reached, queue = {rank}, [rank]
    for at in queue:
        for other in waits.get(at, ()):
            if other not in reached:
                reached.add(other)
                queue.append(other)
    return sorted(at for at in reached if at not in waits) or sorted(waits[rank])


def ranks(numbers: Sequence[int]) -> str:
    """"rank 3", or "ranks 3, 5"."""
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def no_such_peer(mesh: Mesh, peer: int) -> ValueError:
    """The error for a peer that does not exist or is this rank itself."""
    return ValueError(f"rank {mesh.rank}: peer={peer}: expected another rank of 0 .. {mesh.size - 1}")
