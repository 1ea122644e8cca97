# SPDX-License-Identifier: Apache-2.0
"""Native cores over a terrible network and the reference switches: exact sums, the same bits, no hang, no storm."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from slot_model import (
    MICROSECOND,
    MILLISECOND,
    SECOND,
    Call,
    Fabric,
    Layout,
    TerribleNetwork,
    count_ranks,
    fold,
    make_fabric,
    plan_trees,
    run,
)

from netfold.host.folding import abi, native
from netfold.host.folding.abi import AGREEMENT, DATA
from netfold.host.folding.native import Core, Credits
from netfold.host.native_library import Run
from netfold.wire import roce
from netfold.wire.jobs import Stream, Tree

LAYOUTS: list[list[Layout]] = [[0], [0, 1], [0, 1, 2], [[0, 1], [2, 3]], [[0], [1, 2, 3]], [[[0, 1], [2]], [3, 4]]]


def integers(world: int, size: int, seed: int) -> list[NDArray[Any]]:
    """An int32 array for every rank."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32) for _ in range(world)]


def floats(world: int, size: int, seed: int) -> list[NDArray[Any]]:
    """A float32 array for every rank, over many magnitudes."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-20, 20, size))
    return [(rng.standard_normal(size) * scale).astype(np.float32) for _ in range(world)]


def retransmissions(fabric: Fabric) -> int:
    """Of all ranks."""
    return sum(
        core.standing(tree, kind).counters.retransmitted
        for core in fabric.cores
        for tree, kind in product(range(len(core.trees)), (AGREEMENT, DATA))
    )


@settings(max_examples=60)
@given(
    layout=st.sampled_from(LAYOUTS),
    size=st.integers(0, 9000),
    trees=st.integers(1, 3),
    slots=st.sampled_from([2, 4, 16, 64]),
    psn=st.sampled_from([0, 5, (1 << 24) - 1, (1 << 24) - 7, 1 << 23]),
    loss=st.sampled_from([0.0, 0.01, 0.1]),
    chaos=st.sampled_from([0.0, 0.05, 0.3]),
    max_run=st.sampled_from([1, 7, 60]),
    seed=st.integers(0, 2**32 - 1),
)
def test_integer_sums_are_exact_whatever_the_network_does(
    layout: list[Layout],
    size: int,
    trees: int,
    slots: int,
    psn: int,
    loss: float,
    chaos: float,
    max_run: int,
    seed: int,
) -> None:
    """Any tree, window, PSN wrap, loss, duplication and reordering: every rank gets the wrapped int32 sum."""
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=chaos, reorder=chaos)
    fabric = make_fabric(layout, network, trees=trees, slots=slots, psn=psn, max_run=max_run)
    sources = integers(len(fabric.cores), size, seed)
    expected = np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)
    for out in fold(fabric, sources):
        assert (out == expected).all()


@settings(max_examples=30)
@given(
    layout=st.sampled_from(LAYOUTS),
    size=st.integers(1, 100_000),
    loss=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**32 - 1),
)
def test_floats_get_the_same_bits_on_every_rank_with_and_without_loss(
    layout: list[Layout], size: int, loss: float, seed: int
) -> None:
    """Loss changes no bit of a float sum, and ranks never differ."""
    results = []
    for rate in (0.0, loss):
        network = TerribleNetwork(random.Random(seed), loss=rate, duplicate=rate, reorder=rate)
        fabric = make_fabric(layout, network, trees=2)
        results += fold(fabric, floats(len(fabric.cores), size, seed))
    for result in results[1:]:
        assert (result.view(np.uint32) == results[0].view(np.uint32)).all()


def plan_anew(fabric: Fabric, network: TerribleNetwork, at: int, trees: int, *, again: int) -> None:
    """At a time, the switches lose all they hold; ranks stop one by one, and go on together over new trees."""
    missing: dict[int, dict[int, int]] = {}

    def stop(rank: int) -> None:
        fabric.frozen.add(rank)
        missing[rank] = fabric.cores[rank].missing()

    def go_on() -> None:
        reported = [list(missing[rank].values()) for rank in range(len(fabric.cores))]
        starts = [min(column, key=lambda psn: roce.psn_age(psn, column[0])) for column in zip(*reported, strict=True)]
        for rank, core in enumerate(fabric.cores):
            planned = plan_trees(rank, len(fabric.cores), trees=trees, slots=fabric.slots, again=again)
            core.resume([
                msgspec.structs.replace(tree, agreement=msgspec.structs.replace(tree.agreement, psn=starts[2 * t]),
                                        data=msgspec.structs.replace(tree.data, psn=starts[2 * t + 1]))
                for t, tree in enumerate(planned)
            ], network.now)  # fmt: skip
        fabric.grow()
        fabric.frozen.clear()

    network.at(at, fabric.die)
    for rank in range(len(fabric.cores)):
        network.at(at + network.rng.randrange(MILLISECOND), lambda rank=rank: stop(rank))
    network.at(at + 2 * MILLISECOND, go_on)


@settings(max_examples=60)
@given(
    layout=st.sampled_from(LAYOUTS[1:]),
    trees=st.integers(1, 2),
    slots=st.sampled_from([2, 4, 16, 64]),
    psn=st.sampled_from([0, (1 << 24) - 7]),
    loss=st.sampled_from([0.0, 0.05]),
    disasters=st.lists(st.integers(0, 4 * MILLISECOND), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_stay_exact_when_switches_lose_what_they_hold(
    layout: list[Layout], trees: int, slots: int, psn: int, loss: float, disasters: list[int], seed: int
) -> None:
    """Operations in place, of unlike dtypes, in a row: ranks stop anywhere, some of them in the next operation already
    or idle, and go on over new trees from what the slowest lacks."""
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, reorder=loss)
    fabric = make_fabric(layout, network, trees=trees, slots=slots, psn=psn)
    world = len(fabric.cores)
    rounds = []
    for number, size in enumerate(np.random.default_rng(seed).integers(0, 9000, 4).tolist(), start=1):
        sources = integers(world, size, seed + number) if number % 2 else floats(world, size, seed + number)
        rounds.append((number, sources, [source.copy() for source in sources]))
    calls = [[Call(arrays[rank], arrays[rank], 1.0, number) for number, _, arrays in rounds] for rank in range(world)]
    at = 0
    for again, pause in enumerate(disasters, start=1):
        at += pause
        plan_anew(fabric, network, at, trees, again=again)
        at += 2 * MILLISECOND
    for _ in run(fabric, calls, late=[network.rng.randrange(MILLISECOND) for _ in range(world)]):
        pass
    for _, sources, arrays in rounds:
        for array in arrays[1:]:
            assert (array.view(np.uint32) == arrays[0].view(np.uint32)).all()
        if sources[0].dtype == np.int32:
            assert (arrays[0] == np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)).all()
        elif sources[0].size:
            exact = np.sum(np.array(sources, np.float64), axis=0)
            assert np.abs(arrays[0] - exact).max() <= np.max(np.abs(np.array(sources))) * 2**-20


def test_a_first_psn_that_is_no_longer_kept_is_refused() -> None:
    """Above what a rank lacks, or below the packets that it keeps: it says so, and changes nothing."""
    network = TerribleNetwork(random.Random(1))
    fabric = make_fabric([0, 1], network, slots=4, psn=100)
    fold(fabric, integers(2, 256 * 20, 1))
    core = fabric.cores[0]
    (tree,) = plan_trees(0, 2, slots=4, again=1)
    here = core.missing()[core.trees[0].data.qp]
    assert here == 120
    for psn in (here + 1, here - 5, 99):
        with pytest.raises(ValueError, match="the first PSN is none that this rank still has"):
            core.resume([msgspec.structs.replace(tree, data=msgspec.structs.replace(tree.data, psn=psn),
                                                 agreement=msgspec.structs.replace(tree.agreement, psn=101))], 0)
    assert core.finished()
    with pytest.raises(ValueError, match="1 trees cannot become 2"):
        core.resume([tree, tree], 0)


@settings(max_examples=20)
@given(
    late=st.lists(st.integers(0, 3 * SECOND), min_size=4, max_size=4),
    loss=st.sampled_from([0.0, 0.03]),
    seed=st.integers(0, 2**32 - 1),
)
def test_operations_follow_each_other_with_late_ranks(late: list[int], loss: float, seed: int) -> None:
    """Many operations of unlike sizes and dtypes in a row, in place, while ranks come late by seconds."""
    network = TerribleNetwork(random.Random(seed), loss=loss, reorder=loss)
    fabric = make_fabric([[0, 1], [2, 3]], network, trees=2, slots=16)
    rng = np.random.default_rng(seed)
    rounds = []
    for number, size in enumerate(rng.integers(0, 3000, 12).tolist(), start=1):
        sources = integers(4, size, seed + number) if number % 2 else floats(4, size, seed + number)
        rounds.append((number, sources, [source.copy() for source in sources]))
    calls = [[Call(arrays[rank], arrays[rank], 1.0, number) for number, _, arrays in rounds] for rank in range(4)]
    for _ in run(fabric, calls, late=late):
        pass
    for _, sources, arrays in rounds:
        for array in arrays[1:]:
            assert (array.view(np.uint32) == arrays[0].view(np.uint32)).all()
        if sources[0].dtype == np.int32:
            assert (arrays[0] == np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)).all()
        elif sources[0].size:
            exact = np.sum(np.array(sources, np.float64), axis=0)
            top = np.max(np.abs(np.array(sources)))
            assert np.abs(arrays[0] - exact).max() <= top * 2**-20


def test_a_late_rank_does_not_cause_a_storm() -> None:
    """Ranks that wait 2 s for another ask with single packets, backed off, and resend nothing once it comes."""
    network = TerribleNetwork(random.Random(1))
    fabric = make_fabric([0, 1, 2], network, slots=256)
    sources = integers(3, 60_000, 1)
    calls = [[Call(source, np.empty_like(source), 1.0, 1)] for source in sources]
    for _ in run(fabric, calls, late=[0, 0, 2 * SECOND]):
        pass
    waited = 2 * SECOND / 50e6  # at most one packet for each of the 50 ms of the longest back-off, and the first few
    assert retransmissions(fabric) <= 2 * 2 * (waited + 10)


@pytest.mark.parametrize(("packets", "operations"), [(200, 1), (20, 5)])
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_a_network_slower_than_any_timer_is_not_flooded(loss: float, packets: int, operations: int) -> None:
    """Round trips of half a second, most of it in the queue of their own window: ranks find out that their repetitions
    were for nothing, instead of filling the queue that they wait for."""
    packet_time = 17 * MILLISECOND  # 4 KB at 2 Mb/s
    network = TerribleNetwork(
        random.Random(5), loss=loss, duplicate=loss, reorder=loss, packet_time=packet_time, late=packet_time
    )
    fabric = make_fabric([[0, 1], [2, 3]], network, slots=64)
    sources = integers(4, 256 * packets, 3)
    calls = [
        [Call(source, np.empty_like(source), 1.0, number) for number in range(operations)] for source in sources
    ]
    for _ in run(fabric, calls, limit=600 * SECOND):
        pass
    for own in calls:
        for call in own:
            assert (call.out == sum(sources)).all()
    assert network.now < 4 * operations * (packets + 6) * packet_time
    assert retransmissions(fabric) < 4 * operations * packets / 2


def test_without_loss_nothing_is_sent_twice() -> None:
    """A clean network sees each packet once, and no timer runs out."""
    network = TerribleNetwork(random.Random(1))
    fabric = make_fabric([[0, 1], [2, 3]], network, trees=2)
    fold(fabric, floats(4, 50_000, 1))
    assert retransmissions(fabric) == 0
    for core in fabric.cores:
        assert sum(core.standing(t, k).counters.sent for t in (0, 1) for k in (AGREEMENT, DATA)) == 196 + 2 + 1


def test_one_percent_loss_is_repaired_without_waiting_for_timers() -> None:
    """Fast retransmit repairs a long stream: 1 % loss costs less than 1.3 times, timers only at its end."""
    times = []
    for loss in (0.0, 0.01):
        network = TerribleNetwork(random.Random(7), loss=loss, packet_time=9 * MICROSECOND)  # 1 Gb/s
        fabric = make_fabric([[0, 1], [2, 3]], network, slots=1024)
        fold(fabric, integers(4, 256 * 100, 3))  # now the round trip is known
        begin = network.now
        fold(fabric, integers(4, 256 * 20_000, 3), number=2)
        times.append(network.now - begin)
        timeouts = sum(core.standing(0, DATA).counters.timeouts for core in fabric.cores)
        assert timeouts <= 4 * 3
    assert times[1] < 1.3 * times[0], times


@pytest.mark.parametrize(("slots", "bound"), [(64, 8.0), (2048, 2.2)])
def test_five_percent_loss_on_every_link_slows_but_does_not_stall(slots: int, bound: float) -> None:
    """Lost repairs are repaired in turn within round trips: no pile of time-outs, no storm of repetitions."""
    times = []
    for loss in (0.0, 0.05):
        network = TerribleNetwork(random.Random(7), loss=loss, packet_time=9 * MICROSECOND)  # 1 Gb/s
        fabric = make_fabric([[0, 1], [2, 3]], network, slots=slots)
        fold(fabric, integers(4, 256 * 100, 3))
        begin = network.now
        fold(fabric, integers(4, 256 * 5_000, 3), number=2)
        times.append(network.now - begin)
    assert times[1] < bound * times[0], times
    assert retransmissions(fabric) < 4 * 5_000


def test_a_dead_link_is_used_again_soon_after_it_is_back() -> None:
    """All packets lost for 300 ms in the middle: done within 200 ms after."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network, slots=256)
    dead = 2000 * MICROSECOND
    back = dead + 300_000 * MICROSECOND

    def set_loss(loss: float) -> None:
        network.loss = loss

    network.at(dead, lambda: set_loss(1.0))
    network.at(back, lambda: set_loss(0.0))
    sources = integers(2, 256 * 8000, 3)
    outs = fold(fabric, sources)
    assert network.now > back, "the cut came too late to matter"
    assert (outs[0] == sum(sources)).all()
    clean = TerribleNetwork(random.Random(3))
    fold(make_fabric([0, 1], clean, slots=256), sources)
    assert network.now - back < clean.now - dead + 200_000 * MICROSECOND


def test_marks_shrink_the_window_and_their_absence_opens_it() -> None:
    """ECN on every result narrows what is in flight to a few packets; without marks the window fills again."""
    network = TerribleNetwork(random.Random(3), mark=1.0)
    fabric = make_fabric([0, 1], network, slots=256)

    def most_in_flight() -> int:
        sources = integers(2, 256 * 6000, 3)
        calls = [[Call(source, np.empty_like(source), 1.0, 1)] for source in sources]
        seen: list[int] = []
        start = network.now

        def look() -> None:
            standing = fabric.cores[0].standing(0, DATA)
            seen.append(standing.sent_ahead - standing.results)
            network.at(network.now + 100 * MICROSECOND, look)

        network.at(start + 2000 * MICROSECOND, look)
        for _ in run(fabric, calls):
            pass
        network._queue.clear()
        return max(seen[len(seen) // 2 : len(seen) * 9 // 10])

    assert most_in_flight() <= 8
    assert fabric.cores[0].standing(0, DATA).counters.marks > 1000
    network.mark = 0.0
    assert most_in_flight() > 100


@settings(max_examples=40)
@given(
    messages=st.integers(1, 4),
    packets=st.sampled_from([1, 3, 16, 170]),
    slots=st.sampled_from([4, 64, 1024]),
    size=st.integers(0, 30_000),
    loss=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_message_leaves_only_on_the_credit_of_an_earlier_ones_results(
    messages: int, packets: int, slots: int, size: int, loss: float, seed: int
) -> None:
    """NetReduce's flow control: nothing of message i + N before all results of message i; sums are exact as ever."""
    network = TerribleNetwork(random.Random(seed), loss=loss)
    fabric = make_fabric([[0, 1], [2, 3]], network, slots=slots, credits=Credits(messages, packets))
    most = 0

    def step(then: int) -> None:
        nonlocal most
        for core in fabric.cores:
            standing = core.standing(0, DATA)
            assert standing.sent_ahead <= (standing.results // packets + messages) * packets
            most = max(most, standing.sent_ahead - standing.results)
        go_on(then)

    go_on, network.step = network.step, step  # type: ignore[method-assign]
    sources = integers(4, size, seed)
    expected = np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)
    for out in fold(fabric, sources):
        assert (out == expected).all()
    assert most <= min(messages * packets, slots // 2)


def test_credits_are_said_as_messages_of_packets() -> None:
    """What cannot be is refused before anything is opened."""
    assert Credits.parse("2x170") == Credits(messages=2, packets=170)
    for wrong in ("", "2", "0x170", "2x0", "2x5000", "x", "-1x3"):
        with pytest.raises(ValueError, match="expected MESSAGESxPACKETS"):
            Credits.parse(wrong)


def test_what_the_kernel_refuses_is_sent_again_singly() -> None:
    """Super-packets refused on a path: their packets go again one by one, with the ICRC of single packets."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network)
    lib = native.library()
    refused = 0

    def refusing(core: Core) -> Callable[[int], Run | None]:
        honest = core.send

        def send(now: int) -> Run | None:
            nonlocal refused
            out = honest(now)
            while out is not None and len(out.packets()) > 1:
                refused += 1
                lib.nf_fold_no_runs(core.handle)
                lib.nf_fold_unsent(core.handle, ctypes.byref(core._run), 0)
                out = honest(now)
            return out

        return send

    for core in fabric.cores:
        core.send = refusing(core)  # type: ignore[method-assign, assignment]
    sources = integers(2, 256 * 100, 3)
    for out in fold(fabric, sources):
        assert (out == sum(sources)).all()
    assert refused == 2


def test_stripes_follow_the_weights() -> None:
    """Three trees of weight 1, 2 and 5 get an eighth, a quarter and five eighths of the blocks."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network, trees=3, weights=[1, 2, 5])
    sources = integers(2, 256 * 800, 3)
    outs = fold(fabric, sources)
    assert (outs[1] == sum(sources)).all()
    assert [fabric.cores[0].elements(t) for t in range(3)] == [100 * 256, 200 * 256, 500 * 256]


@pytest.mark.parametrize(
    ("first", "second", "field", "values"),
    [
        (np.zeros(1000, np.int32), np.zeros(2000, np.int32), "elements", (1000, 2000)),
        (np.zeros(1000, np.int32), np.zeros(1000, np.float32), "dtype", (0, 1)),
        (np.zeros(0, np.float32), np.zeros(5, np.float32), "elements", (0, 5)),
    ],
)
def test_ranks_that_disagree_all_learn_it(
    first: NDArray[Any], second: NDArray[Any], field: str, values: tuple[int, int]
) -> None:
    """Another size or dtype on one rank: every rank fails at once, and knows the least and the most of all ranks."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([[0, 1], [2]], network)
    sources = [first, second, first]
    calls = [[Call(source, np.empty_like(source), 1.0, 4)] for source in sources]
    for _ in run(fabric, calls, limit=SECOND):
        pass
    failures = [core.failure() for core in fabric.cores]
    assert all(failure.error for failure in failures)
    index = abi.FIELDS.index(field)
    told = [f for f in failures if f.error == abi.SIGNATURES_DIFFER]
    assert told
    for failure in told:
        assert (failure.low[index], failure.high[index]) == values


def test_another_operation_number_is_a_mismatch() -> None:
    """A rank that skipped an operation is found out by the next one."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network)
    sources = integers(2, 100, 1)
    calls = [[Call(source, np.empty_like(source), 1.0, 7 + rank)] for rank, source in enumerate(sources)]
    for _ in run(fabric, calls, limit=SECOND):
        pass
    for core in fabric.cores:
        assert core.failure().error in (abi.SIGNATURES_DIFFER, abi.HEADERS_DIFFER)


def lone_core(*, slots: int = 64) -> Core:
    """A core whose packets go nowhere."""

    def stream(qp: int) -> Stream:
        return Stream(peer="10.0.0.2", peer_qp=qp + 8, qp=qp, source_port=50001, psn=10, slots=slots)

    return Core("10.0.0.1", 2, [Tree(name="t", weight=1.0, data=stream(24), agreement=stream(40))])


def test_headers_of_another_message_are_reported_field_by_field() -> None:
    """A result with another RETH than one's own says which operation, offset and length came."""
    core = lone_core()
    source = np.zeros(256 * 3, np.int32)
    core.start(5, source, np.empty_like(source), 1.0, 0)
    core.send(0)
    run_ = core.send(0)
    assert run_ is not None
    packet = bytearray(run_.packets()[0])
    roce.BTH.pack_into(packet, 0, roce.Opcode.WRITE_FIRST, 0, roce.PKEY, 24, 10)
    roce.RETH.pack_into(packet, roce.BTH_BYTES, 6 << 32, 99, 4096)
    core.receive(bytes(packet), 1)
    failure = core.failure()
    assert failure.error == abi.HEADERS_DIFFER
    assert (failure.expected_address >> 32, failure.got_address >> 32) == (5, 6)
    assert (failure.expected_length, failure.got_length) == (3 * 1024, 4096)


@given(st.binary(max_size=1200), st.integers(1, 1200))
def test_hostile_bytes_change_nothing(data: bytes, segment: int) -> None:
    """Random bytes, cut anywhere, are no results: nothing crashes, nothing is taken in."""
    core = lone_core()
    source = np.zeros(256 * 3, np.int32)
    core.start(5, source, np.empty_like(source), 1.0, 0)
    while core.send(0):
        pass
    core.receive(data, 1, segment=segment)
    assert core.failure().error == 0
    assert core.standing(0, DATA).results == 0


def test_results_of_what_was_never_sent_are_dropped() -> None:
    """A well-formed packet beyond the window counts as a duplicate and touches no data."""
    core = lone_core(slots=4)
    source = np.zeros(256 * 50, np.int32)
    out = np.full_like(source, 77)
    core.start(5, source, out, 1.0, 0)
    run_ = None
    while got := core.send(0):
        run_ = got
    assert run_ is not None
    for psn in (12, 13, 9, (10 + (1 << 23)) & roce.PSN_MASK):
        packet = bytearray(run_.packets()[-1])
        roce.BTH.pack_into(packet, 0, roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY, 24, psn)
        core.receive(bytes(packet), 1)
    assert core.standing(0, DATA).counters.duplicates == 4
    assert (out == 77).all()


def test_layouts_name_each_rank_once() -> None:
    """The layouts of this file are sound."""
    for layout in LAYOUTS:
        assert count_ranks(layout) >= 1
