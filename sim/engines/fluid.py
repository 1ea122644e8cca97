# SPDX-License-Identifier: Apache-2.0
"""The fluid simulator: flows as max-min fair rates, for ten thousand hosts and more.

Between two events (a piece ends, a flow starts) every piece flows at its max-min fair rate.  There are no queues,
windows or losses, and everyone knows which links have failed.  A good congestion control approaches these rates with
long flows; for short flows the times are lower bounds.  REPS behaves like spraying here.
"""

from __future__ import annotations

import ctypes
import functools
import heapq
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cbuild import cc
from netfold.sim.engines.packet import SimulationError, Transport
from netfold.sim.engines.placement import Placement, Scheme, place
from netfold.sim.engines.topology import ClosCable, Topology
from netfold.sim.workloads.workload import Workload

MAX_ENTRIES = 10**8
"""(piece, link) pairs in a run at most, which take 1.2 GB."""


@dataclass(frozen=True)
class FluidOutcome:
    """The result of a run."""

    time: float
    """Seconds until the last task finished."""
    finished: NDArray[np.float64]
    """float64[tasks]: when each task ended, in seconds."""
    pieces: int
    events: int
    """How many times rates were computed."""
    wall: float = field(compare=False)


@dataclass(frozen=True)
class Usage:
    """The links of all pieces: entries ``first[p]`` to ``first[p+1]`` of ``link`` and ``weight`` belong to piece p."""

    first: NDArray[np.int64]
    link: NDArray[np.uint32]
    weight: NDArray[np.float32]
    """The part of the piece's rate that each link carries."""


def max_min(capacity: NDArray[np.float64], usage: Usage, active: NDArray[np.uint32] | None = None,
            out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Compute max-min fair rates, in the unit of the capacities.

    capacity   float64[links], above 0
    active     numbers of the pieces that are flowing; None: all
    out        float64[pieces] to write to; only active ones are written
    """
    n = len(usage.first) - 1
    chosen = np.arange(n, dtype=np.uint32) if active is None else np.ascontiguousarray(active, np.uint32)
    rates = np.zeros(n) if out is None else out
    if len(capacity) == 0 or capacity.min() <= 0:
        raise ValueError("max_min: every link needs a capacity above 0")
    if _library().max_min(len(capacity), np.ascontiguousarray(capacity, np.float64).ctypes.data,
                          usage.first.ctypes.data, usage.link.ctypes.data, usage.weight.ctypes.data, len(chosen),
                          chosen.ctypes.data, rates.ctypes.data):
        raise SimulationError(f"out of memory for the rates of {len(chosen)} pieces")
    return rates


def simulate(topology: Topology, workload: Workload, scheme: Scheme, *, transport: Transport | None = None,
             dead: Collection[ClosCable] = (), seed: int = 0, resolution: float = 0.0) -> FluidOutcome:
    """Simulate a workload to its end.

    transport    only its packet sizes matter: headers take their part of the links, and each flow ends one latency of
                 an empty path after its last byte has left
    dead         directed links that everyone avoids
    resolution   seconds to whose multiples arrivals are rounded, which saves most computations where flows end one by
                 one; 0 is exact
    Raises PathError where no path is left, SimulationError where there is not enough memory.
    """
    begin = time.perf_counter()
    transport = transport or Transport()
    placed = place(topology, workload, scheme, dead=topology.dead(dead), seed=seed, mtu=transport.mtu)
    usage = _usage(topology, workload, placed, scheme, topology.dead(dead))
    wire = (placed.size + -(-placed.size // transport.mtu) * transport.header).astype(np.float64)
    capacity = topology.rates() / 8
    latency = _latency(topology, workload, transport)
    return flow(workload, placed, wire, usage, capacity, latency, resolution=resolution, begin=begin)


def flow(workload: Workload, placed: Placement, wire: NDArray[np.float64], usage: Usage, capacity: NDArray[np.float64],
         latency: NDArray[np.float64], *, resolution: float = 0.0, begin: float | None = None) -> FluidOutcome:
    """Let pieces flow over links of any fabric; `simulate` does so for a Clos fabric.

    wire       float64[pieces]: bytes to carry; used up
    usage      the links of each piece
    capacity   float64[links]: bytes a second
    latency    float64[tasks]: seconds between the last byte's start and its arrival
    begin      time.perf_counter() when the work began; None: now
    Raises ValueError for links without capacity, SimulationError where there is not enough memory.
    """
    begin = time.perf_counter() if begin is None else begin
    n = len(workload)
    first_piece = np.searchsorted(placed.task, np.arange(n + 1))
    left = np.diff(first_piece)
    waits = np.bincount(workload.waits[:, 1], minlength=n)
    order = np.argsort(workload.waits[:, 0], kind="stable")
    nexts, first_next = workload.waits[order, 1], np.searchsorted(workload.waits[order, 0], np.arange(n + 1))
    finished = np.full(n, np.inf)
    rates = np.zeros(len(placed))
    active = np.zeros(0, np.uint32)
    timers = [(float(workload.gap[i]), 0, int(i)) for i in np.flatnonzero(waits == 0)]  # (time, ends?, task)
    heapq.heapify(timers)
    now, events = 0.0, 0
    while timers or len(active):
        ends = wire[active] / rates[active]
        step = max(float(ends.min()), resolution) if len(active) else np.inf
        grain = resolution
        if timers and timers[0][0] - now < step:
            step, grain = max(0.0, timers[0][0] - now), 0.0
        now += step
        wire[active] -= rates[active] * step
        gone = ends <= step * (1 + 1e-9) + grain
        for task, count in zip(*np.unique(placed.task[active[gone]], return_counts=True), strict=True):
            left[task] -= count
            if not left[task]:
                end = now + float(latency[task])
                if resolution:
                    end = max(now, round(end / resolution) * resolution)
                heapq.heappush(timers, (end, 1, int(task)))
        fresh: list[NDArray[np.uint32]] = []
        while timers and timers[0][0] <= now * (1 + 1e-12):
            _, over, task = heapq.heappop(timers)
            if not over and left[task]:
                fresh.append(np.arange(first_piece[task], first_piece[task + 1], dtype=np.uint32))
                continue
            finished[task] = now
            for follower in nexts[first_next[task]:first_next[task + 1]].tolist():
                waits[follower] -= 1
                if not waits[follower]:
                    heapq.heappush(timers, (now + float(workload.gap[follower]), 0, follower))
        if gone.any() or fresh:
            active = np.concatenate([active[~gone], *fresh])
            if len(active):
                max_min(capacity, usage, active, rates)
                rates[active] *= placed.share[active]
                events += 1
    return FluidOutcome(now, finished, len(placed), events, time.perf_counter() - begin)


def _latency(topology: Topology, workload: Workload, transport: Transport) -> NDArray[np.float64]:
    """Seconds from sending a flow's last byte to its arrival, over an empty path."""
    leaf, to = workload.source // topology.hosts, workload.destination // topology.hosts
    bits = 8 * (transport.mtu + transport.header)
    hop = [topology.delay + bits / rate for rate in (topology.host_rate, topology.slowest_uplink, topology.core_rate)]
    seconds = np.full(len(workload), topology.delay + hop[0])
    seconds += np.where(leaf != to, 2 * hop[1], 0.0)
    return seconds + np.where(leaf // topology.leaves != to // topology.leaves, 2 * hop[2], 0.0)


def _usage(topology: Topology, workload: Workload, placed: Placement, scheme: Scheme, dead: frozenset[int]) -> Usage:
    """The links of all pieces.  Those between two leaves are looked up once for each path."""
    sprayed = scheme.mode != "pinned"
    source, destination = workload.source[placed.task], workload.destination[placed.task]
    pair = np.stack([source // topology.hosts, destination // topology.hosts,
                     np.zeros_like(placed.path) if sprayed else placed.path], axis=1)
    ways, which = np.unique(pair, axis=0, return_inverse=True)
    inner: list[list[int]] = []
    parts: list[list[float]] = []
    for leaf, to, path in ways.tolist():
        paths = topology.live_paths(leaf, to, dead) if sprayed else [path]
        shares: dict[int, float] = {}
        for p in paths:
            for hop in topology.between(leaf, to, p):
                shares[hop] = shares.get(hop, 0.0) + 1 / len(paths)
        inner.append(list(shares))
        parts.append(list(shares.values()))

    length = np.fromiter((len(row) for row in inner), np.int64, len(inner))
    begin = np.cumsum(length) - length
    entries = int((length[which] + 2).sum())
    if entries > MAX_ENTRIES:
        raise SimulationError(f"{entries} pairs of piece and link, expected at most {MAX_ENTRIES}: simulate fewer "
                              "steps, or a fabric with fewer paths")
    first: NDArray[np.int64] = np.concatenate([[0], np.cumsum(length[which] + 2)])
    link: NDArray[np.uint32] = np.empty(entries, np.uint32)
    weight: NDArray[np.float32] = np.ones(entries, np.float32)
    link[first[:-1]] = source
    link[first[1:] - 1] = topology.size + destination
    flat_links = np.array([x for row in inner for x in row], np.uint32)
    flat_parts = np.array([x for row in parts for x in row], np.float32)
    for count in np.unique(length).tolist():  # only a few different values: one for each distance between hosts
        rows = np.flatnonzero(length[which] == count)
        to_entries = first[rows, None] + 1 + np.arange(count)
        from_entries = begin[which[rows], None] + np.arange(count)
        link[to_entries] = flat_links[from_entries]
        weight[to_entries] = flat_parts[from_entries]
    return Usage(first, link, weight * np.repeat(placed.share.astype(np.float32), np.diff(first)))


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(cc.build([Path(__file__).parents[1] / "native" / "fluid.c"], kind="shared",
                                       name="netfold-sim-fluid")))
    library.max_min.argtypes = [ctypes.c_uint32, *[ctypes.c_void_p] * 4, ctypes.c_uint32, *[ctypes.c_void_p] * 2]
    return library
