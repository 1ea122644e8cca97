# SPDX-License-Identifier: Apache-2.0
"""Collectives of rows and barriers, by native cores over a hostile simulated network and the reference switches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.innet import abi
from netfold.host.innet.core import Core, Credits
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import RowsCollective, RowsRequest
from netfold.wire import roce
from support.hosts.rows import COLLECTIVES, NOTHING, Operation
from support.models.slot_model import (
    MICROSECOND,
    MILLISECOND,
    SECOND,
    Call,
    Fabric,
    Layout,
    TerribleNetwork,
    count_ranks,
    make_fabric,
    plan_anew,
    run,
)

LAYOUTS: list[list[Layout]] = [[0, 1], [[0, 1], [2]], [[[0, 1], [2]], [3, 4]]]
def carry(fabric: Fabric, operations: Sequence[Operation]) -> None:
    """Runs operations one after another on all ranks."""
    for _ in run(fabric, [[one.requests[rank] for one in operations] for rank in range(len(fabric.cores))]):
        pass
    assert [core.failure().error for core in fabric.cores] == [0] * len(fabric.cores)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_collective_is_exact_whatever_the_network_does(data: st.DataObject) -> None:
    """All kinds one after another, on the same streams: any dtype, uneven and empty rows, any root, one to three trees
    of one to three levels, both path MTUs, with and without presence, in jobs with RC queue pairs and without, losses,
    repeats and packets out of order."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    world = count_ranks(layout)
    loss = data.draw(st.sampled_from([0.0, 0.05]))
    seed = data.draw(st.integers(0, 99))
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, reorder=loss)
    fabric = make_fabric(
        layout, network, trees=data.draw(st.integers(1, 3)), path_mtu=data.draw(st.sampled_from([1024, 4096])),
        max_run=data.draw(st.sampled_from([1, 60])), presence=data.draw(st.booleans()),
        credits=data.draw(st.sampled_from([None, Credits(2, 5)])), message=data.draw(st.sampled_from([0, 0, 16])),
    )
    operations = [
        Operation(
            data.draw(st.sampled_from(COLLECTIVES)),
            data.draw(st.lists(st.sampled_from([0, 1, 256, 1000, 9000, 20_000]), min_size=world, max_size=world)),
            root=data.draw(st.integers(0, world - 1)), dtype=data.draw(st.sampled_from(["int32", "float32"])),
            op=data.draw(st.sampled_from(["sum", "max", "min"])), number=number, seed=seed + number,
            in_place=data.draw(st.booleans()),
        )
        for number in range(1, 5)
    ]
    carry(fabric, operations)
    for operation in operations:
        operation.check()


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_a_reduce_has_the_bits_of_an_allreduce(bits: LaneBits) -> None:
    """The root's own sum equals the switches' sum: for any floats, in any width of lanes."""
    rng = np.random.default_rng(5)
    sources = [(rng.standard_normal(5000) * np.exp2(rng.integers(-9, 9, 5000))).astype(np.float32) for _ in range(5)]
    fabric = make_fabric(LAYOUTS[2], TerribleNetwork(random.Random(1)))
    whole = [np.empty_like(source) for source in sources]
    rows = [slice(0, 5000 if rank == 3 else 0) for rank in range(5)]
    out = np.empty(5000, np.float32)
    coding, summed = Coding(bits), Reduction("sum", "float32")
    calls = [
        [Call(source, whole[rank], 1.0, 1, coding=coding),
         RowsRequest("reduce", source, out if rank == 3 else source, rows, 2, 3, 0, summed, coding)]
        for rank, source in enumerate(sources)
    ]
    for _ in run(fabric, calls):
        pass
    assert (out.view(np.uint32) == whole[3].view(np.uint32)).all()


def traffic(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], list[list[int]]]:
    """Bytes of UDP payload of each packet that each rank sends, and gets, from now on."""
    up: list[list[int]] = [[] for _ in fabric.cores]
    down: list[list[int]] = [[] for _ in fabric.cores]

    def watch(rank: int, core: Core) -> None:
        send, receive = core.send, core.receive

        def sends(now: int) -> Any:
            packets = send(now)
            up[rank] += [] if packets is None else map(len, packets.packets())
            return packets

        def gets(data: bytes, *args: Any, **named: Any) -> None:
            down[rank].append(len(data))
            receive(data, *args, **named)

        monkeypatch.setattr(core, "send", sends)
        monkeypatch.setattr(core, "receive", gets)

    for rank, core in enumerate(fabric.cores):
        watch(rank, core)
    return up, down


@pytest.mark.parametrize("kind", COLLECTIVES[:-1])
def test_each_link_carries_the_theorys_bytes_and_headers(
    kind: RowsCollective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of M bytes of N ranks, with N - 1 of N, up and down: a reduce_scatter N - 1 and 1, an all_gather 1 and N - 1; the
    root of a broadcast sends N and the others get them, of a reduce the other way round; the rest is presence."""
    world, row = 5, 40 * roce.LANES
    operation = Operation(kind, [row] * world, root=2)
    if kind in ("all_gather", "broadcast"):
        operation = Operation(kind, [row * 4] * world, root=2)
    fabric = make_fabric(LAYOUTS[2], TerribleNetwork(random.Random(1)), slots=512)
    up, down = traffic(fabric, monkeypatch)
    carry(fabric, [operation])
    operation.check()
    full, n = roce.data_packet_bytes(roce.Opcode.WRITE_MIDDLE), 0 if kind == "barrier" else 40 * world
    wanted = {  # packets with lanes, of n: up, down; of root and others where they differ
        "reduce_scatter": [(n - 40, 40)] * world,
        "all_gather": [(40, n - 40)] * world,
        "reduce": [(0, n) if rank == 2 else (n, 0) for rank in range(world)],
        "broadcast": [(n, 0) if rank == 2 else (0, n) for rank in range(world)],
        "barrier": [(0, 0)] * world,
    }[kind]
    for rank in range(world):
        for sizes, lanes in zip((up[rank], down[rank]), wanted[rank], strict=True):
            signature = full + roce.RETH_BYTES
            assert len(sizes) == n + 1
            assert sum(size >= full for size in sizes) == lanes + 1
            assert sum(sizes) <= signature + lanes * full + roce.RETH_BYTES + (n - lanes) * roce.PRESENCE_BYTES


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_beside_rc_queue_pairs_every_packet_has_lanes(kind: RowsCollective, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NIC knows no presence: who has nothing to contribute sends zeros, and each packet goes up and down once."""
    operation = Operation(kind, [4000] * 5, root=2)
    fabric = make_fabric(LAYOUTS[2], TerribleNetwork(random.Random(1)), message=16)
    up, down = traffic(fabric, monkeypatch)
    carry(fabric, [operation])
    operation.check()
    for sizes in (*up, *down):
        assert set(sizes) == {roce.data_packet_bytes(roce.Opcode.SEND_MIDDLE)}
        assert len(sizes) == len(up[0])


def test_a_short_broadcast_or_reduce_takes_each_rank_one_run_and_one_round_trip() -> None:
    """Data leaves with the signature, and so does presence: 4 KB are a barrier with a packet more.  So do floats whose
    scales can be guessed."""
    fabric = make_fabric([[0, 1], [2, 3]], TerribleNetwork(random.Random(5)), path_mtu=4096)
    runs = [0] * 4

    def carried(kind: RowsCollective, counts: list[int], dtype: str, number: int) -> int:
        """Nanoseconds of such an operation; what leaves is counted."""
        before, begin = runs[:], fabric.network.now
        carry(fabric, [Operation(kind, counts, root=1, dtype=dtype, number=number)])
        assert runs == [n + 1 for n in before], f"{kind} of {dtype}"
        return fabric.network.now - begin

    def count(rank: int, core: Core) -> None:
        send = core.send

        def sends(now: int) -> Any:
            run = send(now)
            runs[rank] += run is not None
            return run

        core.send = sends  # type: ignore[method-assign]

    carry(fabric, [Operation("reduce", [256] * 4, root=1, dtype="float32")])  # scales are learned
    for rank, core in enumerate(fabric.cores):
        count(rank, core)
    barrier = carried("barrier", [0] * 4, "int32", 2)
    asked: list[tuple[RowsCollective, int, str]] = [
        ("broadcast", 1024, "int32"), ("reduce", 256, "int32"), ("reduce", 256, "float32"),
    ]
    for number, (kind, each, dtype) in enumerate(asked, 3):
        taken = carried(kind, [each] * 4, dtype, number)
        assert taken < 1.5 * barrier, f"{kind} of {dtype}: {taken} ns, a barrier {barrier}"


def mismatches() -> list[tuple[Operation | None, Operation | None, str]]:
    """The operation of some ranks, that of the others (None: an allreduce), and the words that the error must have."""
    kinds: list[RowsCollective | None] = [*COLLECTIVES, None]
    made: list[tuple[Operation | None, Operation | None, str]] = []
    for first, second in combinations(kinds, 2):
        counts = [3000] * 3
        made.append((Operation(first, counts) if first else None, Operation(second, counts) if second else None,
                     "collective"))
    for kind in ("reduce", "broadcast"):
        made.append((Operation(kind, [900] * 3, root=0), Operation(kind, [900] * 3, root=1), "root"))  # type: ignore[arg-type]
    for kind in ("reduce_scatter", "all_gather"):
        made.append((Operation(kind, [3, 2, 4]), Operation(kind, [2, 3, 4]), "digest of rows"))  # type: ignore[arg-type]
    made.append((Operation("broadcast", [9, 9, 9]), Operation("broadcast", [9, 9, 8]), "elements"))
    made.append((Operation("reduce", [9] * 3), Operation("reduce", [9] * 3, op="max"), "operation"))
    made.append((Operation("barrier", [0] * 3), Operation("barrier", [0] * 3, number=2), "operation number"))
    return made


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_ranks_that_call_different_collectives_all_learn_it_by_name(loss: float) -> None:
    """Another kind, root, number of rows, of elements, or reduction on one rank: every rank's operation fails, and says
    in what the ranks differ."""
    for first, second, field in mismatches():
        network = TerribleNetwork(random.Random(3), loss=loss)
        fabric = make_fabric([[0, 1], [2]], network)
        plain = np.zeros(9000, np.int32)
        calls = [
            [Call(plain, np.empty_like(plain), 1.0, 1) if one is None else one.requests[rank]]
            for rank, one in enumerate([first, second, first])
        ]
        for _ in run(fabric, calls, limit=5 * SECOND):
            pass
        index = abi.FIELDS.index(field)
        for core in fabric.cores:
            failure = core.failure()
            assert failure.error == abi.SIGNATURES_DIFFER, f"{first and first.requests[0]}, {second}: {field}"
            assert failure.low[index] != failure.high[index]


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_trees_planned_anew_in_the_middle_change_nothing(kind: RowsCollective, loss: float) -> None:
    """The switches lose all they hold, whenever that is, with two operations of a kind one after another, in place:
    every rank ends both with the same result."""
    for seed in range(8):
        network = TerribleNetwork(random.Random(seed), loss=loss, packet_time=4 * MICROSECOND)
        fabric = make_fabric(LAYOUTS[1], network, trees=2, slots=16)
        operations = [
            Operation(kind, [5000, 12_000, 1], root=seed % 3, dtype="float32", number=n, seed=n, in_place=True)
            for n in (1, 2)
        ]
        plan_anew(fabric, network, (1 + seed) * MILLISECOND // 6, 2, again=1)
        carry(fabric, operations)
        for operation in operations:
            operation.check()


def test_presence_is_never_taken_for_a_result() -> None:
    """A rank that wants lanes drops an acknowledgement without them, and asks again; one that is content takes it."""
    operation = Operation("all_gather", [2000, 2000])
    fabric = make_fabric([0, 1], TerribleNetwork(random.Random(1)))
    switch = fabric.switches[0]
    honest = switch.take
    lies = []

    def take(sender: Any, packet: Any) -> Any:
        out = honest(sender, packet)
        if len(lies) < 3:
            for at, (target, answer) in enumerate(out):
                if target != "parent" and getattr(answer, "lanes", NOTHING).size:
                    out[at] = (target, answer.without_lanes())
                    lies.append(answer)
        return out

    switch.take = take  # type: ignore[method-assign]
    carry(fabric, [operation])
    operation.check()
    assert len(lies) >= 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": [slice(0, 9), slice(9, 11)]}, "rows within the tensor"),
        ({"root": 2}, "root below the number of ranks"),
        ({"coding": Coding(saturate=True)}, "saturation"),
        ({"reduction": None}, "bytes, and nothing else"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_leaves(change: dict[str, Any], why: str) -> None:
    """Rows beyond the tensor, a root that does not exist and the like: an error that says what was expected."""
    fabric = make_fabric([0, 1], TerribleNetwork(random.Random(1)))
    data = np.zeros(10, np.int32)
    asked: dict[str, Any] = {
        "collective": "reduce", "source": data, "out": data, "rows": [slice(0, 10), slice(10, 10)], "number": 1,
        "reduction": Reduction("sum", "int32"),
    } | change
    with pytest.raises(ValueError, match=why):
        fabric.cores[0].start_rows(RowsRequest(**asked), 0, 0)


def test_an_exchange_fills_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduce_scatter and an all_gather of M bytes each, together: M up and M down, of N ranks, and presence for the
    rest; one signature."""
    world, packets = 5, 40
    operation = Operation("reduce_scatter", [packets * roce.LANES] * world)
    moved = Operation("all_gather", [packets * roce.PATH_MTU] * world)
    fabric = make_fabric(LAYOUTS[2], TerribleNetwork(random.Random(1)), slots=512)
    operation.requests = [
        msgspec.structs.replace(one, collective="exchange", gathered=other.out, gathered_rows=other.rows)
        for one, other in zip(operation.requests, moved.requests, strict=True)
    ]
    up, down = traffic(fabric, monkeypatch)
    carry(fabric, [operation])
    operation.check()
    moved.check()
    full = roce.data_packet_bytes(roce.Opcode.WRITE_MIDDLE)
    for sizes in (*up, *down):
        assert sum(size >= full for size in sizes) == packets * world + 1
        assert len(sizes) == 2 * packets * world + 1
