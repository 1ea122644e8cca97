# SPDX-License-Identifier: Apache-2.0
"""Double binary tree, pipelined (Sanders, Speck and Träff 2009): two trees for one half of the data each.

A rank is an inner node of at most one of the trees and a leaf of the other, so that every link is used both ways nearly
all the time.  N ranks, M bytes, C segments: about 2 log2(N) + C steps; a rank sends and receives at most 2 M bytes (as
inner node M/2 each to its parent and two children, as leaf M/2).

    tree over 1..N: a number's height is its count of trailing zeros, odd numbers are leaves
    first tree: number v is rank v-1;  second tree: number v is rank v mod N      (odd ranks inside, then even ranks)
"""

from __future__ import annotations

from dataclasses import dataclass

from netfold.host.collectives.flow import Inbox, Strand, interleave, length, segments, split_evenly
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

TREE_SEGMENT = 64 << 10
"""Bytes of a segment: the pipeline is several levels deep, and shorter segments fill it sooner."""


@dataclass(frozen=True)
class TreePosition:
    """The parent and children of a rank in a tree."""

    parent: int | None
    children: tuple[int, ...]


def places(size: int, shift: int) -> dict[int, TreePosition]:
    """By rank: its position in the tree whose number v is rank (v + shift - 1) mod size; shift 0 and 1 give the two
    trees."""
    parents: dict[int, int | None] = {}

    def build(low: int, high: int, parent: int | None) -> None:
        if low > high:
            return
        root = max(range(low, high + 1), key=lambda v: v & -v)
        parents[root] = parent
        build(low, root - 1, root)
        build(root + 1, high, root)

    build(1, size, None)

    def rank(v: int) -> int:
        return (v + shift - 1) % size

    return {
        rank(v): TreePosition(None if p is None else rank(p), tuple(rank(c) for c, q in parents.items() if q == v))
        for v, p in parents.items()
    }


def allreduce(mesh: Mesh, data: Flat, reduction: Reduction, *, tag: int = 0) -> Strand:
    """Reduces ``data`` over all ranks, in place.  Uses ``tag`` and ``tag + 1``."""
    strands = []
    for shift, half in enumerate(split_evenly(data.size, 2)):
        place = places(mesh.size, shift)[mesh.rank]
        strands += [
            _up(mesh, data, half, place, reduction, tag + shift),
            _down(mesh, data, half, place, tag + shift),
        ]
    yield from interleave(*strands)


def _up(mesh: Mesh, data: Flat, half: slice, place: TreePosition, reduction: Reduction, tag: int) -> Strand:
    cuts = segments(half, data.itemsize, TREE_SEGMENT)
    inbox = Inbox(mesh, data.dtype, [(child, length(cut)) for cut in cuts for child in place.children], tag=tag)
    for cut in cuts:
        for _ in place.children:
            arrived, theirs = inbox.take()
            yield [arrived]
            reduction(theirs, data[cut], out=data[cut])
        for peer in place.children if place.parent is None else [place.parent]:
            mesh.send(peer, data[cut], tag=tag)


def _down(mesh: Mesh, data: Flat, half: slice, place: TreePosition, tag: int) -> Strand:
    if place.parent is None:  # the root sends down what it has reduced, in _up
        return
    cuts = segments(half, data.itemsize, TREE_SEGMENT)
    # A result overwrites what this rank sent up, which its parent has received by then.
    posted = [mesh.receive(place.parent, data[cut], tag=tag) for cut in cuts]
    for cut, arrived in zip(cuts, posted, strict=True):
        yield [arrived]
        for child in place.children:
            mesh.send(child, data[cut], tag=tag)
