# SPDX-License-Identifier: Apache-2.0
"""Allreduces of a kind that was made before take few steps, and are in all else what a first one is."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, RankMismatch
from netfold.host.innet.fold import FoldRail
from netfold.host.operation import conversion
from netfold.host.tracing.flight import Flight
from netfold.testing import LoopbackSwitch, loopback, loopback_job, on_every_rank
from support.hosts.host import impatient, interrupted_by
from support.hosts.insides import parts_of

FEW = 10
"""Calls of Python's functions that a repeated allreduce may take; one that is looked at anew takes 25 and more."""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often, over all ranks, which method of the rail has carried an allreduce."""
    taken: Counter[str] = Counter()

    def counted(name: str, result: Callable[[Any], bool]) -> None:
        whole = getattr(FoldRail, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            got = whole(*args, **kwargs)
            taken[name] += result(got)
            return got

        monkeypatch.setattr(FoldRail, name, call)

    counted("allreduce", lambda _: True)
    counted("repeat", lambda got: got is not None)
    return taken


def arrays(seed: int, count: int, world: int, shape: Any, dtype: str) -> list[list[NDArray[Any]]]:
    """Contributions of each rank to each of ``count`` operations."""
    rng = np.random.default_rng(seed)
    if dtype == "int32":
        return [[rng.integers(-(2**31), 2**31, shape).astype(np.int32) for _ in range(world)] for _ in range(count)]
    return [[np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6), np.float32) for _ in range(world)]
            for _ in range(count)]


@pytest.mark.parametrize(("dtype", "op"), [("float32", "sum"), ("float32", "average"), ("int32", "sum"),
                                           ("int32", "max"), ("float32", "min")])
@pytest.mark.parametrize("shape", [(1024,), (7, 33), ()])
def test_a_repeated_allreduce_has_the_bits_of_a_first_one(
    ways: Counter[str], dtype: str, op: Any, shape: tuple[int, ...]
) -> None:
    """Of other data each time, in place, into another array and into a new one, results are those that communicators
    give which make each operation as their first."""
    world, count = 3, 4
    data = arrays(5, count, world, shape, dtype)

    def together(comm: Communicator) -> list[NDArray[Any]]:
        given = [mine[comm.rank].copy() for mine in data]
        comm.allreduce(given[0].reshape(-1), op=op)  # of this kind, but not counted: each shape is of its bytes
        results = [comm.allreduce(given[0], op=op), comm.allreduce(given[1], np.empty_like(given[1]), op)]
        assert comm.allreduce(given[2], given[2], op) is given[2]
        return [*results, given[2], comm.allreduce(given[3], op=op)]

    with loopback_job(world) as comms:
        got = on_every_rank(comms, together)
    assert ways == {"allreduce": world, "repeat": count * world}
    for index, mine in enumerate(data):
        with loopback_job(world) as comms:
            first = on_every_rank(comms, lambda c, own=mine: c.allreduce(own[c.rank], op=op))  # type: ignore[misc]
        for results in got:
            assert results[index].shape == shape
            assert results[index].tobytes() == first[0].tobytes()


def test_it_takes_few_steps() -> None:
    """A repeated allreduce calls ten functions of Python at most, but where it must wait long for another rank, or send
    again: beside 4 KiB these are what costs."""
    calls: list[list[str]] = []

    def count(frame: Any, event: str, arg: object) -> None:
        if event == "call":
            calls[-1].append(frame.f_code.co_qualname)

    def profiled(comm: Communicator) -> None:
        own, first = np.ones(1024, np.float32), comm.rank == 0
        for _ in range(20):
            if first:
                calls.append([])
                sys.setprofile(count)
            try:
                comm.allreduce(own, own)
            finally:
                if first:
                    sys.setprofile(None)

    with loopback_job(2) as comms:
        for _ in range(25):  # on a slow machine it may wait long in many of them
            assert on_every_rank(comms, profiled) == [None, None]
            fewest = min(calls, key=len)
            if len(fewest) <= FEW:
                break
    assert fewest[0] == "Group.allreduce"
    assert len(fewest) <= FEW, fewest


def test_all_are_counted_and_recorded(ways: Counter[str]) -> None:
    """The totals have operations, bytes and seconds of repeated ones, the flight recorder each with its way."""
    with loopback_job(2) as comms:
        for index in range(5):
            on_every_rank(comms, lambda c, at=index: c.allreduce(np.ones(300, np.float32), name=f"x{at}"))  # type: ignore[misc]
        for comm in comms:
            stats = comm.stats()
            assert (stats.operations, stats.bytes_reduced) == (5, 6000)
            assert stats.by_tree["loop"].bytes_reduced == 6000
            assert stats.seconds > 0
            records = comm.flight()
            assert [(r.number, r.name, r.op, r.dtype, r.nbytes, r.path, r.state) for r in records] == [
                (index + 1, f"x{index}", "sum", "float32", 1200, "innet", "done") for index in range(5)
            ]
            assert all(record.begin <= record.end for record in records)
    assert ways["repeat"] == 8


def test_what_is_sent_again_is_counted(ways: Counter[str]) -> None:
    """With 20 % loss repeated sums are exact, and their records say what was sent again."""
    with loopback_job(2, loss=0.2, seed=11) as comms:
        data = arrays(6, 30, 2, 5000, "int32")
        for own in data:
            for out in on_every_rank(comms, lambda c, mine=own: c.allreduce(mine[c.rank])):  # type: ignore[misc]
                assert (out == own[0] + own[1]).all()
        for comm in comms:
            assert sum(record.retransmissions for record in comm.flight()) == comm.stats().retransmissions > 0
    assert ways["repeat"] > 40


@settings(max_examples=20)
@given(st.data())
def test_any_order_of_kinds_and_layouts_is_exact(data: st.DataObject) -> None:
    """Kinds take turns, with arrays that the switches take as they are and others that must be copied, and each sum is
    exact."""
    size = st.sampled_from([1, 255, 1024, 5000])
    layout = st.sampled_from(["plain", "strided", "big-endian", "read-only", "overlapping", "column"])
    turns = data.draw(st.lists(st.tuples(size, layout, st.sampled_from(["<i4", "<f4"])), min_size=2, max_size=12))

    def run(comm: Communicator) -> None:
        for turn, (count, how, dtype) in enumerate(turns):
            values: NDArray[Any] = np.arange(count, dtype=dtype) % 1000 + turn
            expected = comm.size * values
            out: NDArray[Any] | None = None
            own: NDArray[Any] = np.zeros(count, dtype)
            if how == "strided":
                own = np.zeros(2 * count, dtype)[::2]
            elif how == "big-endian":
                own = np.zeros(count, dtype.replace("<", ">"))
            elif how == "overlapping":
                room = np.zeros(count + 1, dtype)
                own, out = room[1:], room[:-1]
            elif how == "column":
                own = np.zeros((count, 1), dtype)
                values, expected = values.reshape(-1, 1), expected.reshape(-1, 1)
            own[...] = values
            if how == "read-only":
                own.flags.writeable = False
            assert (comm.allreduce(own, out) == expected).all(), (turn, count, how, dtype)

    with loopback_job(2) as comms:
        for error in on_every_rank(comms, run):
            assert error is None


@pytest.mark.parametrize(("out", "says"), [
    (np.empty(1023, np.float32), "expected float32.1024"), (np.empty(1024, np.int32), "expected float32.1024"),
    (np.empty((2, 512), np.float32), "expected float32.1024"),
])
def test_a_wrong_result_array_is_refused_as_before(out: NDArray[Any], says: str) -> None:
    """An array that cannot hold the result is refused before anything is sent, and the next operation is in order."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(1024, np.float32)))
        with pytest.raises(ValueError, match=says):
            comms[0].allreduce(np.ones(1024, np.float32), out)
        for got in on_every_rank(comms, lambda c: c.allreduce(np.ones(1024, np.float32))):
            assert (got == 2).all()


def test_options_that_a_call_names_are_not_left_out(ways: Counter[str]) -> None:
    """A call with lanes, an algorithm, feedback or a dtype of its own is looked at, though one without was made."""
    with loopback_job(2) as comms:

        def run(comm: Communicator) -> None:
            own = np.linspace(0.1, 1, 1024, dtype=np.float32)
            comm.allreduce(own)
            residual = np.zeros_like(own)
            comm.allreduce(own, lane_bits=8, feedback=residual)
            assert residual.any(), "narrow lanes left something out"
            comm.allreduce(own, algorithm="ring")
            comm.allreduce(own, reproducible=True)
            comm.allreduce(np.ones(1024, np.int32), saturate=True)

        assert on_every_rank(comms, run) == [None, None]
        assert [record.path for record in comms[0].flight()][:3] == ["innet", "innet", "TCP, ring"]
    assert ways["repeat"] == 0


def test_a_call_with_lanes_of_its_own_is_repeated_with_them(ways: Counter[str]) -> None:
    """Sums in 8 bits take turns with whole ones of the same array, and the repeated ones have the bits of the first."""
    with loopback_job(2) as comms:

        def run(comm: Communicator) -> None:
            own, residual = np.linspace(0.1, 1, 1024, dtype=np.float32), np.zeros(1024, np.float32)
            narrow = [comm.allreduce(own, lane_bits=8, rounding="nearest") for _ in range(2)]
            whole = [comm.allreduce(own, rounding="nearest") for _ in range(2)]
            narrow.append(comm.allreduce(own, lane_bits=8, rounding="nearest"))
            comm.allreduce(own, lane_bits=8, rounding="nearest", feedback=residual)
            assert residual.any(), "narrow lanes left something out"
            assert len({result.tobytes() for result in narrow}) == len({result.tobytes() for result in whole}) == 1
            assert narrow[0].tobytes() != whole[0].tobytes()

        assert on_every_rank(comms, run) == [None, None]
    assert ways == {"allreduce": 6, "repeat": 6}


def test_each_algorithm_that_is_named_goes_its_own_way(ways: Counter[str]) -> None:
    """Calls that are alike but for the algorithm do not take each other's way, however often they take turns."""
    with loopback_job(2) as comms:

        def run(comm: Communicator) -> None:
            own = np.arange(1000, dtype=np.int32)
            for _ in range(3):
                for algorithm in ("innet", "ring", None):
                    assert (comm.allreduce(own, algorithm=algorithm) == 2 * own).all()

        assert on_every_rank(comms, run) == [None, None]
        assert [record.path for record in comms[0].flight()] == ["innet", "TCP, ring", "innet"] * 3
    assert ways == {"allreduce": 4, "repeat": 8}


def test_another_size_on_one_rank_is_told_to_all() -> None:
    """Where one rank repeats a kind and another one calls something else, both learn it, and the record says so."""
    with loopback_job(2, timeout=20) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(1000, np.float32)))
        got = on_every_rank(comms, lambda c: c.allreduce(np.ones(1000 - c.rank, np.float32)))
        assert all(isinstance(error, NetFoldError) for error in got), got
        assert any(isinstance(error, RankMismatch) and "999" in str(error) for error in got), got
        assert comms[0].flight()[-1].state == "failed"
        with pytest.raises(NetFoldError):
            comms[0].allreduce(np.ones(1000, np.float32))


def test_a_rank_that_stays_away_times_the_others_out() -> None:
    """The error of a repeated operation names it, and later calls raise it again."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(1000, np.float32)))
        impatient(comms, 0.3)
        with pytest.raises(CollectiveTimeout, match=r"rank 0 of 2, operation 2 \('grad7', 1000 x float32\)"):
            comms[0].allreduce(np.ones(1000, np.float32), name="grad7")
        with pytest.raises(CollectiveTimeout, match="operation 2"):
            comms[0].allreduce(np.ones(1000, np.float32))


def test_a_signal_interrupts_it() -> None:
    """Ctrl-C while a repeated operation waits is handled at once, and nothing goes on with the caller's arrays."""

    class Interrupted(Exception):
        pass

    with loopback_job(2, timeout=60) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(100, np.float32)))
        with interrupted_by(Interrupted, comms[0]), pytest.raises(Interrupted):
            comms[0].allreduce(np.ones(100, np.float32))
        with pytest.raises(NetFoldError, match=r"operation 2 was interrupted \(Interrupted\)"):
            comms[0].allreduce(np.ones(100, np.float32))


def test_a_closed_communicator_refuses_it() -> None:
    """After ``close`` a kind that was made before is refused as any other, and touches no memory of the engine."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(100, np.float32)))
    for comm in comms:
        with pytest.raises(Closed):
            comm.allreduce(np.ones(100, np.float32))


def test_arrays_are_let_go(ways: Counter[str]) -> None:
    """However many kinds were made, the communicator keeps the arrays of the last operation alone."""
    with loopback_job(2) as comms:
        refs: list[weakref.ref[NDArray[Any]]] = []

        def run(comm: Communicator) -> None:
            for _ in range(2):
                for size in range(1, 21):
                    got = comm.allreduce(np.ones(size, np.float32))
                    if comm.rank == 0:
                        refs.append(weakref.ref(got))

        assert on_every_rank(comms, run) == [None, None]
        assert ways["repeat"] == 40
        assert sum(ref() is not None for ref in refs) <= 2
        buffer = bytearray(4000)

        def borrow(comm: Communicator) -> None:
            own = np.frombuffer(buffer, np.float32) if comm.rank == 0 else np.ones(1000, np.float32)
            for _ in range(3):
                comm.allreduce(own)
            del own
            comm.allreduce(np.ones(1, np.float32))

        assert on_every_rank(comms, borrow) == [None, None]
        buffer.extend(b"x")  # refused while an array has it


def test_two_threads_may_find_a_kind_gone() -> None:
    """A kind that is looked at anew, while another thread waits for the operation that finds this out, ends neither."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(100, np.float32)))
        for comm in comms:
            cast(FoldRail, parts_of(comm).dispatch.switches).watched_by(lambda moved: None)

        def run(comm: Communicator) -> None:
            work = comm.iallreduce(np.ones(100, np.float32))
            assert (comm.allreduce(np.ones(100, np.float32)) == 2).all()
            assert (work.wait() == 2).all()

        for _ in range(20):
            assert on_every_rank(comms, run) == [None, None]


def test_arrays_of_any_shape_are_repeated_and_none_is_copied_to_find_out(
    ways: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix is folded as it is from its second call on; of what must be copied one copy is made a call."""
    copies: list[object] = []
    whole = conversion.flat  # type: ignore[attr-defined]

    def counted(array: NDArray[Any]) -> NDArray[Any]:
        copies.append(array)
        return whole(array)

    monkeypatch.setattr(conversion, "flat", counted)
    with loopback_job(2) as comms:
        for _ in range(3):
            on_every_rank(comms, lambda c: c.allreduce(np.ones((8, 8), np.float32)))
        assert ways == {"allreduce": 2, "repeat": 4}
        copies.clear()
        for _ in range(3):
            on_every_rank(comms, lambda c: c.allreduce(np.ones((8, 2), np.float32)[:, :1]))
        assert ways == {"allreduce": 8, "repeat": 4}
        assert len(copies) == 6


def test_seconds_have_the_whole_of_a_long_operation() -> None:
    """Where a rank comes late, the totals have the time from the operation's beginning."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(100, np.float32)))
        before, made = comms[0].stats().seconds, len(comms[0].flight())
        late = threading.Event()

        def run(comm: Communicator) -> None:
            if comm.rank == 1:
                while len(comms[0].flight()) == made:
                    late.wait(0.001)
                late.wait(0.6)
            comm.allreduce(np.ones(100, np.float32))

        assert on_every_rank(comms, run) == [None, None]
        record = comms[0].flight()[-1]
        took = comms[0].stats().seconds - before
        assert 0.2 <= took <= record.end - record.begin


def test_packets_sent_again_in_one_that_fails_are_recorded(
    ways: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of an operation that timed out, since no other rank called it, says what was sent again."""
    switches: list[LoopbackSwitch] = []
    monkeypatch.setattr(
        loopback, "LoopbackSwitch",
        lambda *args, **options: switches.append(LoopbackSwitch(*args, **options)) or switches[-1],  # type: ignore
    )
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(100, np.float32)))
        core = cast(FoldRail, parts_of(comms[0]).dispatch.switches).core

        def draws() -> Iterator[float]:
            yield 0.0  # the next packet is lost, and no other
            while not core.totals.retransmitted:
                yield 1.0
            impatient(comms, 0.3)  # only now: a packet that is sent again takes its time
            yield from repeat(1.0)

        drawn = draws()
        monkeypatch.setattr(switches[0]._rng, "random", lambda: next(drawn))
        monkeypatch.setattr(switches[0], "_loss", 0.5)
        with pytest.raises(CollectiveTimeout):
            comms[0].allreduce(np.ones(100, np.float32))
        assert ways["allreduce"] == 2
        records = comms[0].flight()
        assert records[-1].retransmissions > 0
        assert sum(record.retransmissions for record in records) == comms[0].stats().retransmissions


def test_the_recorder_takes_back_what_was_not_carried() -> None:
    """Where a repeated operation is looked at anew, its record names what carried it in the end alone."""
    flight = Flight("job", 0, 1)
    flight.begin(1, "", "x", "sum", "float32", 4, "innet")
    flight.take_back()
    flight.note("tcp ring")
    assert flight.operations()[-1].path == "tcp ring"
