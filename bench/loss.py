# SPDX-License-Identifier: Apache-2.0
"""`netfold bench loss`: what lost packets cost: time, bytes on links, who answers repeats, memory.

Every round brings the fabric up anew at each share of losses, with a seed of its own, and folds the same tensors; a
round's time is the median of its operations, an operation's that of its slowest rank.  Figures are ratios to the same
round without loss: what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from netfold.fabric.graph import Engine, Fabric
from netfold.host.innet.native import CREDITS_VARIABLE, Credits
from netfold.topo import sandbox
from netfold.topo.failures import FabricFailed
from netfold.wire import roce

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.wire.operator import Status

SECONDS: Final = 120.0
"""For all ranks of one round at one share."""
LANES_BYTES: Final = 4 * roce.LANES
STATE_BYTES: Final = 16
"""Of a slot, beside its words: slot_state of p4src/fold.p4."""


@dataclass(frozen=True)
class LossSpec:
    """What to measure."""

    topo: str
    engine: Engine
    rate: str
    nbytes: int
    operations: int
    rounds: int
    losses: tuple[float, ...]
    seed: int
    credits: tuple[str, ...]
    """What bounds what is in flight, in turn: as NETFOLD_CREDITS has it; "": the window alone."""


class LossWork(msgspec.Struct, frozen=True):
    """What a rank does: one sum to warm up, then so many timed ones of int32."""

    elements: int
    operations: int


class LossTimes(msgspec.Struct, frozen=True):
    """Of one rank."""

    seconds: list[float]
    retransmissions: int
    packets: int
    timeouts: int


class LossRow(msgspec.Struct, frozen=True):
    """One share of losses: medians over rounds.  Bytes are multiples of the tensor's."""

    loss: float
    credits: str
    seconds: float
    ratio: float
    """To the same round without loss, and without credits."""
    ratio_least: float
    ratio_most: float
    again: float
    """Packets sent again, of all that ranks sent."""
    timeouts: float
    """In an operation, all ranks together."""
    host_up: float
    """Over a host's link to its leaf, mean."""
    host_down: float
    leaf_up: float
    """From a leaf to all spines together, mean; 0 where there are none."""
    levels: dict[str, float]
    """Repeats in an operation: "leaf answered", "leaf waited", "spine answered", ..."""
    slot_bytes: int
    """Of the job, on the switch where it has most."""


def rank(work: LossWork) -> None:
    """One rank: prints its `LossTimes`.  Raises AssertionError for a wrong sum."""
    import netfold

    with netfold.init(rail="innet", timeout=60.0) as comm:
        source, out = np.full(work.elements, comm.rank + 1, np.int32), np.empty(work.elements, np.int32)
        comm.allreduce(source, out)
        before, seconds = comm.stats(), []
        for _ in range(work.operations):
            begin = time.perf_counter()
            comm.allreduce(source, out)
            seconds.append(time.perf_counter() - begin)
            assert (out == comm.size * (comm.size + 1) // 2).all(), "a wrong sum"
        after = comm.stats()
        timeouts = sum(tree.timeouts - before.by_tree[name].timeouts for name, tree in after.by_tree.items())
        took = LossTimes(
            seconds, after.retransmissions - before.retransmissions, after.packets_sent - before.packets_sent, timeouts
        )
        print(msgspec.json.encode(took).decode(), flush=True)


def spec(
    *, topo: str, engine: Engine, rate: str, nbytes: int, operations: int, rounds: int, losses: str, seed: int,
    credits: str = "",
) -> LossSpec:
    """From the command line's words.  Raises ValueError that names the option."""
    from netfold.fabric import generate

    for option, value in (("--operations", operations), ("--rounds", rounds), ("--bytes", nbytes)):
        if value < 1:
            raise ValueError(f"{option} {value}: expected 1 or more")
    try:
        shares = tuple(sorted({0.0, *(float(share) for share in losses.split(","))}))
    except ValueError as error:
        raise ValueError(f"--losses {losses}: expected shares with commas, as 0.001,0.01") from error
    generate.parse(topo, rate=rate, engine=engine, loss=shares[-1], seed=seed)
    beside = tuple(credits.split(",")) if credits else ()
    for one in beside:
        Credits.parse(one)
    return LossSpec(topo, engine, rate, nbytes, operations, rounds, shares, seed, ("", *beside))


def run(spec: LossSpec, file: Path | None = None) -> list[LossRow]:
    """Measure in a sandbox, print the rows, and write them to ``file`` as JSON.  Raises FabricFailed."""
    sandbox.enter()
    from netfold.fabric.generate import parse
    from netfold.topo.net import Network

    shots: dict[tuple[float, str], list[_Shot]] = {each: [] for each in product(spec.losses, spec.credits)}
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs:
        for number in range(spec.rounds):
            for loss, credits in shots:
                fabric = parse(spec.topo, rate=spec.rate, engine=spec.engine, rundir=sandbox.rundir(), loss=loss,
                               seed=spec.seed + number)
                try:
                    with Network(fabric, logs=Path(logs)) as network:
                        shots[loss, credits].append(_shoot(network, spec, credits))
                except FabricFailed as error:
                    raise FabricFailed(f"round {number + 1}, loss {loss:g}: {error}") from error
                print(f"round {number + 1}, loss {loss:g}{f', credits {credits}' if credits else ''}: "
                      f"{shots[loss, credits][-1].seconds * 1e3:.1f} ms", file=sys.stderr)
    rows = [_row(loss, credits, some, shots[spec.losses[0], ""], spec) for (loss, credits), some in shots.items()]
    _show(rows, spec)
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    return rows


@dataclass(frozen=True)
class _Shot:
    """One round at one share."""

    seconds: float
    took: list[LossTimes]
    status: Status
    """When all ranks had left: every packet since the fabric came up is of this job."""
    fabric: Fabric


def _shoot(network: Any, spec: LossSpec, credits: str) -> _Shot:
    work = LossWork(-(-spec.nbytes // 4), spec.operations)
    command = [sys.executable, "-m", "netfold.bench.loss", msgspec.json.encode(work).decode()]
    lines = network.launch(command, job="loss", env={CREDITS_VARIABLE: credits}).wait(within=SECONDS)
    took = [msgspec.json.decode(said[-1], type=LossTimes) for said in lines]
    slowest = [max(times) for times in zip(*(one.seconds for one in took), strict=True)]
    return _Shot(statistics.median(slowest), took, network.status(), network.fabric)


def _row(loss: float, credits: str, shots: Sequence[_Shot], clean: Sequence[_Shot], spec: LossSpec) -> LossRow:
    ratios = [shot.seconds / base.seconds for shot, base in zip(shots, clean, strict=True)]
    tensors = (spec.operations + 1) * spec.nbytes  # bytes are counted with the operation to warm up

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values) if values else 0.0

    ups: list[float] = []
    downs: list[float] = []
    uplinks: list[float] = []
    levels: dict[str, float] = {}
    for shot in shots:
        roles = {switch.name: switch.role for switch in shot.fabric.switches}
        leaf_up = {name: 0.0 for name, role in roles.items() if role == "leaf"}
        for link in shot.status.links:
            a, b = link.a.partition(":")[0], link.b.partition(":")[0]
            if b in roles:
                if a in leaf_up:
                    leaf_up[a] += link.a_to_b.bytes / tensors
            else:
                downs.append(link.a_to_b.bytes / tensors)
                ups.append(link.b_to_a.bytes / tensors)
        uplinks += leaf_up.values()
        for switch in shot.status.switches:
            for what in ("answered", "asked", "waited", "late", "repeated"):
                count = getattr(switch.folded, what) / ((spec.operations + 1) * len(shots))
                levels[f"{switch.role} {what}"] = levels.get(f"{switch.role} {what}", 0.0) + count
    job = shots[0].status.jobs[0]
    held = max((sum(switch in tree.switches for tree in job.trees) for switch in
                {switch for tree in job.trees for switch in tree.switches}), default=0)
    return LossRow(
        loss, credits, statistics.median(shot.seconds for shot in shots),
        statistics.median(ratios), min(ratios), max(ratios),
        again=sum(t.retransmissions for s in shots for t in s.took) / sum(t.packets for s in shots for t in s.took),
        timeouts=sum(t.timeouts for s in shots for t in s.took) / (spec.operations * len(shots)),
        host_up=mean(ups), host_down=mean(downs), leaf_up=mean(uplinks),
        levels={name: count for name, count in levels.items() if count},
        slot_bytes=held * job.slots * (LANES_BYTES + STATE_BYTES),
    )


def theory(nbytes: int) -> float:
    """Bytes of all frames of a tensor (Ethernet without FCS), as a multiple of its own: over a host's link each way,
    and from each leaf up."""
    packets = -(-nbytes // LANES_BYTES)
    frame = 14 + roce.IPV4_BYTES + roce.UDP_BYTES + roce.data_packet_bytes(roce.Opcode.WRITE_MIDDLE)
    return packets * frame / nbytes


def _show(rows: Sequence[LossRow], spec: LossSpec) -> None:
    from rich.table import Table

    from netfold import terminal

    console = terminal.console()
    console.print(
        f"{spec.topo} on {spec.engine}, {spec.rate} links, {spec.nbytes} bytes of int32; {spec.rounds} rounds "
        f"of {spec.operations} operations. The job's slots take {rows[0].slot_bytes / 2**20:.2f} MiB of a switch. "
        f"Theory without loss: {theory(spec.nbytes):.3f} of the tensor over a host's link each way, and up from a leaf."
    )
    table = Table("loss", "credits", "ms", "times (least..most)", "sent again", "time-outs", "host up", "host down",
                  "leaf up", box=None)
    for row in rows:
        table.add_row(f"{row.loss:g}", row.credits or "-", f"{row.seconds * 1e3:.1f}",
                      f"{row.ratio:.2f} ({row.ratio_least:.2f}..{row.ratio_most:.2f})", f"{row.again:.1%}",
                      f"{row.timeouts:.1f}", f"{row.host_up:.3f}", f"{row.host_down:.3f}", f"{row.leaf_up:.3f}")
    console.print(table)
    console.print("Repeats in an operation, by who saw them and what became of them:")
    for row in rows:
        levels = ", ".join(f"{name} {count:.0f}" for name, count in row.levels.items() if count >= 0.5)
        console.print(f"  {row.loss:g}{f', {row.credits}' if row.credits else ''}: {levels or 'none'}")


if __name__ == "__main__":
    rank(msgspec.json.decode(sys.argv[1], type=LossWork))
