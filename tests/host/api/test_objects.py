# SPDX-License-Identifier: Apache-2.0
"""Objects between ranks, and those that are not of a rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from netfold.host.api import objects
from netfold.host.api.communicator import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.errors import PeerLost, Unproven
from netfold.host.job_secret import draw
from netfold.host.mesh.sockets import listen
from netfold.testing import loopback_job, on_every_rank
from netfold.wire.plan import Peer, Plan


class Bomb:
    """An object that makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._path,)


def test_all_take_the_state_of_who_is_furthest() -> None:
    """The first of those that are; whoever has none gets one; where all are equally far nobody's is sent."""

    def work(comm: Communicator) -> None:
        mine = {"weights": np.full(1000, comm.rank)}
        version, state = objects.share_state(comm, [3, -1, 4, 4][comm.rank], mine)
        assert version == 4
        assert (state is mine) == (comm.rank == 2)
        assert (state["weights"] == 2).all()
        assert objects.share_state(comm, 7, mine) == (7, mine)

    with loopback_job(4, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 4


@pytest.mark.parametrize("rail", ["tcp", "roce", "innet"])
def test_objects_reach_every_rank_over_every_rail(rail: RailName) -> None:
    """Objects may have different sizes, be empty or None; the root of a broadcast keeps its own."""
    values = [None, {"words": "x" * 100_000}, [1, 2.5, b""]]

    def work(comm: Communicator) -> None:
        for _ in range(2):
            assert objects.allgather(comm, values[comm.rank]) == values
            mine = ("from", comm.rank)
            got = objects.broadcast(comm, mine, 2)
            assert got == ("from", 2)
            assert (got is mine) == (comm.rank == 2)

    with loopback_job(3, rail=rail) as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_a_stranger_in_the_guise_of_a_rank_runs_no_code(tmp_path: Path) -> None:
    """He runs the library itself as rank 1, with all that is public of the plan, before rank 1 does: he is told that he
    is no rank, rank 0 does not unpickle what he sends, and gets the object of the true rank 1."""
    bomb = tmp_path / "ran"
    with loopback_job(2, rail="tcp") as comms, listen("127.0.0.1") as listener:
        public = structs.replace(comms[1].plan, secret=draw())
        stranger = Communicator.of_plan(public, address="127.0.0.1", rail="tcp", timeout=20, listener=listener)

        def work(comm: Communicator) -> Any:
            if comm.rank:
                with pytest.raises(PeerLost, match="refuses this rank's proof of the job's secret"):
                    objects.allgather(stranger, Bomb(bomb))
            return objects.allgather(comm, ("of", comm.rank))

        try:
            assert on_every_rank(comms, work) == [[("of", 0), ("of", 1)]] * 2
        finally:
            stranger.close()
    assert not bomb.exists()


def tampered(comm: Communicator, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], call: int) -> None:
    """From now on the ``call``-th gathering of this rank, counted from 0, arrives changed."""
    gather, calls = comm.all_gather, iter(range(1000))

    def changed(array: Any, *arguments: Any, **options: Any) -> Any:
        result = gather(array, *arguments, **options)
        return change(result) if next(calls) == call else result

    monkeypatch.setattr(comm, "all_gather", changed)


def test_an_object_that_was_changed_on_its_way_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever carries it: a pickle that takes the place of rank 1's does nothing, and the error says whose it was."""
    bomb = tmp_path / "ran"
    evil = pickle.dumps(Bomb(bomb))

    def replace(data: Any) -> Any:
        data[-len(evil):] = np.frombuffer(evil, np.uint8)
        return data

    with loopback_job(2, rail="tcp") as comms:
        tampered(comms[0], monkeypatch, replace, 1)
        said, other = on_every_rank(comms, lambda comm: objects.allgather(comm, "x" * 1000))
    assert isinstance(said, Unproven)
    assert "is said to be rank 1's: expected the tag of a rank that knows the job's secret" in str(said)
    assert other == ["x" * 1000] * 2
    assert not bomb.exists()


def test_objects_of_an_earlier_exchange_or_another_rank_do_not_count() -> None:
    """They carry a true tag of the job, and are not what was sent now."""
    kept: list[Any] = []

    def keep(data: Any) -> Any:
        kept.append(data.copy())
        return data

    with loopback_job(2, rail="tcp") as comms, pytest.MonkeyPatch.context() as patch:
        tampered(comms[0], patch, keep, 1)
        on_every_rank(comms, lambda comm: objects.allgather(comm, "yes"))
        tampered(comms[0], patch, lambda data: kept[0], 1)  # a replay
        assert isinstance(on_every_rank(comms, lambda comm: objects.allgather(comm, "noo"))[0], Unproven)
        tampered(comms[1], patch, lambda data: np.concatenate(np.split(data, 2)[::-1]), 1)  # swapped
        assert isinstance(on_every_rank(comms, lambda comm: objects.allgather(comm, "yes"))[1], Unproven)


def test_damaged_offers_are_refused_before_any_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that no pickle has, and an own offer that comes back changed."""

    def huge(data: Any) -> Any:
        data[objects.OFFER.size:][:8] = 255
        return data

    with loopback_job(2, rail="tcp") as comms:
        tampered(comms[0], monkeypatch, huge, 0)
        tampered(comms[1], monkeypatch, huge, 0)
        for said in on_every_rank(comms, lambda comm: objects.allgather(comm, "x")):
            assert isinstance(said, Unproven)
            assert "the offers of an exchange of objects are damaged" in str(said)


def test_a_plan_of_one_rank_needs_no_secret() -> None:
    """There is nobody to prove anything to."""
    plan = Plan("alone", 1, 0, 1, [Peer(0, "127.0.0.1", "127.0.0.1:1")], [])
    with Communicator.of_plan(plan, address="127.0.0.1", rail="tcp") as comm:
        assert objects.allgather(comm, {"a": 1}) == [{"a": 1}]
        assert objects.broadcast(comm, "a", 0) == "a"
        with pytest.raises(ValueError, match="root"):
            objects.broadcast(comm, "a", 1)
