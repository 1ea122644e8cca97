# SPDX-License-Identifier: Apache-2.0
"""Collectives of rows of a communicator, over real sockets on loopback: what carries them, their results, and errors
that say what is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.errors import Closed, CollectiveTimeout, RankMismatch
from netfold.testing import loopback_job, on_every_rank
from support.hosts.insides import parts_of

WORLD = 3
COUNTS = (5, 0, 290)


def whole(dtype: str, rows: int = sum(COUNTS)) -> NDArray[Any]:
    """An array of rows of four numbers that every dtype holds."""
    return (np.arange(4 * rows) % 7).reshape(rows, 4).astype(dtype)


def every_way(comm: Communicator) -> None:
    """Calls every collective of rows in many forms, and fails where a result is wrong."""
    rank, start, name = comm.rank, sum(COUNTS[: comm.rank]), comm.rail
    mine = slice(start, start + COUNTS[rank])
    for dtype in ("int32", "float32", "float16", "int64"):
        data = whole(dtype) * (rank + 1)
        total = whole(dtype) * 6
        for turn in (data, np.asfortranarray(data)):
            assert (comm.reduce_scatter(turn, counts=COUNTS) == total[mine]).all(), (name, dtype)
            for root in range(WORLD):
                out = comm.reduce(turn, op="max", root=root)
                assert out is None if rank != root else (out == whole(dtype) * 3).all(), (name, dtype)
        own = data.copy()
        comm.reduce(own, own, root=1)
        assert (own == (total if rank == 1 else data)).all(), "in place, on the root alone"
        part = data.copy()
        comm.reduce_scatter(part, part[mine], counts=COUNTS)
        assert (part[mine] == total[mine]).all(), "into a part of the source"
    for dtype in ("float64", "uint8", "complex128", "datetime64[s]"):
        rows = whole("uint8").astype(dtype)
        assert (comm.all_gather(rows[mine], counts=COUNTS) == rows).all()
        for root in range(WORLD):
            received = rows.copy() if rank == root else np.zeros_like(rows)
            assert (comm.broadcast(received, root=root) == rows).all()
            columns = np.zeros((4, len(rows)), dtype).T
            if rank == root:
                columns[...] = rows
            assert (comm.broadcast(columns, root=root) == rows).all()
    empty = np.empty((0, 3), np.float32)
    assert comm.all_gather(empty).shape == (0, 3)
    assert comm.reduce_scatter(empty).shape == (0, 3)
    assert comm.broadcast(empty) is empty
    comm.barrier()
    for dtype in ("float32", "float16", "int64"):
        data, shard = whole(dtype) * (rank + 1), np.full((rank, 2), rank, np.int16)
        with comm.together() as both:
            sums = both.reduce_scatter(data, counts=COUNTS)
            shards = both.all_gather(shard, counts=range(WORLD))
        assert (sums == whole(dtype)[mine] * 6).all()
        assert (shards == [[1, 1], [2, 2], [2, 2]]).all()
    with comm.together() as both:
        shards = both.all_gather(np.array([rank]))
    assert (shards == range(WORLD)).all()
    if rank != 1:
        pair = comm.group([0, 2])
        assert (pair.all_gather(np.array([rank])) == [0, 2]).all()
        pair.barrier()


@pytest.mark.parametrize(("rail", "loss"), [("innet", 0.0), ("innet", 0.02), ("tcp", 0.0)])
@pytest.mark.parametrize("machines", [[[0], [1], [2]], [[0, 1], [2]], [[0], [1, 2]], [[0, 2], [1]]])
def test_every_rank_gets_the_right_rows(rail: RailName, loss: float, machines: list[list[int]]) -> None:
    """All kinds, dtypes, uneven and empty rows, roots, layouts and in place, through the switch and between the hosts,
    with machines of one rank and of several; what a group of some ranks calls goes between the hosts."""
    with loopback_job(WORLD, rail=rail, loss=loss, members=machines) as comms:
        assert on_every_rank(comms, every_way) == [None] * WORLD


def test_the_flight_recorder_and_the_totals_say_what_carried_them() -> None:
    """Each kind through the switch, by name, and the packets and bytes of its trees; with an algorithm between the
    hosts asked for, that one."""

    def calls(comm: Communicator) -> None:
        comm.broadcast(np.zeros(1000, np.float64))
        comm.all_gather(np.zeros(10))
        comm.reduce_scatter(np.zeros(9, np.float32))
        comm.reduce(np.zeros(9, np.float32), root=2)
        comm.barrier()
        comm.broadcast(np.zeros(10), algorithm="binomial")
        comm.all_gather(np.zeros(10), algorithm="ring")
        comm.barrier(algorithm="dissemination")

    with loopback_job(WORLD) as comms:
        assert on_every_rank(comms, calls) == [None] * WORLD
        for comm in comms:
            paths = [(record.name, record.path) for record in comm.flight()]
            assert [name for name, path in paths if path == "innet"] == [
                "broadcast", "all_gather", "reduce_scatter", "reduce", "barrier",
            ], paths
            stats = comm.stats()
            assert stats.operations == 8
            assert stats.by_tree["loop"].bytes_reduced == 8000 + 240 + 36 + 36
            said = comm.explain(8000, collective="broadcast")
            assert said.startswith("broadcast of 8000 bytes goes over the switches")
            assert "does not fold" in comm.explain(80, "product", collective="reduce")
            assert "by ring, as asked for" in comm.explain(80, collective="all_gather", algorithm="ring")


def test_explain_tells_what_a_call_in_narrow_lanes_or_halves_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By cost where that decides, for the lanes that halves really take, and without asking where narrow lanes fold."""
    with loopback_job(WORLD, rail="auto") as comms:
        asked: list[int | None] = []
        with monkeypatch.context() as patch:
            chooser = parts_of(comms[0]).dispatch.hosts.chooser
            patch.setattr(chooser, "known", lambda nbytes, *, folded, collective: asked.append(folded))
            comms[0].explain(2000, dtype="float16", collective="reduce")
            comms[0].explain(2000, dtype="float16", collective="all_gather")
        assert asked == [4000, 2000]
    monkeypatch.setenv("NETFOLD_LANE_BITS", "16")
    with loopback_job(WORLD, rail="auto") as comms:
        said = comms[0].explain(4000, collective="reduce_scatter")
        assert "over the switches, in lanes of 16 bits" in said
        assert "16 bits" not in comms[0].explain(4000, "max", collective="reduce")
        on_every_rank(comms, lambda comm: comm.reduce_scatter(np.ones(999, np.float32)))
        assert comms[0].flight()[-1].path == "innet"


def test_where_switches_carry_no_rows_the_reason_is_told() -> None:
    """Over TCP collectives go between the hosts, explain says why, and folding them cannot be asked for."""
    with loopback_job(4, rail="tcp") as comms:
        said = comms[0].explain(4096, collective="broadcast")
        assert "over TCP; asked for" in said, said
        with pytest.raises(ValueError, match=r"algorithm='innet': the switches do not carry this"):
            comms[0].broadcast(np.zeros(3), algorithm="innet")
        gathered = on_every_rank(comms, lambda comm: comm.all_gather(np.array([comm.rank])))
        assert all((rows == range(4)).all() for rows in gathered)


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("all_gather", {"algorithm": "chain"}, "expected one of ring, innet"),
        ("broadcast", {"algorithm": "ring"}, "expected one of .*innet"),
        ("barrier", {"algorithm": "ring"}, "expected one of dissemination, innet"),
        ("reduce", {"algorithm": "ring"}, "expected one of .*innet"),
        ("reduce", {"algorithm": "innet", "op": "product"}, "product of float64 does not fold"),
        ("broadcast", {"root": 3}, "root=3: expected a rank"),
        ("reduce", {"root": -1}, "root=-1: expected a rank"),
        ("explain", {"collective": "gather"}, "collective='gather': expected one of"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_at_the_border(name: str, call: dict[str, Any], message: str) -> None:
    """Unknown algorithms, roots and collectives: an error that names what was expected, and nothing is sent."""
    with loopback_job(WORLD) as comms:
        given = [] if name == "barrier" else [80] if name == "explain" else [np.zeros(3)]
        with pytest.raises(ValueError, match=message):
            getattr(comms[0], name)(*given, **call)
        assert comms[0].stats().packets_sent == 0


def test_one_call_of_each_kind_goes_together() -> None:
    """A second reduce_scatter in one block is refused, and then nothing of the block is sent."""
    with loopback_job(WORLD) as comms:
        both = comms[0].together()
        both.reduce_scatter(np.zeros(3))
        with pytest.raises(ValueError, match="expected one reduce_scatter and one all_gather"), both:
            both.reduce_scatter(np.zeros(3))
        assert comms[0].stats().packets_sent == 0


@pytest.mark.parametrize("rail", ["innet", "tcp"])
@pytest.mark.parametrize(
    ("result", "gathered", "into", "overlap"),
    [
        (slice(0, 1), slice(0, 1), None, "result of reduce_scatter and the array of all_gather"),
        (slice(0, 1), slice(9, 10), slice(0, 3), "result of reduce_scatter and the result of all_gather"),
        (slice(0, 1), slice(9, 10), slice(4, 7), "array of reduce_scatter and the result of all_gather"),
    ],
)
def test_calls_that_go_together_may_not_need_each_other(
    rail: RailName, result: slice, gathered: slice, into: slice | None, overlap: str
) -> None:
    """Gathering what is still to be reduced, or into what is reduced, is refused on every path, and nothing is sent:
    the result would be another one where the switches make both at once."""
    with loopback_job(WORLD, rail=rail) as comms:
        memory, both = np.zeros(10), comms[0].together()
        both.reduce_scatter(memory[6:9], out=memory[result])
        both.all_gather(memory[gathered], out=None if into is None else memory[into])
        with pytest.raises(ValueError, match=overlap), both:
            pass
        assert comms[0].stats().packets_sent == 0


@pytest.mark.parametrize("rail", ["innet", "tcp"])
def test_closing_waits_for_what_another_thread_is_in(rail: RailName) -> None:
    """A rank gathers alone on a thread while another one closes its communicator: the operation ends by its timeout
    first, and what it uses goes after that."""
    with loopback_job(2, rail=rail, timeout=1.0) as comms:
        ended: list[object] = []

        def gather() -> None:
            try:
                comms[0].all_gather(np.zeros(1000))
            except CollectiveTimeout as error:
                ended.append(error)

        caller = threading.Thread(target=gather)
        caller.start()
        while not comms[0].flight() and caller.is_alive():
            pass
        comms[0].close()
        assert comms[0].flight()[-1].state == "failed"
        caller.join(20)
        assert len(ended) == 1
        with pytest.raises(Closed):
            comms[0].barrier()


def test_a_rank_that_calls_another_collective_ends_all_by_name() -> None:
    """One broadcasts while the others gather: every rank learns which collectives were called."""

    def call(comm: Communicator) -> object:
        return comm.broadcast(np.zeros(30)) if comm.rank == 1 else comm.all_gather(np.zeros(10))

    with loopback_job(WORLD) as comms:
        for error in on_every_rank(comms, call):
            assert isinstance(error, RankMismatch)
            assert "collective all_gather .. broadcast" in str(error)


def test_a_dtype_with_notes_of_another_library_is_moved() -> None:
    """Metadata that is not ours says nothing of the elements."""
    noted = np.dtype(np.float32, metadata={"h5py": "enum"})
    with loopback_job(2, rail="tcp") as comms:
        for got in on_every_rank(comms, lambda comm: comm.broadcast(np.full(3, comm.rank, noted))):
            np.testing.assert_array_equal(got, np.zeros(3, np.float32))


@pytest.mark.parametrize("rail", ["tcp", "innet"])
@pytest.mark.parametrize("kind", ["broadcast", "all_gather", "gather", "scatter", "all_to_all"])
def test_what_is_moved_has_one_dtype_on_all_ranks(rail: RailName, kind: str) -> None:
    """As many bytes of another dtype are a RankMismatch with both names, over TCP and in the switches; nothing is
    reinterpreted."""

    def work(comm: Communicator) -> object:
        mine = np.ones(8, np.float32 if comm.rank else np.int32)
        calls: dict[str, Callable[[], object]] = {
            "broadcast": lambda: comm.broadcast(mine),
            "all_gather": lambda: comm.all_gather(mine),
            "gather": lambda: comm.gather(mine),
            "scatter": lambda: comm.scatter(None if comm.rank else np.concatenate([mine, mine]), mine),
            "all_to_all": lambda: comm.all_to_all(mine),
        }
        return calls[kind]()

    with loopback_job(2, rail=rail, timeout=10) as comms:
        results = on_every_rank(comms, work)
        told = [one for one in results if isinstance(one, RankMismatch)]
        receivers = {"gather": [0], "scatter": [1]}.get(kind, [0, 1])
        assert all(isinstance(results[rank], RankMismatch) for rank in receivers), results
        for error in told:
            assert "int32" in str(error), error
            assert "float32" in str(error), error
