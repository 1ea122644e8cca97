# SPDX-License-Identifier: Apache-2.0
"""One rank that times allreduce by several algorithms, for `netfold bench allreduce` and the demo.

    python -m netfold.topo.processes.allreduce_rank '{"world": 8, "algorithms": ["innet"], ...}'   # RANK, NETFOLD_* set

Commands come as lines of JSON on standard input, and each is answered by a line of JSON on standard output.  Further
arguments, where there are any, are the commands instead of standard input.  A rank without a controller (on a plain
bridge) first prints the address that its TCP listens at, and reads those of all ranks as its first line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterable
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.conversion import in_float32, round_to
from netfold.host.operation.half_precision import BFLOAT16
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.topo.processes.rank_program import print_message
from netfold.topo.processes.reduction_data import count_wrong, data
from netfold.wire.plan import Peer, Plan, Secret

Elements = NDArray[Any]


class RankSetup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data that a rank needs for timing; the same for all ranks of a group."""

    world: int
    algorithms: list[str]
    lane_bits: int = 32
    seed: int = 0
    timeout: float = 30.0
    controller: bool = True
    op: ReduceOp = "sum"
    dtype: str = "float32"
    """Name of the elements, as of `Reduction`."""

    @property
    def reduction(self) -> Reduction:
        """The operation that is timed."""
        return Reduction(self.op, self.dtype)


class PlainPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data that ranks without a controller read from standard input: all ranks' addresses, and their job's
    secret."""

    peers: list[Peer]
    secret: Secret


class TimingCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time one algorithm at one size: ``warmup`` operations that do not count, then ``iterations`` that do."""

    algorithm: str
    nbytes: int
    iterations: int
    warmup: int
    check: bool


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurement of this rank: wall-clock and CPU seconds of one operation."""

    seconds: float
    cpu_seconds: float
    retransmissions: int
    wrong: int
    """Elements beyond the error bound of `count_wrong`, in the last operation."""
    path: str
    """The path of the operations, as the library explains it."""
    machine_busy: float
    """Share of all cores of the machine that were busy during the timed operations."""
    folded: bool = False
    """True if the switches folded all of the timed operations."""


class Allreducer(Protocol):
    """A library whose allreduce is timed."""

    def allreduce(self, source: Elements, out: Elements, algorithm: str) -> None:
        """Reduce ``source`` over all ranks into ``out``."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""

    def retransmissions(self) -> int:
        """Packets that this rank has sent again so far."""

    def folded(self) -> int:
        """Bytes of tensors that switches have folded so far."""

    def explain(self, nbytes: int, algorithm: str) -> str:
        """The path of a tensor of this size, in words."""

    def close(self) -> None:
        """Close all connections."""


class NetFold:
    """A NetFold communicator on the fabric; the algorithm "auto" leaves the choice to it."""

    def __init__(self, setup: RankSetup, job: str, rail: Any) -> None:
        from netfold.host.api.communicator import Communicator

        rank = int(os.environ["RANK"])
        settings: dict[str, Any] = {} if setup.lane_bits == 32 else {"lane_bits": setup.lane_bits}
        self._comm = Communicator.join(
            job, rank, setup.world, address=os.environ["NETFOLD_ADDRESS"], rail=rail, timeout=setup.timeout, **settings
        )
        # as programs call it: numpy has no bfloat16, and a dtype that is named is looked at again in each call
        self._op, self._dtype = setup.op, BFLOAT16 if setup.dtype == BFLOAT16 else None

    def allreduce(self, source: Elements, out: Elements, algorithm: str) -> None:
        self._comm.allreduce(source, out, self._op, dtype=self._dtype, algorithm=_own(algorithm))

    def barrier(self) -> None:
        self._comm.barrier()

    def retransmissions(self) -> int:
        return self._comm.stats().retransmissions

    def folded(self) -> int:
        return sum(tree.bytes_reduced for tree in self._comm.stats().by_tree.values())

    def explain(self, nbytes: int, algorithm: str) -> str:
        return self._comm.explain(nbytes, algorithm=_own(algorithm))

    def close(self) -> None:
        self._comm.close()


class PlainTcp:
    """NetFold's collectives over TCP between hosts without a controller."""

    def __init__(self, setup: RankSetup) -> None:
        from netfold.host.mesh.sockets import listen
        from netfold.host.mesh.tcp import TcpMesh
        from netfold.host.selection.peers import Peers

        rank, address = int(os.environ["RANK"]), os.environ["NETFOLD_ADDRESS"]
        listener = listen(address)
        print_message(Peer(rank, address, "{}:{}".format(*listener.getsockname())))
        others = msgspec.json.decode(sys.stdin.readline(), type=PlainPeers)
        plan = Plan("bridge", 1, rank, setup.world, others.peers, [], secret=others.secret)
        self._peers = Peers(TcpMesh(plan, listener, timeout=setup.timeout), algorithm="auto")
        self._reduction = setup.reduction

    def allreduce(self, source: Elements, out: Elements, algorithm: str) -> None:
        request = AllreduceRequest(source, out, self._reduction, algorithm=_own(algorithm) or "auto")
        carried = in_float32(request) if self._reduction.half else request
        self._peers.allreduce(carried)
        if carried is not request:
            round_to(request, carried.out)

    def barrier(self) -> None:
        self._peers.barrier()

    def retransmissions(self) -> int:
        return 0

    def folded(self) -> int:
        return 0

    def explain(self, nbytes: int, algorithm: str) -> str:
        own = _own(algorithm)
        return self._peers.explain(nbytes) if own is None else f"{own}, as asked for"

    def close(self) -> None:
        self._peers.close()


class Gloo:
    """The backend gloo of torch.distributed."""

    def __init__(self, setup: RankSetup) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        dist.init_process_group(
            "gloo", rank=int(os.environ["RANK"]), world_size=setup.world, timeout=timedelta(seconds=setup.timeout)
        )
        self._op, self._dtype = getattr(dist.ReduceOp, setup.op.upper()), getattr(torch, setup.dtype)

    def allreduce(self, source: Elements, out: Elements, algorithm: str) -> None:
        out[:] = source  # gloo works in place; the others read the one and write the other
        self._dist.all_reduce(self._torch.from_numpy(out.view(np.uint8)).view(self._dtype), self._op)

    def barrier(self) -> None:
        self._dist.barrier()

    def retransmissions(self) -> int:
        return 0

    def folded(self) -> int:
        return 0

    def explain(self, nbytes: int, algorithm: str) -> str:
        return f"gloo of torch {self._torch.__version__}"

    def close(self) -> None:
        self._dist.destroy_process_group()


def serve(setup: RankSetup, commands: Iterable[str | bytes]) -> None:
    """Open what the algorithms need, print {} once ready, then execute commands and print a `Timing` for each."""
    rank = int(os.environ["RANK"])
    with contextlib.ExitStack() as opened:
        allreducers: dict[str, Allreducer] = {}
        for algorithm in setup.algorithms:
            kind = kind_of(algorithm, setup)
            if kind not in allreducers:
                allreducer = allreducers[kind] = _open(kind, setup)
                opened.callback(allreducer.close)
        print_message({})
        for line in commands:
            command = msgspec.json.decode(line, type=TimingCommand)
            allreducer = allreducers[kind_of(command.algorithm, setup)]
            print_message(measure(allreducer, command, setup, rank))


def _open(kind: str, setup: RankSetup) -> Allreducer:
    if kind == "gloo":
        return Gloo(setup)
    if kind == "plain":
        return PlainTcp(setup)
    return NetFold(setup, f"bench-{kind}", kind)


def measure(allreducer: Allreducer, command: TimingCommand, setup: RankSetup, rank: int) -> Timing:
    """Execute one command: warm up, then time the operations back to back."""
    kind = setup.reduction
    source = data(setup.seed, rank, command.nbytes // kind.dtype.itemsize, kind)
    out = np.empty_like(source)
    for _ in range(command.warmup):
        allreducer.allreduce(source, out, command.algorithm)
    before, folded = allreducer.retransmissions(), allreducer.folded()
    allreducer.barrier()
    idle, total = idle_of_all()
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(command.iterations):
        allreducer.allreduce(source, out, command.algorithm)
    seconds = (time.perf_counter() - begin) / command.iterations
    cpu = (time.process_time() - busy) / command.iterations
    later_idle, later_total = idle_of_all()
    machine_busy = 1 - (later_idle - idle) / max(1, later_total - total)
    again, folded = allreducer.retransmissions() - before, allreducer.folded() - folded
    allreducer.barrier()  # checking must not take a core from a rank that is still being timed
    bits = setup.lane_bits if command.algorithm in ("innet", "auto") else 32
    wrong = count_wrong(out, setup.world, setup.seed, kind, bits) if command.check else 0
    return Timing(seconds, cpu, again, wrong, allreducer.explain(command.nbytes, command.algorithm), machine_busy,
                  folded >= command.iterations * source.nbytes > 0)


def idle_of_all() -> tuple[int, int]:
    """Ticks that the machine's cores were idle, and all ticks, since it started."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]  # guests are in user's already
    return ticks[3] + ticks[4], sum(ticks)


def kind_of(algorithm: str, setup: RankSetup) -> str:
    """Which `Allreducer` an algorithm needs: a rail of the communicator, "plain" without a controller, or "gloo"."""
    if algorithm == "gloo":
        return "gloo"
    if not setup.controller:
        return "plain"
    if algorithm in ("innet", "auto"):  # both fold, over the same trees
        return "auto"
    return algorithm if algorithm in ("roce", "verbs") else "tcp"


def _own(algorithm: str) -> str | None:
    """The algorithm to ask NetFold for; None leaves the choice to it, or to the rail."""
    return {"auto": None, "verbs": None, "roce": "ring"}.get(algorithm, algorithm)


def program(algorithms: Collection[str]) -> list[str]:
    """The command of ranks that time these algorithms; a `RankSetup` comes next."""
    return [sys.executable, "-m", f"netfold.topo.processes.{'gloo_rank' if 'gloo' in algorithms else 'allreduce_rank'}"]


def main() -> None:
    """Be a rank, as the arguments say."""
    serve(msgspec.json.decode(sys.argv[1], type=RankSetup), sys.argv[2:] or sys.stdin)


if __name__ == "__main__":
    main()
