# SPDX-License-Identifier: Apache-2.0
"""A mesh within one process: ranks are threads, messages are copies, time is counted, and faults happen where asked
for.

For tests of collectives, the library's and a user's own:

    fabric = MemoryFabric(4, seed=7)
    results = fabric.run(lambda mesh: my_collective(mesh, ...))      # one thread a rank; values or exceptions

It is stricter than a network.  About half of the messages, as the seed decides, are copied only when somebody waits
for them, so that memory touched between post and wait is noticed.  Nothing takes wall-clock time: a timeout is raised
as soon as every rank waits and nothing can move.  Each rank has a clock of the alpha-beta model: a message leaves when
its sender's link is free, and has arrived after ``latency`` plus its bytes times ``seconds_per_byte``, when the
receiver's link is free.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, RankMismatch
from netfold.host.job_secret import draw
from netfold.host.mesh.mesh import DONE, IDLE, Call, Mesh, Pending, as_bytes, culprits, no_such_peer, ranks
from netfold.host.operation.arrays import Flat


class Killed(NetFoldError):
    """Raised in a rank that ``MemoryFabric.kill`` was told to kill."""


class _Message(Pending):
    """One end of a message, a posted send or receive; ``match`` is the other end once both are posted."""

    __slots__ = ("array", "call", "late", "match", "peer", "sends", "start", "tag", "timed")

    def __init__(self, peer: int, array: Flat, tag: int, call: Call, *, sends: bool) -> None:
        super().__init__()
        self.sends = sends
        self.peer = peer
        self.array = array
        self.tag = tag
        self.call = call
        self.late = False
        self.start = 0.0
        self.timed = False
        self.match: _Message | None = None


class _Posts:
    """The sends, or the receives, of one direction between two ranks that have no match yet, in the order posted within
    a call and tag."""

    def __init__(self) -> None:
        self._by_call: dict[Call, dict[int, deque[_Message]]] = {}

    def add(self, message: _Message) -> None:
        self._by_call.setdefault(message.call, {}).setdefault(message.tag, deque()).append(message)

    def take(self, other: _Message) -> _Message | None:
        """Removes and returns the match for the other end: the oldest of the same call and tag, or any of another call,
        which both ends then report as a mismatch."""
        for call, tags in self._by_call.items():
            tag = other.tag if call == other.call else next(iter(tags))
            if tag in tags:
                message = tags[tag].popleft()
                if not tags[tag]:
                    del tags[tag]
                if not tags:
                    del self._by_call[call]
                return message
        return None


class MemoryFabric:
    """The simulated network between ``size`` ranks.

    seed              decides which messages are copied late
    latency           seconds, alpha
    seconds_per_byte  beta, of each rank's link, each way
    """

    def __init__(self, size: int, *, seed: int = 0, latency: float = 0.0, seconds_per_byte: float = 0.0) -> None:
        self.size = size
        self.latency = latency
        self.seconds_per_byte = seconds_per_byte
        self.bytes: Counter[tuple[int, int]] = Counter()
        """Payload bytes sent, by (sender, receiver)."""
        self.messages: Counter[tuple[int, int]] = Counter()
        self.secret = draw()
        self.meshes = [MemoryMesh(self, rank) for rank in range(size)]
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._changed = [threading.Condition(self._lock) for _ in range(size)]
        """By rank: notified whenever something happens that the rank may wait for."""
        self._sends: defaultdict[tuple[int, int], _Posts] = defaultdict(_Posts)
        self._receives: defaultdict[tuple[int, int], _Posts] = defaultdict(_Posts)
        self._waiting: dict[int, list[_Message]] = {}
        """Waiting rank -> the messages any of which would end its wait."""
        self._gone: dict[int, str] = {}
        self._running: set[int] = set()
        self._kills: dict[int, int] = {}
        self._losses: dict[tuple[int, int], int] = {}
        self._stalled: dict[int, set[int]] = {}

    # ---- faults ----------------------------------------------------------------------------------------------------
    def kill(self, rank: int, *, after: int) -> None:
        """Lets a rank die at its ``after``-th post, counted from 0: it raises Killed, and its peers PeerLost."""
        self._kills[rank] = after

    def lose(self, sender: int, receiver: int, nth: int) -> None:
        """Loses the nth message (from 0) from ``sender`` to ``receiver`` and all later ones, as if the sender had
        stopped."""
        self._losses[sender, receiver] = nth

    # ---- ranks -----------------------------------------------------------------------------------------------------
    def run(self, work: Callable[[Mesh], Any], *, timeout: float = 60.0) -> list[Any]:
        """Runs ``work`` on every rank at once, a thread each.  Returns what each returned, or the exception that it
        raised."""
        results: list[Any] = [None] * self.size
        self._running = set(range(self.size))

        def one(rank: int) -> None:
            try:
                results[rank] = work(self.meshes[rank])
            except BaseException as error:
                results[rank] = error
            finally:
                with self._lock:
                    self._running.discard(rank)
                    self._look_for_stall()

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise TimeoutError(f"a rank computes for more than {timeout} s without waiting for anybody")
        return results

    @property
    def seconds(self) -> float:
        """Seconds on the clock of the slowest rank."""
        return max(mesh.clock for mesh in self.meshes)

    # ---- inside: all of it under the lock --------------------------------------------------------------------------
    def _post(self, mesh: MemoryMesh, message: _Message) -> None:
        with self._lock:
            mesh.posts += 1
            if mesh.posts > self._kills.get(mesh.rank, mesh.posts):
                self._lost(mesh.rank, f"rank {mesh.rank} was killed")
                raise Killed(f"rank {mesh.rank} was killed by the test")
            wire = (mesh.rank, message.peer) if message.sends else (message.peer, mesh.rank)
            if message.sends:
                nth = self.messages[wire]
                self.messages[wire] += 1
                self.bytes[wire] += message.array.nbytes
                message.start = max(mesh.clock, mesh.link_free)
                mesh.link_free = message.start + message.array.nbytes * self.seconds_per_byte
                message.late = self._rng.random() < 0.5
                if nth >= self._losses.get(wire, nth + 1):
                    return
            ours, theirs = (self._sends, self._receives) if message.sends else (self._receives, self._sends)
            other = theirs[wire].take(message)
            if other is None:
                ours[wire].add(message)
                return
            message.match, other.match = other, message
            send = message if message.sends else other
            if not send.late:
                self._copy(send)
            self._changed[message.peer].notify()

    def _lost(self, rank: int, why: str) -> None:
        """Records that a rank is gone and why, and wakes all waiting ranks."""
        self._gone.setdefault(rank, why)
        for changed in self._changed:
            changed.notify()

    def _copy(self, send: _Message) -> None:
        receive = send.match
        assert receive is not None
        if send.call == receive.call and send.array.nbytes == receive.array.nbytes:
            receive.array.view(np.uint8)[:] = send.array.view(np.uint8)
        send.finish()
        receive.finish()
        self._changed[send.peer].notify()
        self._changed[receive.peer].notify()

    def _wait(self, mesh: MemoryMesh, pending: Sequence[Pending], *, first: bool) -> None:
        wanted = [message for message in pending if isinstance(message, _Message)]
        if first and len(wanted) < len(pending):
            return  # one of them was empty, and so is done
        with self._lock:
            if first:
                while wanted and not sum(self._settled(mesh, message) for message in wanted):  # looks at every one
                    self._sleep(mesh, wanted, wanted)
                return
            # One after another: what comes later in the list is looked at once, however often the wire wakes us.
            for at, message in enumerate(wanted):
                while not self._settled(mesh, message):
                    self._sleep(mesh, [message], wanted[at:])

    def _settled(self, mesh: MemoryMesh, message: _Message) -> bool:
        """True if a message is done; copies it first if both ends are posted."""
        if message.match is not None and not message.done:
            self._copy(message if message.sends else message.match)
        if message.done and not message.timed:
            self._finish(mesh, message)
        return message.done

    def _sleep(self, mesh: MemoryMesh, wanted: list[_Message], awaited: Sequence[_Message]) -> None:
        """Waits until something changes for this rank.  Raises CollectiveTimeout or PeerLost where nothing ever will.

        wanted   the messages any of which would let it go on
        awaited  all messages that its caller waits for
        """
        if self._gone:
            for message in awaited:
                if message.match is None and message.peer in self._gone:
                    why = self._gone[message.peer]
                    self._lost(mesh.rank, why)
                    raise PeerLost(f"{mesh.me()}: {why}")
        self._waiting[mesh.rank] = wanted
        self._look_for_stall()
        if mesh.rank not in self._stalled:
            self._changed[mesh.rank].wait()
        del self._waiting[mesh.rank]
        if mesh.rank in self._stalled:
            guilty = ranks(culprits(self._stalled, mesh.rank))
            open_ = ", ".join(f"{m.array.nbytes} bytes with rank {m.peer}" for m in awaited if m.match is None)
            raise CollectiveTimeout(f"{mesh.me()}: nothing can move, for want of {guilty}; open: {open_}")

    def _finish(self, mesh: MemoryMesh, message: _Message) -> None:
        message.timed = True
        assert message.match is not None
        cost = message.array.nbytes * self.seconds_per_byte
        if message.sends:
            mesh.clock = max(mesh.clock, message.start + cost)
            return
        if message.call != message.match.call or message.array.nbytes != message.match.array.nbytes:
            raise RankMismatch(
                f"{mesh.me()}: rank {message.peer} sent {message.match.array.nbytes} bytes of {message.match.call}; "
                f"expected {message.array.nbytes} bytes of {message.call}"
            )
        mesh.clock = max(mesh.clock, mesh.book(message.match.start + self.latency, cost))

    def _look_for_stall(self) -> None:
        """Lets every waiting rank time out, where each running rank waits for something that no other can bring."""
        open_ = {rank: wanted for rank, wanted in self._waiting.items() if rank in self._running}
        if set(open_) != self._running or any(self._movable(m) for wanted in open_.values() for m in wanted):
            return
        for rank, wanted in open_.items():
            self._stalled[rank] = {message.peer for message in wanted}
            self._changed[rank].notify()

    def _movable(self, message: _Message) -> bool:
        return message.match is not None or message.peer in self._gone


class MemoryMesh(Mesh):
    """One rank's end of a MemoryFabric."""

    def __init__(self, fabric: MemoryFabric, rank: int) -> None:
        self.rank, self.size, self.secret = rank, fabric.size, fabric.secret
        self.clock = 0.0
        """Seconds on this rank's clock of the alpha-beta model."""
        self.link_free = 0.0
        self._busy: list[tuple[float, float]] = []
        """Intervals in which messages arrive, as (begin, end) in seconds, sorted, adjacent ones joined."""
        self.posts = 0
        self._fabric = fabric
        self._call = IDLE
        self._open: list[_Message] = []

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        return self._post(peer, data, tag, sends=True)

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        return self._post(peer, into, tag, sends=False)

    def _post(self, peer: int, array: Flat, tag: int, *, sends: bool) -> Pending:
        if not 0 <= peer < self.size or peer == self.rank:
            raise no_such_peer(self.rank, self.size, peer)
        if not as_bytes(array, "message of").nbytes:
            return DONE
        message = _Message(peer, array, tag, self._call, sends=sends)
        self._open.append(message)
        self._fabric._post(self, message)
        return message

    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        self._fabric._wait(self, pending, first=first)

    def flush(self) -> None:
        open_, self._open = self._open, []
        self.wait([message for message in open_ if not message.timed])

    def begin(self, call: Call) -> None:
        self._call = call

    def abort(self, error: BaseException) -> None:
        with self._fabric._lock:
            self._fabric._lost(self.rank, f"rank {self.rank} gave up: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

    def book(self, start: float, seconds: float) -> float:
        """Books this rank's link for ``seconds``, from ``start`` at the earliest.  Returns when the message has
        arrived.

        Messages are booked in the order in which they are waited for, not in which they came: each takes the first gap
        that is long enough.
        """
        if not seconds:
            return start
        at = bisect(self._busy, start, key=lambda busy: busy[1])
        while at < len(self._busy) and self._busy[at][0] < start + seconds:
            start = max(start, self._busy[at][1])
            at += 1
        begin, end = start, start + seconds
        if at and self._busy[at - 1][1] == begin:
            at -= 1
            begin = self._busy.pop(at)[0]
        if at < len(self._busy) and self._busy[at][0] == end:
            end = self._busy.pop(at)[1]
        self._busy.insert(at, (begin, end))
        return start + seconds

    def me(self) -> str:
        """Rank, size and current call, for the beginning of an error message."""
        return f"rank {self.rank} of {self.size}, {self._call}"
