# SPDX-License-Identifier: Apache-2.0
"""TidalMesh on meshes of every shape: numpy's results, from neighbours alone, over links that are evenly filled."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from netfold.fabric.generate.grids import neighbours
from netfold.host.collectives import tidalmesh
from netfold.host.collectives.flow import run
from netfold.host.mesh.mesh import Mesh, Pending
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import CARRIED, Reduction
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.cost import tidalmesh as predicted
from netfold.testing import MemoryFabric
from support.hosts.collectives import expected, inputs, values

SHAPES = ((1, 2), (2, 1), (1, 5), (4, 1), (2, 2), (2, 3), (3, 2), (3, 3), (2, 5), (3, 4))


def grid_of(rows: int, columns: int) -> list[list[int]]:
    """Ranks at the places of a mesh, in an order that is not their own."""
    ranks = np.random.default_rng(rows * 10 + columns).permutation(rows * columns)
    return [[int(rank) for rank in row] for row in ranks.reshape(rows, columns)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunks", [1, 3])
def test_every_mesh_reduces_like_numpy(shape: tuple[int, int], chunks: int) -> None:
    """Whatever dtype and reduction, also fewer elements than there are pieces, and of a length that nothing divides."""
    places, ranks = grid_of(*shape), shape[0] * shape[1]
    ops = ("sum", "max", "min", "product")
    cases = [(size, element, op) for (size, element), op in zip(
        product((1, 2, 7, 241), CARRIED), ops * len(CARRIED), strict=False)]
    data = [inputs(ranks, size, element, number) for number, (size, element, _) in enumerate(cases)]

    def work(mesh: Mesh) -> list[Flat]:
        results = []
        for number, (_, element, op) in enumerate(cases):
            own = data[number][mesh.rank].copy()
            run(mesh, tidalmesh.allreduce(mesh, own, Reduction(op, element), places=places, chunks=chunks))
            results.append(own)
        return results

    for rank, results in enumerate(values(MemoryFabric(ranks, seed=ranks).run(work))):
        for number, (size, element, op) in enumerate(cases):
            np.testing.assert_array_equal(results[number], expected(data[number], op, element),
                                          f"{op} of {size} x {element}, rank {rank}")


@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (3, 3), (4, 3)], ids=str)
def test_links_carry_the_same_and_only_neighbours_talk(shape: tuple[int, int]) -> None:
    """(1 + 1/R)/2 M on each link along a row, (1 + 1/C)/2 M along a column, each way; M on a line: what the model
    says of many chunks."""
    rows, columns = shape
    places, ranks, size = grid_of(*shape), rows * columns, 2 * 3 * rows * columns * 12

    fabric = MemoryFabric(ranks)

    def work(mesh: Mesh) -> None:
        data = np.ones(size, np.float32)
        run(mesh, tidalmesh.allreduce(mesh, data, Reduction("sum", "float32"), places=places, chunks=3))

    values(fabric.run(work))
    found = {link: nbytes // 4 for link, nbytes in fabric.bytes.items() if nbytes}
    wanted = {}
    for a, b in neighbours(rows, columns):
        share = (1 + 1 / rows if a[0] == b[0] else 1 + 1 / columns) / 2
        for one, other in ((a, b), (b, a)):
            wanted[places[one[0]][one[1]], places[other[0]][other[1]]] = round(share * size)
    if 1 in shape:
        wanted = dict.fromkeys(wanted, size)
    assert found == wanted
    per_byte = predicted(1.0, rows, columns, LinkCost(0.0, 1.0, 0.0), chunks=10**9)
    assert max(found.values()) == pytest.approx(per_byte * size)


def test_a_chunk_follows_the_one_before() -> None:
    """A rank sends for a later chunk only when it has sent all of the phase before it for the earlier one, and phases
    of several chunks overlap."""
    places = [[0, 1, 2, 3]]

    def work(mesh: Mesh) -> list[int]:
        order: list[int] = []
        post = mesh.send

        def send(peer: int, data: Flat, *, tag: int = 0) -> Pending:
            order.append(tag)
            return post(peer, data, tag=tag)

        mesh.send = send  # type: ignore[method-assign]
        data = np.ones(4 * 4 * 2 * 10, np.float32)
        run(mesh, tidalmesh.allreduce(mesh, data, Reduction("sum", "float32"), places=places, chunks=4))
        return order

    for rank, order in enumerate(values(MemoryFabric(4).run(work))):
        half = [tag for tag in order if tag < 4]
        assert list(dict.fromkeys(half)) == [0, 1, 2, 3]
        for chunk in range(3):
            mine = [at for at, tag in enumerate(half) if tag == chunk]
            begins = half.index(chunk + 1)
            assert begins > mine[2], "after the three messages of the reduce-scatter before"
            assert begins < mine[-1] or rank in (0, 3), "before the end of the all-gather, where a rank sends on"


@pytest.mark.parametrize("places", [[[0, 1], [2]], [[0, 1, 1, 3]], [[0, 1]]])
def test_places_that_are_no_mesh_are_refused(places: list[list[int]]) -> None:
    """Rows of different lengths, a rank twice, a rank without a place."""
    with pytest.raises(ValueError, match=r"expected rows of one length, with each of the ranks 0 \.\. 3 once"):
        run(MemoryFabric(4).meshes[0], tidalmesh.allreduce(
            MemoryFabric(4).meshes[0], np.zeros(4, np.float32), Reduction("sum", "float32"), places=places))


@pytest.mark.parametrize(("nbytes", "chunks"), [(1, 1), (1 << 20, 4), (600 << 10, 2), (1 << 30, 4)])
def test_short_tensors_are_not_cut(nbytes: int, chunks: int) -> None:
    """A piece has 32 KiB at least, and there are 4 chunks at most."""
    assert tidalmesh.chunks_of(nbytes, 2, 4) == chunks
