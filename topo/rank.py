# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench allreduce`: commands come as lines of JSON, measurements go out the same way.

    python -m netfold.topo.rank '{"world": 8, "algorithms": ["innet"], ...}'      # RANK, NETFOLD_*, ... set

Turns may stand on the command line, behind it, instead (the demo's races).
Ranks without a controller (on the bridge) print where their TCP listens, and get everybody's places as first line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.reduction import Reduction
from netfold.wire.jobs import Peer, Plan

Floats = NDArray[np.float32]


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank is to be able to do, the same for all."""

    world: int
    algorithms: list[str]
    lane_bits: int = 32
    seed: int = 0
    timeout: float = 30.0
    controller: bool = True


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One algorithm's turn at one size."""

    algorithm: str
    nbytes: int
    iterations: int
    warmup: int
    check: bool


class Took(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a turn took this rank: wall-clock and CPU seconds of one operation."""

    seconds: float
    cpu_seconds: float
    retransmissions: int
    wrong: int
    """Elements beyond the error bound of `bound`, in the last operation."""
    path: str
    """What carried it, in the library's words."""
    machine_busy: float
    """Share of all cores that were, meanwhile."""


class Way(Protocol):
    """Something that can allreduce."""

    def allreduce(self, source: Floats, out: Floats, algorithm: str) -> None:
        """Sum over all ranks."""

    def line_up(self) -> None:
        """Until all ranks have called it."""

    def retransmissions(self) -> int:
        """So far."""

    def explain(self, nbytes: int, algorithm: str) -> str:
        """What carries it."""

    def close(self) -> None:
        """Give everything back."""


class NetFold:
    """A communicator of the fabric; "auto" is as it chooses."""

    def __init__(self, setup: Setup, job: str, rail: Any) -> None:
        from netfold.host.api.communicator import Communicator

        rank = int(os.environ["RANK"])
        settings: dict[str, Any] = {} if setup.lane_bits == 32 else {"lane_bits": setup.lane_bits}
        self._comm = Communicator.join(
            job, rank, setup.world, address=os.environ["NETFOLD_ADDRESS"], rail=rail, timeout=setup.timeout, **settings
        )

    def allreduce(self, source: Floats, out: Floats, algorithm: str) -> None:
        self._comm.allreduce(source, out, algorithm=_own(algorithm))

    def line_up(self) -> None:
        self._comm.barrier()

    def retransmissions(self) -> int:
        return self._comm.stats().retransmissions

    def explain(self, nbytes: int, algorithm: str) -> str:
        return self._comm.explain(nbytes, algorithm=_own(algorithm))

    def close(self) -> None:
        self._comm.close()


class Plain:
    """The library's collectives over TCP, without a controller."""

    def __init__(self, setup: Setup) -> None:
        from netfold.host.mesh.connection import listen
        from netfold.host.mesh.tcp import TcpMesh
        from netfold.host.selection.peers import Peers

        rank, address = int(os.environ["RANK"]), os.environ["NETFOLD_ADDRESS"]
        listener = listen(address)
        _say(msgspec.json.encode(Peer(rank, address, "{}:{}".format(*listener.getsockname()))))
        peers = msgspec.json.decode(sys.stdin.readline(), type=list[Peer])
        plan = Plan("bridge", 1, rank, setup.world, peers, [])
        self._peers = Peers(TcpMesh(plan, listener, timeout=setup.timeout), algorithm="auto")
        self._sum = Reduction("sum", "float32")

    def allreduce(self, source: Floats, out: Floats, algorithm: str) -> None:
        self._peers.allreduce(source, out, self._sum, algorithm=_own(algorithm) or "auto")

    def line_up(self) -> None:
        self._peers.barrier()

    def retransmissions(self) -> int:
        return 0

    def explain(self, nbytes: int, algorithm: str) -> str:
        own = _own(algorithm)
        return self._peers.explain(nbytes) if own is None else f"{own}, as asked for"

    def close(self) -> None:
        self._peers.close()


class Gloo:
    """torch.distributed's."""

    def __init__(self, setup: Setup) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        dist.init_process_group(
            "gloo", rank=int(os.environ["RANK"]), world_size=setup.world, timeout=timedelta(seconds=setup.timeout)
        )

    def allreduce(self, source: Floats, out: Floats, algorithm: str) -> None:
        out[:] = source  # gloo works in place; the others read the one and write the other
        self._dist.all_reduce(self._torch.from_numpy(out))

    def line_up(self) -> None:
        self._dist.barrier()

    def retransmissions(self) -> int:
        return 0

    def explain(self, nbytes: int, algorithm: str) -> str:
        return f"gloo of torch {self._torch.__version__}"

    def close(self) -> None:
        self._dist.destroy_process_group()


def serve(setup: Setup, turns: Iterable[str | bytes]) -> None:
    """Takes its turns and tells what each took; says {} once it is ready."""
    rank = int(os.environ["RANK"])
    with contextlib.ExitStack() as opened:
        ways: dict[str, Way] = {}
        for algorithm in setup.algorithms:
            kind = _kind(algorithm, setup)
            if kind not in ways:
                way = ways[kind] = _open(kind, setup)
                opened.callback(way.close)
        _say(b"{}")
        for line in turns:
            turn = msgspec.json.decode(line, type=Turn)
            _say(msgspec.json.encode(measure(ways[_kind(turn.algorithm, setup)], turn, setup, rank)))


def _open(kind: str, setup: Setup) -> Way:
    if kind == "gloo":
        return Gloo(setup)
    if kind == "plain":
        return Plain(setup)
    return NetFold(setup, f"bench-{kind}", kind)


def measure(way: Way, turn: Turn, setup: Setup, rank: int) -> Took:
    """One turn: warm-up, then the timed operations back to back."""
    elements = turn.nbytes // 4
    source = data(setup.seed, rank, elements)
    out = np.empty_like(source)
    for _ in range(turn.warmup):
        way.allreduce(source, out, turn.algorithm)
    before = way.retransmissions()
    way.line_up()
    idle, total = idle_of_all()
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(turn.iterations):
        way.allreduce(source, out, turn.algorithm)
    seconds = (time.perf_counter() - begin) / turn.iterations
    cpu = (time.process_time() - busy) / turn.iterations
    later_idle, later_total = idle_of_all()
    machine_busy = 1 - (later_idle - idle) / max(1, later_total - total)
    again = way.retransmissions() - before
    way.line_up()  # nobody checks on a core that another still needs
    wrong = count_wrong(out, setup, elements, turn.algorithm) if turn.check else 0
    return Took(seconds, cpu, again, wrong, way.explain(turn.nbytes, turn.algorithm), machine_busy)


def idle_of_all() -> tuple[int, int]:
    """Ticks that the machine's cores were idle, and all ticks, since it started."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]  # guests are in user's already
    return ticks[3] + ticks[4], sum(ticks)


def data(seed: int, rank: int, elements: int) -> Floats:
    """A rank's tensor: normal floats."""
    return np.random.default_rng((seed, rank)).standard_normal(elements, np.float32)


def count_wrong(out: Floats, setup: Setup, elements: int, algorithm: str) -> int:
    """Elements further from the exact sum than the format allows."""
    exact, largest = np.zeros(elements), 0.0
    for rank in range(setup.world):
        part = data(setup.seed, rank, elements)
        exact += part
        largest = max(largest, float(np.abs(part).max(initial=0.0)))
    bits = setup.lane_bits if algorithm in ("innet", "auto") else 32
    return int(np.sum(~(np.abs(out - exact) <= bound(setup.world, bits, largest))))


def bound(world: int, lane_bits: int, largest: float) -> float:
    """How far a sum of ``world`` ranks may be off: each rank rounds by up to one step of a lane that keeps room for
    the sum, and the sum itself has float32's precision (docs/host.md)."""
    room = max(0, (world - 1).bit_length())
    step = 2.0 ** (room + 2 - lane_bits) * 2 * largest
    return world * (step + largest * 2.0**-22)


def _kind(algorithm: str, setup: Setup) -> str:
    """What carries it: a rail of the communicator, the bare mesh of the bridge, or gloo."""
    if algorithm == "gloo":
        return "gloo"
    if not setup.controller:
        return "plain"
    if algorithm in ("innet", "auto"):  # an address has one UDP port 4791, and both fold
        return "auto"
    return algorithm if algorithm == "roce" else "tcp"


def _own(algorithm: str) -> str | None:
    """What to ask the library for; None: its own choice, or the rail's."""
    return {"auto": None, "roce": "ring"}.get(algorithm, algorithm)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=Setup), sys.argv[2:] or sys.stdin)
