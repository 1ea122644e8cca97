# SPDX-License-Identifier: Apache-2.0
"""The packet-level simulator: one workload, one scheme, one fabric, packet by packet.

    outcome = simulate(leaf_spine(), all_to_all(range(256), 16 << 20), SCHEMES["netfold"])
    outcome.time, outcome.link_bytes.max()

The event loop is in C: native/sim.h describes its modules, and each module what it leaves out of a real network.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cbuild import cc
from netfold.sim.engines import folding
from netfold.sim.engines.folding import PROTOCOLS, FoldRules, SimulatedFold
from netfold.sim.engines.placement import Placement, Scheme, place
from netfold.sim.engines.topology import ClosCable, Topology
from netfold.sim.workloads.workload import Workload

_PS = 1e12
_NEVER = 2**64 - 1
_KINDS = ("up", "down", "ask up", "ask down")
"""Packets of folds, as enum fold_kind of verdict.h counts them from 1."""
_MODES = {"pinned": 0, "spray": 1, "reps": 2, "spray-rr": 3, "spray-ideal": 4}

_TASK = np.dtype([("size", "u8"), ("gap", "u8"), ("source", "u4"), ("destination", "u4"), ("waits", "u4"),
                  ("first_next", "u4"), ("nexts", "u4"), ("first_piece", "u4", 2), ("pieces", "u4", 2),
                  ("first_channel", "u4"), ("channels", "u4")], align=True)
_PIECE = np.dtype([("size", "u8"), ("path", "u4"), ("share", "f4")], align=True)
_FAULT = np.dtype([("time", "u8"), ("announced", "u8"), ("links", "u4", 2), ("up", "u4")], align=True)
_DROP = np.dtype([(name, "u4") for name in ("link", "kind", "psn", "left")])
_COUNT = np.dtype([(name, "u8") for name in ("packets", "bytes", "marked", "dropped", "deepest")])


class SimulationError(Exception):
    """The simulator could not run: it is out of memory, or was built from sources that do not match this file.

    Remedy: simulate fewer hosts, bytes or flows at once, or give the process more memory; where versions disagree:
    `make setup` again.
    """


@dataclass(frozen=True, kw_only=True)
class Transport:
    """Parameters of end points and queues.  The defaults are those of Ethereal's evaluation, as its code has them."""

    mtu: int = 9000
    """Payload bytes of a full packet."""
    header: int = 58
    """Bytes around each payload: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4."""
    ack: int = 0
    """Bytes of an ACK, which queues like data; 0: ACKs take the time of an empty path and no bandwidth."""
    ecn: int = 800_000
    """Bytes in a queue above which it marks packets: K of DCTCP."""
    buffer: int = 64 << 20
    """Bytes that one switch can buffer, shared by its ports; it drops packets beyond that."""
    window: float = 1.0
    """Initial window of a piece, in bandwidth-delay products of the longest empty path."""
    max_window: float = 2.0
    """Largest window of a piece, in the same unit."""
    gain: float = 1 / 16
    """Gain g of DCTCP's moving average."""
    rto: float = 1e-3
    """Seconds without progress until a time-out."""
    mark_time: float = 0.1
    """Seconds that a path from a host to a leaf stays suspect after a time-out."""
    freeze_time: float = 0.01
    """Seconds that REPS recycles old entropies after a time-out."""
    jitter: float = 50e-9
    """Seconds by which flows start late at most, at random, so that perfect synchrony does not decide the result."""

    def __post_init__(self) -> None:
        if self.mtu < 1 or self.header < 0 or self.mtu + self.header > 65535:
            raise ValueError(f"transport: a packet of {self.mtu} + {self.header} bytes; expected 1..65535")
        for name in ("ecn", "buffer", "window", "max_window", "gain", "rto"):
            if not getattr(self, name) > 0:
                raise ValueError(f"transport.{name}: expected a value above 0, got {getattr(self, name)}")
        if not 0 <= self.ack <= 65535:
            raise ValueError(f"transport.ack: expected 0..65535 bytes, got {self.ack}")
        if self.max_window < self.window:
            raise ValueError(f"transport.max_window: {self.max_window} is below the first window {self.window}")

    def round_trip(self, topology: Topology) -> float:
        """Seconds that a full packet and its ACK take over the longest path of an empty fabric."""
        rates = [topology.host_rate] * 2
        if topology.leaves > 1 or topology.pods > 1:
            rates += [topology.slowest_uplink] * 2
        if topology.pods > 1:
            rates += [topology.core_rate] * 2
        bits = 8 * (self.mtu + self.header + 64)
        return sum(2 * topology.delay + bits / rate for rate in rates)


@dataclass(frozen=True)
class Fault:
    """A cable that breaks, or is repaired, at ``time``; routing knows of it at ``announced``.

    Both are seconds of simulated time; in the paper they are 100 ms apart.
    """

    cable: ClosCable
    time: float = 0.0
    announced: float = 0.1
    up: bool = False


@dataclass(frozen=True)
class PacketOutcome:
    """The result of a run."""

    time: float
    """Seconds until the last task finished, or until the deadline where some did not."""
    unfinished: int
    """Tasks that did not finish by the deadline."""
    started: NDArray[np.float64]
    """float64[tasks]: when each task started, in seconds; inf where it did not."""
    finished: NDArray[np.float64]
    """float64[tasks]: when each task ended, in seconds; inf where it did not."""
    link_bytes: NDArray[np.int64]
    """int64[links]: bytes that each directed link carried, headers included."""
    link_packets: NDArray[np.int64]
    link_deepest: NDArray[np.int64]
    """int64[links]: greatest number of bytes in each queue."""
    link_dropped: NDArray[np.int64]
    counts: dict[str, int]
    """hops, sent, resent, delivered, discarded, dropped, in_flight, marked, timeouts, lost_acks, answers, answered,
    pieces, moved.  hops, dropped and in_flight count ACKs too, where they take bandwidth."""
    cpu: float = field(compare=False)
    """Seconds of processor time of the event loop."""


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("hosts", "leaves", "aggs", "pods", "cores")),
        *((name, ctypes.c_double) for name in ("host_rate", "leaf_rate", "core_rate")),
        *((name, ctypes.c_uint64) for name in ("delay", "ecn_bytes", "buffer_bytes")),
        *((name, ctypes.c_uint32) for name in ("mode", "mtu", "header", "ack_bytes", "tolerant", "move")),
        *((name, ctypes.c_double) for name in ("window", "max_window", "min_window", "gain")),
        *((name, ctypes.c_uint64) for name in ("rto", "mark_time", "freeze_time", "jitter", "deadline", "seed")),
        *((name, ctypes.c_uint32) for name in ("loss", "repeat", "reorder", "fold_protocol", "fold_mtu", "fold_header",
                                               "fold_window", "fold_slots", "fold_message", "fold_credits")),
        ("fold_rto", ctypes.c_uint64),
    )


_RESULTS = ("end", "hops", "sent", "resent", "delivered", "discarded", "dropped", "in_flight", "marked", "timeouts",
            "lost_acks", "answers", "answered", "unfinished", "pieces", "moved",
            *(f"fold_{name}" for name in ("sent", "resent", "asks", "timeouts", "results", "duplicates", "completed",
                                          "first", "answered", "asked", "waited", "late", "repeated", "lacked",
                                          "naks", "wrong", "aliased", "collided", "server", "partial")))


class _Folds(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_uint32) for name in ("nodes", "edges", "channels", "drops")),
                *((name, ctypes.c_void_p) for name in ("node", "edge", "channel", "links", "drop")))


class _Result(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _RESULTS)


def simulate(
    topology: Topology,
    workload: Workload,
    scheme: Scheme,
    *,
    transport: Transport | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
    deadline: float = 1.0,
    placement: Placement | None = None,
    folds: Sequence[SimulatedFold] = (),
    rules: FoldRules | None = None,
    loss: float = 0.0,
    repeat: float = 0.0,
    reorder: float = 0.0,
    drops: Sequence[tuple[int, str, int, int]] = (),
) -> PacketOutcome:
    """Simulate a workload to its end, or to ``deadline`` seconds of simulated time.

    placement   the pieces of its flows; None: as the scheme plans them
    folds       tasks of the workload that are ranks' parts of folds
    rules       windows and credits of folds
    loss        part of its packets that each link loses, at random by the seed
    repeat      part that each link carries twice
    reorder     part that each link carries once more behind what is queued there, at most once for a packet
    drops       packets of folds to lose: link, "up", "down", "ask up" or "ask down", PSN, how often
    Runs with equal arguments have equal outcomes.  Raises ValueError for hosts that the fabric does not have,
    PathError where failures leave no path, SimulationError for lack of memory.
    """
    transport = transport or Transport()
    rules = rules or FoldRules()
    for name, part in (("loss", loss), ("repeat", repeat), ("reorder", reorder)):
        if not 0 <= part < 1:
            raise ValueError(f"{name}: expected a part of 0..1, got {part}")
    if workload.total and max(workload.source.max(), workload.destination.max()) >= topology.size:
        raise ValueError(f"workload: host {max(workload.source.max(), workload.destination.max())} is not among the "
                         f"fabric's {topology.size}")
    if not 0 < deadline < 1e6:
        raise ValueError(f"deadline: expected seconds of 0..1e6, got {deadline}")
    if scheme.mode != "pinned" and not scheme.tolerant:
        raise ValueError(f"scheme {scheme.name}: packets of one flow take several paths, so receivers must be tolerant")
    before = placement or place(topology, workload, scheme, seed=seed, mtu=transport.mtu)
    dead = topology.dead(f.cable for f in faults if not f.up)
    after = before
    if dead and scheme.moves:
        after = place(topology, workload, scheme, dead=dead, seed=seed, mtu=transport.mtu)

    tasks, nexts = _tasks(workload, (before, after))
    mtu, header = (rules.payload, rules.header) if rules.payload else (transport.mtu, transport.header)
    tables = folding.tables(topology, folds, mtu)
    numbers_of = tables.channels["task"]
    tasks["channels"] = np.bincount(numbers_of, minlength=len(workload)) if len(numbers_of) else 0
    tasks["first_channel"] = np.searchsorted(numbers_of, np.arange(len(workload)))
    for one in folds:
        tasks["size"][list(one.tasks)] = one.size
    dropped = np.array([(link, 1 + _KINDS.index(kind), psn, times) for link, kind, psn, times in drops], _DROP)
    slots = rules.slots // _power(max((len(one.trees) for one in folds), default=1))
    if slots < 2:
        raise ValueError(f"{rules.slots} slots over {max(len(one.trees) for one in folds)} trees: expected 2 for each")
    native = _Folds(len(tables.nodes), len(tables.edges), len(tables.channels), len(dropped),
                    tables.nodes.ctypes.data, tables.edges.ctypes.data, tables.channels.ctypes.data,
                    tables.links.ctypes.data, dropped.ctypes.data)
    pieces = np.zeros(len(before) + len(after), _PIECE)
    pieces["size"] = np.concatenate([before.size, after.size])
    pieces["path"] = np.concatenate([before.path, after.path])
    pieces["share"] = np.concatenate([before.share, after.share])
    broken = np.zeros(len(faults), _FAULT)
    for row, fault in zip(broken, faults, strict=True):
        row["time"], row["announced"] = _ps(fault.time), _ps(max(fault.time, fault.announced))
        row["links"], row["up"] = topology.directions(fault.cable), fault.up

    bdp = transport.round_trip(topology) * topology.host_rate / 8 / (transport.mtu + transport.header)
    config = _Config(
        topology.hosts, topology.leaves, topology.aggs, topology.pods, topology.cores,
        8 * _PS / topology.host_rate, 8 * _PS / topology.slowest_uplink, 8 * _PS / topology.core_rate,
        _ps(topology.delay), transport.ecn, transport.buffer,
        _MODES[scheme.mode], transport.mtu, transport.header, transport.ack, scheme.tolerant, scheme.moves,
        max(1.0, transport.window * bdp), max(1.0, transport.max_window * bdp), 1.0, transport.gain,
        _ps(transport.rto), _ps(transport.mark_time), _ps(transport.freeze_time), _ps(transport.jitter),
        _ps(deadline), seed % 2**64, round(loss * 2**32), round(repeat * 2**32),
        round(reorder * 2**32), PROTOCOLS.index(rules.protocol), mtu, header, rules.window or slots // 2, slots,
        rules.message,
        rules.credits, _ps(rules.timeout),
    )
    rates = 8 * _PS / topology.rates()
    times = np.zeros((2, len(workload)), np.uint64)
    counts = np.zeros(topology.links, _COUNT)
    result = _Result()
    begin = time.thread_time()
    outcome = native_library().sim_run(
        ctypes.byref(config), len(workload), tasks.ctypes.data, nexts.ctypes.data, pieces.ctypes.data,
        rates.ctypes.data, ctypes.byref(native), len(broken),
        broken.ctypes.data, times[0].ctypes.data, times[1].ctypes.data, counts.ctypes.data, ctypes.byref(result))
    cpu = time.thread_time() - begin
    if outcome not in (0, 1):
        raise SimulationError(f"out of memory after {result.end / _PS:.6f} simulated seconds and {result.sent} "
                              "packets; simulate fewer bytes or fewer pieces")
    seconds = np.where(times == _NEVER, np.inf, times / _PS)
    numbers = {name: int(getattr(result, name)) for name in _RESULTS}
    return PacketOutcome(
        numbers.pop("end") / _PS, numbers.pop("unfinished"), seconds[0], seconds[1],
        counts["bytes"].astype(np.int64), counts["packets"].astype(np.int64), counts["deepest"].astype(np.int64),
        counts["dropped"].astype(np.int64), numbers, cpu)


def _tasks(workload: Workload, plans: tuple[Placement, Placement]) -> tuple[NDArray[np.void], NDArray[np.uint32]]:
    """The task array of packet.h, and the successors of all tasks."""
    n = len(workload)
    numbers = np.arange(n)
    tasks = np.zeros(n, _TASK)
    for name in ("source", "destination", "size"):
        tasks[name] = getattr(workload, name)
    tasks["gap"] = np.rint(workload.gap * _PS)
    tasks["waits"] = np.bincount(workload.waits[:, 1], minlength=n)
    order = np.argsort(workload.waits[:, 0], kind="stable")
    tasks["nexts"] = np.bincount(workload.waits[:, 0], minlength=n)
    tasks["first_next"] = np.cumsum(tasks["nexts"]) - tasks["nexts"]
    begin = 0
    for k, placed in enumerate(plans):
        tasks["first_piece"][:, k] = begin + np.searchsorted(placed.task, numbers)
        tasks["pieces"][:, k] = np.bincount(placed.task, minlength=n)
        begin += len(placed)
    return tasks, workload.waits[order, 1].astype(np.uint32)


def _power(n: int) -> int:
    """The least power of two that is no less."""
    return 1 << (n - 1).bit_length()


def _ps(seconds: float) -> int:
    return round(seconds * _PS)


@functools.cache
def native_library() -> ctypes.CDLL:
    """The compiled simulator."""
    native = Path(__file__).parents[1] / "native"
    modules = ("run", "events", "fabric", "paths", "transport", "tasks", "trees", "folds", "switchml", "atp",
               "verdict")
    sources = [native / f"{name}.c" for name in modules]
    host = native.parent.parent / "host" / "native"
    if not host.is_dir():  # an installation that is not the source tree has the package there
        raise SimulationError(f"{host} is not there: folds are simulated by the host library's own stream.c")
    sources += [host / "stream.c", host / "congestion.c"]
    library = ctypes.CDLL(str(cc.build(sources, kind="shared", name="netfold-sim-packet", include=[native, host])))
    library.sim_run.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, *[ctypes.c_void_p] * 5, ctypes.c_uint32,
        *[ctypes.c_void_p] * 5]
    library.sim_abi.restype = ctypes.c_uint64
    ours = (ctypes.sizeof(_Config) << 40 | _TASK.itemsize << 30 | _PIECE.itemsize << 20 | _FAULT.itemsize << 10
            | _COUNT.itemsize)
    library.sim_fold_abi.restype = ctypes.c_uint64
    folds = (folding.EDGE.itemsize << 40 | folding.NODE.itemsize << 30 | folding.CHANNEL.itemsize << 20
             | _DROP.itemsize << 10 | ctypes.sizeof(_Result))
    if library.sim_fold_abi() != folds:
        raise SimulationError(f"packet.h and packet.py disagree on folds: {library.sim_fold_abi():#x} against "
                              f"{folds:#x}; update the one that lags")
    if library.sim_abi() != ours:
        raise SimulationError(f"packet.h and packet.py disagree on the sizes of structures: {library.sim_abi():#x} "
                              f"against {ours:#x}; update the one that lags")
    return library
