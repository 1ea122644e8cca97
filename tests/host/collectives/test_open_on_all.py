# SPDX-License-Identifier: Apache-2.0
"""Opening on all ranks or on none."""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.collectives.open_on_all import Unfit, agreed_over, open_on_all
from netfold.host.errors import PeerLost, TransportError
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.mesh import Call, Mesh


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.data())
def test_all_ranks_open_or_all_hear_what_each_lacks(world: int, data: st.DataObject) -> None:
    """One rank or several that fail: the others close what they have opened, and all have the same words."""
    lacking = data.draw(st.dictionaries(st.integers(0, world - 1), st.text(max_size=300)))
    closed: list[int] = []

    def work(mesh: Mesh) -> Any:
        def open_() -> int:
            if mesh.rank in lacking:
                raise TransportError(errno.EADDRINUSE, lacking[mesh.rank])
            return mesh.rank

        with mesh.operation(Call(0, "the ranks open")):
            return open_on_all(agreed_over(mesh), open_, closed.append)

    found = MemoryFabric(world).run(work)
    if not lacking:
        assert found == list(range(world))
        assert closed == []
        return
    assert all(isinstance(one, Unfit) for one in found)
    assert len({str(one) for one in found}) == 1
    assert str(found[0]).count("cannot fold: ") >= len(lacking)
    assert all(f"rank {rank} cannot fold: " in str(found[0]) for rank in lacking)
    assert str(found[0]).isprintable()
    assert sorted(closed) == sorted(set(range(world)) - lacking.keys())
    for rank, one in enumerate(found):
        error = one.error(f"rank {rank}")
        assert error.errno == (errno.EADDRINUSE if rank in lacking else None)
        assert str(one) in str(error)


def test_what_other_ranks_do_is_no_want_of_this_host() -> None:
    """A lost rank ends the operation, as everywhere."""

    def work(mesh: Mesh) -> Any:
        def open_() -> int:
            raise PeerLost("rank 1 is lost")

        with mesh.operation(Call(0, "the ranks open")):
            return open_on_all(agreed_over(mesh), open_, print)

    (found,) = MemoryFabric(1).run(work)
    assert isinstance(found, PeerLost)
