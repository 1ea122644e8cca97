# SPDX-License-Identifier: Apache-2.0
"""GOAL schedules (Hoefler, Siebert and Lumsdaine, 2009), as LogGOPSim and ATLAHS read them: text to workloads and back.

    num_ranks 2
    rank 0 {
    l1: calc 1000
    l2: send 4096b to 1 tag 7
    l2 requires l1
    }
    rank 1 {
    l1: recv 4096b from 0 tag 7
    }

calc is nanoseconds.  Of one source, destination and tag the n-th send is the n-th recv's.  Sends are eager: they do not
wait for their recv, and what requires a send waits for its acknowledgement.  ``cpu`` and ``nic`` are read and not used,
since a host here has one card and as many cores as it needs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from netfold.disk import files
from netfold.sim.engines.packet import Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.ethereal.points import fabric
from netfold.sim.workloads.workload import COLLECTIVES, Workload

LARGEST: Final = 1 << 20
"""Ranks of a schedule at the most."""
_OPERATION: Final = re.compile(
    r"(?P<label>\w+)\s*:\s*(?:calc\s+(?P<calc>\d+)|(?P<kind>send|recv)\s+(?P<size>\d+)b\s+(?:to|from)\s+(?P<peer>\d+)"
    r"(?:\s+tag\s+(?P<tag>\d+))?)(?:\s+cpu\s+\d+)?(?:\s+nic\s+\d+)?")
_REQUIRES: Final = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)")


class _Reader:
    """The tasks of a schedule, line by line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ranks = 0
        self.rows: list[tuple[int, int, int, float]] = []
        self.waits: list[tuple[int, int]] = []
        self.ends: dict[tuple[int, int, int], dict[str, list[tuple[int, int, int]]]] = defaultdict(
            lambda: {"send": [], "recv": []})
        self._rank: int | None = None
        self._labels: dict[str, int] = {}
        self._before: dict[int, list[int]] = {}

    def take(self, number: int, line: str) -> None:
        """One line, without its comment.  Raises ValueError."""
        words = line.split()
        if words[0] == "num_ranks" and len(words) == 2 and words[1].isdecimal() and not self.ranks:
            self.ranks = int(words[1])
            if not 2 <= self.ranks <= LARGEST:
                raise self.wrong(number, f"2 to {LARGEST} ranks", line)
        elif words[0] == "rank" and self._rank is None and re.fullmatch(r"rank\s+\d+\s*\{", line):
            self._rank, self._labels, self._before = int(words[1].rstrip("{")), {}, {}
            if self._rank >= self.ranks:
                raise self.wrong(number, f"a rank below num_ranks, {self.ranks}", line)
        elif line == "}" and self._rank is not None:
            self._rank = None
        elif self._rank is not None and (found := _OPERATION.fullmatch(line)):
            self._operation(number, line, found)
        elif self._rank is not None and (needs := _REQUIRES.fullmatch(line)):
            self._requires(number, line, *needs.groups())
        else:
            raise self.wrong(number, "num_ranks N, rank N {, LABEL: calc N, LABEL: send Nb to RANK tag N, LABEL: recv "
                                     "Nb from RANK tag N, LABEL requires LABEL, or }", line)

    def _operation(self, number: int, line: str, found: re.Match[str]) -> None:
        rank, task = self._rank or 0, len(self.rows)
        if found["label"] in self._labels:
            raise self.wrong(number, "a label that its rank has not had", line)
        self._labels[found["label"]], self._before[task] = task, []
        if found["calc"] is not None:
            self.rows.append((rank, rank, 0, int(found["calc"]) * 1e-9))
            return
        peer, size = int(found["peer"]), int(found["size"])
        if peer >= self.ranks or peer == rank or size < 1:
            raise self.wrong(number, f"another rank below {self.ranks} and 1 byte or more", line)
        send = found["kind"] == "send"
        self.rows.append((rank, peer, size, 0.0) if send else (rank, rank, 0, 0.0))
        ends = (rank, peer) if send else (peer, rank)
        self.ends[*ends, int(found["tag"] or 0)][found["kind"]].append((task, size, number))

    def _requires(self, number: int, line: str, label: str, how: str, other: str) -> None:
        if label not in self._labels or other not in self._labels:
            raise self.wrong(number, "labels that stand above in this rank", line)
        task, first = self._labels[label], self._labels[other]
        # irequires: as soon as the other has begun, so after what the other waits for
        for one in [first] if how == "requires" else list(self._before[first]):
            self.waits.append((one, task))
            self._before[task].append(one)

    def wrong(self, number: int, expected: str, got: str) -> ValueError:
        """The error of a line."""
        return ValueError(f"{self.name}:{number}: expected {expected}; got {got[:80]!r}")

    def workload(self) -> Workload:
        """All tasks.  Raises ValueError for a send without recv, other sizes at both ends, and circles."""
        for (source, to, tag), both in self.ends.items():
            for at in range(max(len(both["send"]), len(both["recv"]))):
                send, recv = (both[kind][at] if at < len(both[kind]) else None for kind in ("send", "recv"))
                if send is None or recv is None or send[1] != recv[1]:
                    line = (send or recv or (0, 0, 0))[2]
                    raise self.wrong(line, "a send and a recv of as many bytes", f"send {send and send[1]}, recv "
                                     f"{recv and recv[1]} from {source} to {to} tag {tag}")
                self.waits.append((send[0], recv[0]))
        n = len(self.rows)
        waits = np.array(self.waits, np.int64).reshape(-1, 2)
        after: dict[int, list[int]] = defaultdict(list)
        for first, then in waits.tolist():
            after[first].append(then)
        left = np.bincount(waits[:, 1], minlength=n)
        step = np.zeros(n, np.int64)
        ready, done = np.flatnonzero(left == 0).tolist(), 0
        while ready:
            task = ready.pop()
            done += 1
            for then in after[task]:
                step[then] = max(step[then], step[task] + (self.rows[task][2] > 0))
                left[then] -= 1
                if not left[then]:
                    ready.append(then)
        if done < n:
            raise ValueError(f"{self.name}: {n - done} operations wait for each other in a circle; expected none")
        columns = np.array(self.rows, float).reshape(-1, 4).T
        ends, sizes = columns[:2].astype(np.int64), columns[2].astype(np.int64)
        return Workload(ends[0], ends[1], sizes, columns[3], step, waits)


def read(text: str, name: str = "schedule") -> tuple[int, Workload]:
    """The number of ranks of a schedule, and its workload, rank r being host r.  Raises ValueError."""
    reader = _Reader(name)
    for number, line in enumerate(text.splitlines(), 1):
        if bare := re.split(r"//|#", line)[0].strip():
            reader.take(number, bare)
    if not reader.ranks:
        raise ValueError(f"{name}: expected num_ranks N")
    return reader.ranks, reader.workload()


def write(work: Workload, ranks: int) -> str:
    """A workload of flows as a schedule; a flow's tag is its number.

    Raises ValueError for pauses, and where a flow waits for one that neither comes from nor goes to its sender, as by
    the credits of trees, which GOAL has no words for.
    """
    if len(work) and (work.size.min() < 1 or work.gap.max() > 0):
        raise ValueError("GOAL: expected flows alone; this workload has pauses between ranks")
    lines: list[list[str]] = [[] for _ in range(ranks)]
    source, to = work.source.tolist(), work.destination.tolist()
    for task, (here, there, size) in enumerate(zip(source, to, work.size.tolist(), strict=True)):
        lines[here].append(f"s{task}: send {size}b to {there} tag {task}")
        lines[there].append(f"r{task}: recv {size}b from {here} tag {task}")
    for first, then in work.waits.tolist():
        if source[then] not in (source[first], to[first]):
            raise ValueError(f"GOAL: flow {then} waits for flow {first}, at neither of whose ends its sender is")
        lines[source[then]].append(f"s{then} requires {'s' if source[first] == source[then] else 'r'}{first}")
    blocks = ("\n".join([f"rank {rank} {{", *mine, "}", ""]) for rank, mine in enumerate(lines))
    return f"num_ranks {ranks}\n" + "".join(blocks)


def save(path: Path, collective: str, ranks: int, nbytes: int) -> int:
    """Write a collective of `workload.COLLECTIVES` as a schedule and return its number of flows.

    Raises ValueError for what there is not, OSError where the file cannot be written.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"no collective is called {collective!r}; there are {', '.join(COLLECTIVES)}")
    work = COLLECTIVES[collective](range(ranks), nbytes)
    files.replace(path, write(work, ranks).encode())
    return len(work)


def run(path: Path, *, on: str, schemes: Sequence[str], seed: int, echo: Callable[[str], None] = print
        ) -> dict[str, float]:
    """Simulate a schedule on a fabric by each scheme and return seconds.

    on   a fabric as `points.fabric` has it
    Raises ValueError for a schedule that cannot be taken, names that there are not and ranks without a host, OSError.
    """
    if unknown := [name for name in schemes if name not in SCHEMES]:
        raise ValueError(f"no scheme is called {unknown[0]!r}; there are {', '.join(SCHEMES)}")
    ranks, work = read(files.read_text(path), str(path))
    topology = fabric(on)
    if ranks > topology.size:
        raise ValueError(f"{path}: {ranks} ranks, but {on} has {topology.size} hosts")
    found = {}
    echo(f"# {path}: {ranks} ranks, {np.count_nonzero(work.size)} messages, {work.total} bytes; {on}, seed {seed}")
    for name in schemes:
        outcome = simulate(topology, work, SCHEMES[name], transport=Transport(jitter=0.0), seed=seed,
                           deadline=1.0 + 10 * work.idle)
        found[name] = np.inf if outcome.unfinished else outcome.time
        echo(f"{name:<14} {'did not end' if outcome.unfinished else f'{outcome.time * 1e6:.1f} us'}")
    return found
