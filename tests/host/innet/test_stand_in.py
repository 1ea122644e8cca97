# SPDX-License-Identifier: Apache-2.0
"""A rank that stands in for switches that are gone: all ranks end with the bits that the switches would have made,
whoever had finished."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.innet import native
from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Core
from netfold.host.innet.packet_link import AGAIN, DONE
from netfold.host.innet.slot_switch import Nak, Packet, SlotSwitch, parse
from netfold.host.innet.stand_in import MAX_RUN, RUN, Broken, RunBuffer, StandIn, connect
from netfold.host.innet.stand_in_link import StandInLink
from netfold.host.job_secret import derive, draw
from netfold.host.mesh import unproven
from netfold.host.mesh.handshake import HandshakeRefused, Identity
from netfold.host.mesh.sockets import listen
from netfold.host.native.library import Origin
from netfold.host.operation.request import RowsCollective
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree
from support.hosts.rows import COLLECTIVES, Operation
from support.models.slot_model import MILLISECOND, as_result

SLOTS = 16
KINDS = (AGREEMENT, DATA)
RESULT = Origin.of("10.0.0.9", 50000, roce.RESULT_TTL)
SECONDS = 30.0
"""Seconds within which every rank must be done; nothing here takes one."""
Tensor = NDArray[Any]


def trees(rank: int, psn: dict[int, int]) -> list[RankTree]:
    """A rank's only tree; ``psn``: where its streams begin, by kind."""

    def stream(kind: int) -> RankStream:
        number = (100 * (kind + 1) + rank) * roce.QUEUE_PAIRS
        return RankStream("10.0.0.9", number, number, 50000, psn[kind], SLOTS, "10.0.0.9", 50000)

    return [RankTree("t", 1.0, stream(DATA), stream(AGREEMENT))]


@dataclass
class Fold:
    """Some ranks' cores, and a switch between them that loses results.  Each makes two operations."""

    world: int
    seed: int
    in_place: bool
    sources: list[list[Tensor]]
    """By operation and rank."""
    lost: list[float]
    """Probability that a result to a rank is lost, by rank."""
    cores: list[Core] = field(default_factory=list)
    outs: list[list[Tensor]] = field(default_factory=list)
    results: list[dict[int, Tensor]] = field(default_factory=list)
    """The results of each rank, by operation."""
    now: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.first = dict.fromkeys(KINDS, (1 << 24) - 5)
        self.cores = [Core("10.0.0.1", self.world, trees(rank, self.first)) for rank in range(self.world)]
        self.switch = {kind: SlotSwitch(self.world, SLOTS, root=True) for kind in KINDS}
        self.outs = [[source.copy() if self.in_place else np.empty_like(source) for source in operation]
                     for operation in self.sources]
        self.results = [{} for _ in range(self.world)]
        self.at = [-1] * self.world

    def start(self, rank: int, number: int) -> None:
        """A rank begins an operation."""
        self.at[rank] = number
        out = self.outs[number][rank]
        source = out if self.in_place else self.sources[number][rank].copy()
        self.cores[rank].start(number + 1, source, out, 1.0, self.now)

    def finish(self, rank: int) -> None:
        """A rank returns from its operation, and its caller overwrites the arrays."""
        out = self.outs[self.at[rank]][rank]
        self.results[rank][self.at[rank]] = out.copy()
        out[...] = -1

    def step(self) -> None:
        """Lets every rank send what it can, and the switch answer."""
        self.now += 20 * MILLISECOND
        for rank, core in enumerate(self.cores):
            core.tick(self.now)
            while run := core.send(self.now):
                for data in run.packets():
                    kind = DATA if roce.BTH.unpack_from(data)[3] >= 200 * roce.QUEUE_PAIRS else AGREEMENT
                    for target, packet in self.switch[kind].take(rank, parse(data)):
                        self._answer(kind, target, packet)

    def _answer(self, kind: int, target: Any, packet: Packet | Nak) -> None:
        for rank in range(self.world) if target == "all" else [target]:
            if self.rng.random() >= self.lost[rank]:
                stream = trees(rank, self.first)[0]
                qp = (stream.data if kind == DATA else stream.agreement).qp
                core = self.cores[rank]
                core.receive(as_result(packet.build(qp), RESULT, core.address), self.now, RESULT)

    def lose_trees(self) -> None:
        """The switch is gone; all ranks begin again where the slowest of them is."""
        for kind in KINDS:
            named = [core.missing() for core in self.cores]
            lacking = [next(psn for qp, psn in missing.items() if (qp >= 200 * roce.QUEUE_PAIRS) == (kind == DATA))
                       for missing in named]
            self.first[kind] = min(lacking, key=lambda psn: roce.psn_age(psn, lacking[0]))
        for rank, core in enumerate(self.cores):
            core.resume(trees(rank, self.first), native.library().nf_now())


def over_stand_in(fold: Fold, before_last: int) -> None:
    """Lets all ranks end both operations over rank 0, each on a thread of its own; ``before_last``: the last operation
    that some rank had begun."""
    key = derive(draw(), "test")
    identities = [Identity(rank, fold.world, 1, key) for rank in range(fold.world)]
    listener = listen("127.0.0.1")
    address = "{}:{}".format(*listener.getsockname())
    near, own = socket.socketpair()
    stand_in = StandIn(listener, identities[0], range(fold.world), [SLOTS, SLOTS], near)
    deadline = native.library().nf_now() + int(SECONDS * 1e9)
    everybody = threading.Barrier(fold.world)

    def rank(number: int) -> None:
        core = fold.cores[number]
        sock = own if number == 0 else connect(address, identities[number], 0, SECONDS)
        tree = trees(number, fold.first)[0]
        link = StandInLink(core, sock, [tree.agreement, tree.data])
        assert link.run(deadline) == DONE
        while True:
            if fold.at[number] not in fold.results[number]:
                fold.finish(number)
            if fold.at[number] == before_last:
                break
            fold.now = native.library().nf_now()
            fold.start(number, fold.at[number] + 1)
            assert link.run(deadline) == DONE
        everybody.wait(SECONDS)  # a rank stays until all are done, as one that leaves does
        link.close()

    with ThreadPoolExecutor(fold.world) as pool:
        list(pool.map(rank, range(fold.world)))
    stand_in.close()


def undisturbed(world: int, sources: list[list[Tensor]]) -> list[Tensor]:
    """The results of both operations from the switch alone."""
    fold = Fold(world, 0, False, sources, [0.0] * world)
    for number in range(len(sources)):
        for rank in range(world):
            fold.start(rank, number)
        while not all(core.finished() for core in fold.cores):
            fold.step()
        for rank in range(world):
            fold.finish(rank)
    return [fold.results[0][number] for number in range(len(sources))]


@settings(deadline=None, max_examples=40)
@given(
    world=st.integers(2, 4), seed=st.integers(0, 2**32), in_place=st.booleans(), floats=st.booleans(),
    size=st.integers(0, 256 * 60), lost=st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0]), min_size=4, max_size=4),
    steps=st.integers(0, 30), hasty=st.booleans(),
)
def test_all_ranks_end_with_the_switches_bits_whoever_had_finished(
    world: int, seed: int, in_place: bool, floats: bool, size: int, lost: list[float], steps: int, hasty: bool
) -> None:
    """Trees are lost at any moment: some ranks have returned, and overwritten their arrays, or begun the next
    operation, while others lack results; everybody ends what anybody has begun, with the bits that the switch alone
    would make."""
    rng = np.random.default_rng(seed)
    sources = [[rng.standard_normal(size).astype(np.float32) if floats
                else rng.integers(-(2**31), 2**31, size).astype(np.int32) for _ in range(world)] for _ in range(2)]
    expected = undisturbed(world, sources)
    fold = Fold(world, seed, in_place, sources, lost[:world])
    for rank in range(world):
        fold.start(rank, 0)
    for _ in range(steps):
        fold.step()
        for rank, core in enumerate(fold.cores):
            if core.finished() and fold.at[rank] not in fold.results[rank]:
                fold.finish(rank)
                if hasty and fold.at[rank] == 0:
                    fold.start(rank, 1)
    begun = max(fold.at)
    fold.lose_trees()
    over_stand_in(fold, begun)
    for results in fold.results:
        assert sorted(results) == list(range(begun + 1))
        for number, found in results.items():
            assert found.tobytes() == expected[number].tobytes()


@dataclass
class RowsFold(Fold):
    """The same with two collectives of rows."""

    operations: list[Operation] = field(default_factory=list)

    def start(self, rank: int, number: int) -> None:
        self.at[rank] = number
        self.cores[rank].start_rows(self.operations[number].requests[rank], rank, self.now)

    def finish(self, rank: int) -> None:
        operation = self.operations[self.at[rank]]
        outs = operation.outs[rank :: self.world]
        self.results[rank][self.at[rank]] = np.concatenate([out.view(np.uint8) for out in outs] or [np.empty(0)])
        for out in outs:
            out[...] = 55


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_rows_end_over_a_stand_in_whoever_had_finished(kind: RowsCollective) -> None:
    """Trees are lost in the middle of each kind of collective, when some ranks have returned, overwritten their arrays,
    and begun the next one: everybody ends both, with the right rows."""
    for seed in range(8):
        rng = random.Random(seed)
        lost = [rng.choice([0.0, 0.3, 0.9]) for _ in range(3)]
        made = [Operation(kind, [4000, 0, 9000], root=seed % 3, number=n + 1, seed=seed + n, in_place=True)
                for n in range(2)]
        expected = [[np.concatenate([rows.view(np.uint8) for rows in one.expected[rank::3]] or [np.empty(0)])
                     for one in made] for rank in range(3)]
        fold = RowsFold(3, seed, True, [[], []], lost, operations=made)
        for rank in range(3):
            fold.start(rank, 0)
        for _ in range(rng.randrange(20)):
            fold.step()
            for rank, core in enumerate(fold.cores):
                if core.finished() and fold.at[rank] not in fold.results[rank]:
                    fold.finish(rank)
                    if fold.at[rank] == 0:
                        fold.start(rank, 1)
        begun = max(fold.at)
        fold.lose_trees()
        over_stand_in(fold, begun)
        for rank, results in enumerate(fold.results):
            assert sorted(results) == list(range(begun + 1))
            for number, found in results.items():
                assert found.tobytes() == expected[rank][number].tobytes(), (seed, rank, number)


def test_a_stranger_does_not_fold() -> None:
    """A peer that does not know the job's secret is refused, a rank is admitted once, and others fold meanwhile."""
    key = derive(draw(), "test")
    me, other = (Identity(rank, 3, 1, key) for rank in range(2))
    listener = listen("127.0.0.1")
    address = "{}:{}".format(*listener.getsockname())
    near, own = socket.socketpair()
    stand_in = StandIn(listener, me, [0, 1], [SLOTS, SLOTS], near)
    silent = [socket.create_connection(listener.getsockname(), timeout=SECONDS) for _ in range(80)]
    with pytest.raises(HandshakeRefused, match="secret"):
        connect(address, Identity(1, 3, 1, derive(draw(), "test")), 0, SECONDS)
    with connect(address, other, 0, SECONDS):
        with pytest.raises(HandshakeRefused, match="already"):
            connect(address, other, 0, SECONDS)
        with pytest.raises(HandshakeRefused, match="already"):
            connect(address, other_rank(other, rank=2), 0, SECONDS)
    for sock in [*silent, own]:
        sock.close()
    stand_in.close()


def test_a_flood_of_strangers_does_not_end_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who is closed for too many others, and says something in the same moment, is not heard any more; a rank that
    comes then is let in."""
    me = Identity(0, 2, 1, b"k" * 32)
    most = me.world + unproven.SPARE
    full, go_on = threading.Event(), threading.Event()

    class Gated(selectors.DefaultSelector):
        """Returns what is ready when ``go_on`` is set."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if len(self.get_map()) == most + 3:  # beside the listener, the rank's own end, and what ends the thread
                full.set()
                super().select(timeout)
                assert go_on.wait(10)
            return super().select(timeout)

    monkeypatch.setattr("netfold.host.innet.stand_in.selectors.DefaultSelector", Gated)
    listener = listen("127.0.0.1")
    address = listener.getsockname()
    own, near = socket.socketpair()
    stand_in = StandIn(listener, me, [0, 1], [16], near)
    strangers = [socket.create_connection(address) for _ in range(most)]
    try:
        assert full.wait(10)
        strangers.append(socket.create_connection(address))
        strangers[0].close()
        go_on.set()
        connect("{}:{}".format(*address), Identity(1, 2, 1, b"k" * 32), 0, 10.0).close()
    finally:
        go_on.set()
        for sock in [own, *strangers]:
            sock.close()
        stand_in.close()


def other_rank(identity: Identity, **changes: Any) -> Identity:
    """Another rank that knows the same key."""
    return Identity(**{"rank": identity.rank, "world": identity.world, "epoch": identity.epoch, "key": identity.key,
                       **changes})


@pytest.mark.parametrize(("length", "segment"), [(0, 1), (MAX_RUN + 1, 1), (1, 0)])
def test_a_run_of_no_packets_or_without_end_breaks_a_connection(length: int, segment: int) -> None:
    """At its head, before its bytes are waited for; the longest run is one."""
    with pytest.raises(Broken, match=f"a run of {length} bytes in packets of {segment}"):
        RunBuffer().add(RUN.pack(length, segment, 0))
    assert RunBuffer().add(RUN.pack(MAX_RUN, 1, 7) + bytes(MAX_RUN)) == [(1, 7, bytes(MAX_RUN))]


def test_a_stand_in_that_dies_is_named_to_the_others() -> None:
    """The connection ends with an error instead of a silence."""
    core = Core("10.0.0.1", 2, trees(0, dict.fromkeys(KINDS, 5)))
    source = np.zeros(1000, np.int32)
    core.start(1, source, source, 1.0, native.library().nf_now())
    near, own = socket.socketpair()
    tree = trees(0, dict.fromkeys(KINDS, 5))[0]
    link = StandInLink(core, own, [tree.agreement, tree.data])
    assert link.run(0) == AGAIN
    near.close()
    with pytest.raises((Broken, OSError)):
        link.run(native.library().nf_now() + int(SECONDS * 1e9))
    link.close()
