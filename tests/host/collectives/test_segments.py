# SPDX-License-Identifier: Apache-2.0
"""How pieces are split into segments: by length alone, so that both ends of a message find the same ones."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.collectives.flow import SEGMENT, length, segments_on
from netfold.host.mesh.mesh import Mesh
from netfold.host.roce.mesh import RoceMesh


def _mesh(merged: int) -> Mesh:
    return SimpleNamespace(merged_segments=merged)  # type: ignore[return-value]


@given(start=st.integers(0, 1 << 20), size=st.integers(0, 5 << 20), merged=st.integers(1, 4))
def test_segments_cover_a_piece_in_order(start: int, size: int, merged: int) -> None:
    """Segments stand one behind the other, none is empty, and each but the last has the same length."""
    cuts = segments_on(_mesh(merged), slice(start, start + size), 4)
    assert [cut.start for cut in cuts] == [start, *(cut.stop for cut in cuts[:-1])][: len(cuts)]
    assert sum(map(length, cuts)) == size
    assert len({length(cut) for cut in cuts[:-1]}) <= 1
    assert all(0 < length(cut) * 4 <= merged * SEGMENT for cut in cuts)


@given(start=st.integers(0, 1 << 20), other=st.integers(0, 1 << 20), size=st.integers(0, 5 << 20))
def test_both_ends_find_the_same_lengths(start: int, other: int, size: int) -> None:
    """Where a piece lies does not matter, only how long it is: who receives it may have it elsewhere."""
    mesh = _mesh(RoceMesh.merged_segments)
    here = segments_on(mesh, slice(start, start + size), 4)
    there = segments_on(mesh, slice(other, other + size), 4)
    assert list(map(length, here)) == list(map(length, there))


@pytest.mark.parametrize(("nbytes", "count"), [(SEGMENT, 1), (4 * SEGMENT, 4), (8 * SEGMENT - 4, 8), (8 * SEGMENT, 4)])
def test_only_long_pieces_have_merged_segments(nbytes: int, count: int) -> None:
    """A piece that would have less than four merged segments keeps its short ones, so that reducing overlaps."""
    assert len(segments_on(_mesh(2), slice(0, nbytes), 1)) == count
