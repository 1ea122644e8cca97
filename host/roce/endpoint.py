# SPDX-License-Identifier: Apache-2.0
"""All queue pairs of one UDP port, by native/rc*.c.

``Endpoint`` is sans-I/O: packets in, packets out, next deadline.  ``EndpointIo`` runs one over real sockets.
"""

from __future__ import annotations

import ctypes as C
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from netfold.host.native.library import RUN_PACKETS, Origin, Run, dotted, number, senders_table
from netfold.host.roce.native import (
    EVENTS,
    NO_MEMORY,
    POLLIN,
    EndpointEvent,
    PairPlan,
    Pollfd,
    QueuePairState,
    RoceRunStruct,
    RunOutcome,
    library,
)
from netfold.wire import roce


@dataclass(frozen=True)
class Connection:
    """One end of a reliable connection, in the parameters that both ends must agree on."""

    peer: str
    """IPv4 address of the other end."""
    peer_qp: int
    qp: int
    source_port: int
    """UDP source port of outgoing packets, by which switches choose their path.  The other end need not know it."""
    psn: int
    """First PSN that this end sends."""
    peer_psn: int
    """First PSN that this end expects."""
    peer_port: int = roce.UDP_PORT
    """UDP port at which the other end receives."""


class Endpoint:
    """All queue pairs of one UDP port, without sockets: times are nanoseconds that the caller passes.

    port      of the address, at which packets arrive
    path_mtu  payload bytes of a packet: 256, 512, 1024, 2048 or 4096
    window    packets in flight on a queue pair, a power of two; the same at both ends
    max_run   packets of a super-packet, 1 .. 60
    reorder   packets sent later that may overtake one before it counts as lost
    """

    def __init__(
        self, address: str, *, port: int = roce.UDP_PORT, path_mtu: int = 1024, window: int = 512,
        max_run: int = RUN_PACKETS, reorder: int = 3,
    ) -> None:
        self._lib = library()
        self.handle = self._lib.nf_rc_open(number(address), port, path_mtu, window, max_run, reorder)
        if not self.handle:
            raise ValueError(
                f"path_mtu={path_mtu}, window={window}, max_run={max_run}, reorder={reorder}: expected an MTU of 256, "
                f"512, 1024, 2048 or 4096, a power of two up to 2^20, 1 .. {RUN_PACKETS}, and 1 or more"
            )
        self._run = RoceRunStruct()

    def connect(self, pair: Connection) -> int:
        """Makes a queue pair.  Returns its index."""
        plan = PairPlan(
            number(pair.peer), pair.peer_qp, pair.qp, pair.peer_port, pair.source_port, pair.psn, pair.peer_psn
        )
        index = int(self._lib.nf_rc_connect(self.handle, C.byref(plan)))
        if index == NO_MEMORY:
            raise MemoryError("no memory for a queue pair")
        if index < 0:
            raise ValueError(f"{pair}: expected queue pair numbers 1 .. 2^24 - 1, ours used once, and a UDP port")
        return index

    def limit_open(self, most: int) -> None:
        """Sets how many queue pairs, 1 or more, are open at once, that is have memory for a window.  When another one
        opens, those idle for longest are closed; more are open only while all of them are busy."""
        self._lib.nf_rc_limit_open(self.handle, most)

    def open_now(self) -> int:
        """Number of queue pairs that are open now: what ``limit_open`` bounds, so that tests can hold the count to the
        states of all queue pairs."""
        return int(self._lib.nf_rc_open_now(self.handle))

    def open_most(self) -> int:
        """Largest number of queue pairs that were open at once so far."""
        return int(self._lib.nf_rc_open_most(self.handle))

    def move(self, pair: int, source_port: int, now: int, *, lost: bool = False) -> None:
        """Sends the queue pair's packets from this source port from now on, and so perhaps over another path.
        ``lost``: the path before is dead, and the peer is asked at once which packets in flight it has."""
        if not self._lib.nf_rc_move(self.handle, pair, source_port, lost, now):
            raise MemoryError(f"move(pair={pair}): no such queue pair, or no memory for its path")

    def set_group(self, pair: int, group: int) -> None:
        """Puts the queue pair's peer into a group; peers of one group are reached over the same paths.  Without this
        each is a group of its own."""
        if not self._lib.nf_rc_set_group(self.handle, pair, group):
            raise MemoryError(f"set_group(pair={pair}): no such queue pair, or no memory for its path")

    def ports(self, ports: Sequence[int]) -> None:
        """Sets the source ports that packets can be sent from; acknowledgements of packets from one of them are sent
        from it, too."""
        if not ports or not self._lib.nf_rc_ports(self.handle, (C.c_uint16 * len(ports))(*ports), len(ports)):
            raise ValueError(f"ports={list(ports)}: expected at least one, or there is no memory")

    def use_reps(self, pair: int, seed: int) -> None:
        """Lets each data packet take the one of ``ports`` that REPS chooses (native/reps.h)."""
        if not self._lib.nf_rc_use_reps(self.handle, pair, seed):
            raise ValueError(f"use_reps(pair={pair}): no such queue pair, no ports, or no memory")

    def register(self, address: int, length: int, *, fill: bool = False) -> int:
        """Allows peers to write into this memory.  Returns its key; the first keys are 0, 1, 2 and so on.

        fill  there is one event ARRIVED, once whole messages have arrived that cover the memory once, and the key is
              revoked with it; messages that overlap break the queue pair.  Else every message has an event
        """
        return _key(self._lib.nf_rc_register(self.handle, address, length, fill))

    def unfilled(self, key: int) -> int:
        """Bytes that memory registered with ``fill`` still lacks."""
        return int(self._lib.nf_rc_unfilled(self.handle, key))

    def deregister(self, key: int) -> None:
        """Revokes a key: a peer that still writes there breaks the connection."""
        self._lib.nf_rc_deregister(self.handle, key)

    def write(self, pair: int, address: int, length: int, *, key: int, offset: int, id: int) -> bool:
        """Posts an RDMA WRITE of memory that stays in use until the event SENT.  Returns False where the queue pair is
        broken."""
        return bool(self._lib.nf_rc_write(self.handle, pair, address, length, key, offset, id))

    def send(self, now: int) -> Run | None:
        """The next run of packets to send, or None where there is nothing to send."""
        run = self._run
        if not self._lib.nf_rc_send(self.handle, now, C.byref(run)):
            return None
        return Run(C.string_at(run.bytes, run.length), run.segment, run.source_port, dotted(run.destination),
                   run.destination_port)

    def receive(self, data: bytes, now: int, origin: Origin, *, segment: int = 0, marked: bool = False) -> None:
        """Takes received UDP payloads, split every ``segment`` bytes (0: one packet); what came from another address
        than the queue pair's peer, or with a wrong ICRC, is only counted."""
        size = segment or max(1, len(data))
        self._lib.nf_rc_receive(self.handle, data, len(data), size, C.byref(origin), marked, now)

    def tick(self, now: int) -> None:
        """Runs the retransmission timers that are due at ``now``."""
        self._lib.nf_rc_tick(self.handle, now)

    def deadline(self) -> int:
        """Time in nanoseconds at which ``tick`` is due next; NEVER where nothing is in flight."""
        return int(self._lib.nf_rc_deadline(self.handle))

    def events(self) -> Iterator[EndpointEvent]:
        """Yields the events since the last call, oldest first."""
        while True:
            event = EndpointEvent()
            if not self._lib.nf_rc_event_next(self.handle, C.byref(event)):
                return
            yield event

    def progress(self) -> int:
        """A count that grows with every new packet and with every one acknowledged."""
        return int(self._lib.nf_rc_progress(self.handle))

    def foreign(self) -> int:
        """Number of packets received that are for none of these queue pairs, or not RoCEv2 as we know it."""
        return int(self._lib.nf_rc_foreign(self.handle))

    def refused(self) -> tuple[int, Origin]:
        """Number of packets received for these queue pairs from another address than the peer's, and the origin of the
        last one."""
        last = Origin()
        return int(self._lib.nf_rc_refused(self.handle, C.byref(last))), last

    def corrupt(self) -> int:
        """Number of packets of peers that were dropped since their ICRC is wrong."""
        return int(self._lib.nf_rc_corrupt(self.handle))

    def reset_stalls(self) -> None:
        """Resets ``QueuePairState.stalled`` of all queue pairs."""
        self._lib.nf_rc_reset_stalls(self.handle)

    def state(self, pair: int) -> QueuePairState:
        """The state of one queue pair."""
        state = QueuePairState()
        if not self._lib.nf_rc_state_of(self.handle, pair, C.byref(state)):
            raise IndexError(f"queue pair {pair}: there is none")
        return state

    def close(self) -> None:
        """Frees the endpoint; safe to call twice."""
        if self.handle:
            self._lib.nf_rc_close(self.handle)
            self.handle = None

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.close()


def _key(key: int) -> int:
    """The key that the library returned.  Raises MemoryError where it returned none."""
    if key < 0:
        raise MemoryError("more than 65536 receives are posted, or there is no memory")
    return key


class Locked:
    """A context in which an endpoint is locked: its thread does not touch it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        library().nf_rc_io_lock(self._handle)

    def __exit__(self, *_: object) -> None:
        library().nf_rc_io_unlock(self._handle)


class EndpointIo:
    """An endpoint over sockets: one that receives, and one that sends for each UDP source port.

    A thread acknowledges and retransmits while nobody is in ``run``; so the endpoint is touched only under
    ``locked()``, and by ``write`` and ``register`` of this class.

    others  file descriptors that may become readable meanwhile, which ends ``run``
    """

    def __init__(
        self, endpoint: Endpoint, receiver: socket.socket, senders: Mapping[int, socket.socket],
        others: Sequence[int] = (),
    ) -> None:
        self._lib = library()
        self.sockets = [receiver, *senders.values()]  # kept alive as long as their numbers are in use
        self._handle = self._lib.nf_rc_io_open(endpoint.handle, receiver.fileno(), len(senders), senders_table(senders))
        if not self._handle:
            raise MemoryError("no memory for receive buffers, or no thread")
        self._others = (Pollfd * len(others))(*[Pollfd(fd, POLLIN, 0) for fd in others])
        self._events = (EndpointEvent * EVENTS)()
        self._outcome = RunOutcome()
        self._run_arguments = self._events, EVENTS, C.byref(self._outcome)
        self.progress = 0
        """``Endpoint.progress`` at the end of the last ``run``."""

    def locked(self) -> Locked:
        """A context in which the endpoint stands still.  It does not nest."""
        return Locked(self._handle)

    def write(self, pair: int, address: int, length: int, *, key: int, offset: int, id: int) -> bool:
        """See ``Endpoint.write``; ``id`` UNTOLD: there is no event SENT."""
        return bool(self._lib.nf_rc_io_write(self._handle, pair, address, length, key, offset, id))

    def register(self, address: int, length: int, *, fill: bool = False) -> int:
        """See ``Endpoint.register``."""
        return _key(self._lib.nf_rc_io_register(self._handle, address, length, fill))

    def run(self, until: int, *, quiet: int = 0) -> tuple[list[EndpointEvent], int]:
        """Moves packets until an event, CLOCK_MONOTONIC ``until`` (ns), a signal, or until one of ``others`` is ready.

        quiet  kinds of events that do not end it, and are returned with what does: QUIET_SENT, QUIET_ARRIVED
        Returns the events, which are valid until the next call, and an errno or 0.
        """
        self._lib.nf_rc_io_run(self._handle, until, self._others, len(self._others), quiet, *self._run_arguments)
        outcome = self._outcome
        self.progress = outcome.progress
        return self._events[: outcome.n_events], outcome.error

    def ready(self, other: int) -> bool:
        """True if the last ``run`` found this one of ``others``, by its place, ready."""
        return bool(self._others[other].revents)

    def transient_errors(self) -> tuple[int, int]:
        """Number of packets that the kernel refused to send for a passing reason, such as a missing route, and the last
        errno."""
        count, error = C.c_uint64(), C.c_int32()
        self._lib.nf_rc_io_transient_errors(self._handle, C.byref(count), C.byref(error))
        return count.value, error.value

    def close(self) -> None:
        """Ends the thread and closes the sockets; safe to call twice."""
        if self._handle:
            self._lib.nf_rc_io_close(self._handle)
            self._handle = None
        for sock in self.sockets:
            sock.close()


def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""
    return int(library().nf_now())
