# SPDX-License-Identifier: Apache-2.0
"""How collectives are written: strands, segments, and an inbox that keeps receives posted ahead.

A strand is a generator that posts messages and yields those it must wait for; ``run`` drives one strand or several
that take turns.  Algorithms with independent parts (two trees, two directions, workers and servers in one rank) are
several strands, each with a tag of its own.  Composition is ``yield from``.

Long pieces travel in segments: while one is being reduced, the kernel moves the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any, cast

import numpy as np

from netfold.host.mesh.mesh import Mesh, Pending
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

Strand = Generator[Sequence[Pending], None, None]

SEGMENT = 256 << 10
"""Bytes of a segment: small enough that a few fit into the cache, large enough that the cost of a message is
negligible."""
AHEAD = 4
"""Number of receives that an inbox keeps posted."""


class AnyOf(list[Pending]):
    """Messages of which one is enough to go on: what ``interleave`` yields."""


class Gate(Pending):
    """An event within one ``interleave``: one strand waits for it, and another opens it with ``finish``."""

    __slots__ = ()


def run(mesh: Mesh, strand: Strand) -> None:
    """Drives a strand to its end."""
    for pending in strand:
        mesh.wait(pending, first=isinstance(pending, AnyOf))


def interleave(*strands: Strand) -> Strand:
    """Runs several strands as one, each of which goes on as soon as its own messages are done."""
    waiting: dict[Strand, Sequence[Pending]] = dict.fromkeys(strands, ())
    while waiting:
        ready = [strand for strand, pending in waiting.items() if _ready(pending)]
        for strand in ready:
            if messages := _messages(waiting[strand]):
                yield messages  # nothing to wait for; MemoryMesh advances its clock by what is done
            try:
                waiting[strand] = next(strand)
            except StopIteration:
                del waiting[strand]
        if not ready:
            yield AnyOf(p for pending in waiting.values() for p in _messages(pending) if not p.done)


def _messages(pending: Sequence[Pending]) -> Sequence[Pending]:
    """The operations to wait for without gates, which no mesh can wait for; an AnyOf has none."""
    return pending if isinstance(pending, AnyOf) else [one for one in pending if not isinstance(one, Gate)]


def _ready(pending: Sequence[Pending]) -> bool:
    done = (message.done for message in pending)
    return any(done) if isinstance(pending, AnyOf) else all(done)


def send_piece(mesh: Mesh, peer: int, data: Flat, piece: slice, *, tag: int = 0) -> list[Pending]:
    """Sends a piece in segments.  Returns the posted messages."""
    return [mesh.send(peer, data[cut], tag=tag) for cut in segments_on(mesh, piece, data.itemsize)]


def receive_piece(mesh: Mesh, peer: int, data: Flat, piece: slice, *, tag: int = 0) -> list[Pending]:
    """Receives a piece, in the segments in which ``send_piece`` sends it, directly to its place.  Returns the posted
    messages."""
    return [mesh.receive(peer, data[cut], tag=tag) for cut in segments_on(mesh, piece, data.itemsize)]


def reduce_from(
    mesh: Mesh, peer: int, data: Flat, piece: slice, reduction: Reduction, *, tag: int = 0
) -> Strand:
    """Receives a piece in segments and reduces it into ``data``; the lower rank's values are the first operand."""
    cuts = segments_on(mesh, piece, data.itemsize)
    inbox = Inbox(mesh, data.dtype, [(peer, length(cut)) for cut in cuts], tag=tag)
    for cut in cuts:
        arrived, theirs = inbox.take()
        yield [arrived]
        if peer < mesh.rank:
            reduction(theirs, data[cut], out=data[cut])
        else:
            reduction(data[cut], theirs, out=data[cut])


def split_evenly(count: int, parts: int) -> list[slice]:
    """``count`` elements split into ``parts`` adjacent slices whose lengths differ by one at most."""
    return [slice(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


def length(piece: slice) -> int:
    """Number of elements of a slice."""
    return int(piece.stop - piece.start)


def segments(piece: slice, itemsize: int, nbytes: int | None = None) -> list[slice]:
    """A slice split into segments of at most ``nbytes`` (default ``SEGMENT``); none for an empty one."""
    most = max(1, (SEGMENT if nbytes is None else nbytes) // itemsize)
    return [slice(at, min(at + most, piece.stop)) for at in range(piece.start, piece.stop, most)]


def segments_on(mesh: Mesh, piece: slice, itemsize: int) -> list[slice]:
    """A slice split into the segments in which it travels on this mesh.  Pieces with four times as many segments as
    the mesh merges, or more, go in longer ones: at least four are left, so that one is reduced while others move."""
    merged = mesh.merged_segments
    long = length(piece) * itemsize >= 4 * merged * SEGMENT
    return segments(piece, itemsize, merged * SEGMENT if long else SEGMENT)


class Inbox:
    """Scratch memory for messages that are used once: keeps ``AHEAD`` receives posted, whose memory is reused in turn.

    wanted  (peer, elements) in the order in which they will be taken; for one peer also the order of its sends
    """

    def __init__(self, mesh: Mesh, dtype: np.dtype[Any], wanted: Iterable[tuple[int, int]], *, tag: int = 0) -> None:
        self._mesh = mesh
        self._tag = tag
        self._wanted = deque(wanted)
        most = max((elements for _, elements in self._wanted), default=0)
        # One more than are posted: the array taken last is still in use.
        self._free = deque(np.empty(most, dtype) for _ in range(min(AHEAD + 1, len(self._wanted))))
        self._posted: deque[tuple[Pending, Flat]] = deque()
        self._taken: Flat | None = None
        self._post()

    def take(self) -> tuple[Pending, Flat]:
        """The next message to wait for, and its memory, which stays valid until the next ``take``."""
        if self._taken is not None:
            self._free.append(self._taken)
        pending, array = self._posted.popleft()
        self._taken = cast(Flat, array.base)
        self._post()
        return pending, array

    def _post(self) -> None:
        while self._wanted and self._free and len(self._posted) < AHEAD:
            peer, elements = self._wanted.popleft()
            array = self._free.popleft()[:elements]
            self._posted.append((self._mesh.receive(peer, array, tag=self._tag), array))
