# SPDX-License-Identifier: Apache-2.0
"""`netfold bench loss`: what lost packets cost in time, bytes on links and memory, and which switch answers repeats.

Every round starts a fabric of its own for each loss rate, with a seed of its own, and folds the same tensors.  A
round's time is the median of its operations, and an operation's is that of its slowest rank.  Ratios are to the same
round without loss, so that other load on the machine affects both alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from netfold.bench.harness import rank_programs
from netfold.bench.options.faults import LossOptions
from netfold.bench.ranks.loss import LossResult, LossTask
from netfold.fabric.folding.slots import sizes_of
from netfold.fabric.graph import Fabric
from netfold.host.innet.core import CREDITS_VARIABLE
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed
from netfold.wire import roce

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.wire.operator import Status

SECONDS: Final = 120.0
"""Seconds for all ranks of one round at one loss rate."""
STATE_BYTES: Final = 40
"""Bytes of a slot beside its words: slot_state, slot_headers and slot_content in p4src/fold.p4."""


class LossRow(msgspec.Struct, frozen=True):
    """One loss rate: medians over rounds.  Bytes are multiples of the tensor's size."""

    loss: float
    credits: str
    seconds: float
    ratio: float
    """Time over that of the same round without loss and without credits."""
    ratio_least: float
    ratio_most: float
    again: float
    """Part of the packets sent by ranks that was a retransmission."""
    timeouts: float
    """Time-outs of all ranks in an operation."""
    lost: float
    """Packets lost on purpose in an operation, on all links and of all kinds."""
    repeats_per_loss: float
    """Packets with data that ranks and switches sent again, over those that were lost; 0 where none was."""
    host_up: float
    """Bytes over a host's link to its leaf, the mean over hosts."""
    host_down: float
    leaf_up: float
    """Bytes from a leaf to all spines, the mean over leaves; 0 without spines."""
    levels: dict[str, float]
    """Repeats, NAKs and gaps in an operation by role of the switch and what became of them: "leaf answered", "spine
    gaps"... (`wire.operator.Outcomes`)."""
    slot_bytes: int
    """Bytes of the job's slots on the switch where it has most."""


def run(options: LossOptions) -> list[LossRow]:
    """Measure in a sandbox, and print and write the rows.  Raises FabricFailed."""
    sandbox.enter()
    from netfold.topo.network.net import Network

    rounds: dict[tuple[float, str], list[LossRound]] = {each: [] for each in product(options.shares, options.controls)}
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs:
        for number in range(options.rounds):
            for loss, credits in rounds:
                fabric = options.fabric(rundir=sandbox.rundir(), loss=loss, seed=options.seed + number)
                try:
                    with Network(fabric, logs=Path(logs)) as network:
                        rounds[loss, credits].append(_measure(network, options, credits))
                except FabricFailed as error:
                    raise type(error)(f"round {number + 1}, loss {loss:g}: {error}") from error
                print(f"round {number + 1}, loss {loss:g}{f', credits {credits}' if credits else ''}: "
                      f"{rounds[loss, credits][-1].seconds * 1e3:.1f} ms", file=sys.stderr)
    rows = [row_of(loss, credits, some, rounds[0.0, ""], options) for (loss, credits), some in rounds.items()]
    _show(rows, options)
    options.write(rows)
    return rows


@dataclass(frozen=True)
class LossRound:
    """One round at one loss rate."""

    seconds: float
    took: list[LossResult]
    status: Status
    """The fabric's status when all ranks had left; every packet since its start belongs to this job."""
    fabric: Fabric


def _measure(network: Any, options: LossOptions, credits: str) -> LossRound:
    work = LossTask(-(-options.bytes_of("nbytes", 1) // 4), options.iterations)
    took = rank_programs.results(network, "loss", work, LossResult, job="loss", within=SECONDS,
                                 env={CREDITS_VARIABLE: credits})
    slowest = [max(times) for times in zip(*(one.seconds for one in took), strict=True)]
    return LossRound(statistics.median(slowest), took, network.status(), network.fabric)


def row_of(
    loss: float, credits: str, rounds: Sequence[LossRound], clean: Sequence[LossRound], options: LossOptions
) -> LossRow:
    """The row of one loss rate, made of its rounds and of those without losses."""
    ratios = [one.seconds / base.seconds for one, base in zip(rounds, clean, strict=True)]
    # the switches' counters include the operation that warms up
    tensors = (options.iterations + 1) * options.bytes_of("nbytes", 1)

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values) if values else 0.0

    ups: list[float] = []
    downs: list[float] = []
    uplinks: list[float] = []
    levels: dict[str, float] = {}
    for one in rounds:
        roles = {switch.name: switch.role for switch in one.fabric.switches}
        leaf_up = {name: 0.0 for name, role in roles.items() if role == "leaf"}
        for link in one.status.links:
            a, b = link.a.partition(":")[0], link.b.partition(":")[0]
            for here, there, way in ((a, b, link.a_to_b), (b, a, link.b_to_a)):
                if here not in roles:
                    ups.append(way.bytes / tensors)
                elif there not in roles:
                    downs.append(way.bytes / tensors)
                elif here in leaf_up and there not in leaf_up:
                    leaf_up[here] += way.bytes / tensors
        uplinks += leaf_up.values()
        for switch in one.status.switches:
            counts = {**msgspec.structs.asdict(switch.folded), "gaps": switch.gaps}
            for what in (name for name in counts if name != "first"):
                count = counts[what] / ((options.iterations + 1) * len(rounds))
                levels[f"{switch.role} {what}"] = levels.get(f"{switch.role} {what}", 0.0) + count
    lost = sum(way.lost for one in rounds for link in one.status.links for way in (link.a_to_b, link.b_to_a))
    again = sum(t.retransmissions_ever for one in rounds for t in one.took)
    again += sum(switch.folded.answered + switch.folded.forwarded for one in rounds for switch in one.status.switches)
    job = rounds[0].status.jobs[0]
    held = max((sum(switch in tree.switches for tree in job.trees) for switch in
                {switch for tree in job.trees for switch in tree.switches}), default=0)
    slots = job.slots + sizes_of(options.engine, options.path_mtu).agreement
    return LossRow(
        loss, credits, statistics.median(one.seconds for one in rounds),
        statistics.median(ratios), min(ratios), max(ratios),
        again=sum(t.retransmissions for s in rounds for t in s.took) / sum(t.packets for s in rounds for t in s.took),
        timeouts=sum(t.timeouts for s in rounds for t in s.took) / (options.iterations * len(rounds)),
        lost=lost / ((options.iterations + 1) * len(rounds)), repeats_per_loss=again / lost if lost else 0.0,
        host_up=mean(ups), host_down=mean(downs), leaf_up=mean(uplinks),
        levels={name: count for name, count in levels.items() if count},
        slot_bytes=held * slots * (options.path_mtu + STATE_BYTES),
    )


def theory(nbytes: int, path_mtu: int) -> float:
    """Bytes of the frames (Ethernet without FCS) that carry a tensor of ``nbytes``, as a multiple of its size.

    So much crosses a host's link in each direction, and leaves each leaf upwards, where nothing is lost.
    """
    packets = -(-nbytes // path_mtu)
    frame = roce.ETHERNET_BYTES + roce.ip_packet_bytes(roce.Opcode.WRITE_MIDDLE, path_mtu)
    return packets * frame / nbytes


def _show(rows: Sequence[LossRow], options: LossOptions) -> None:
    from rich.table import Table

    from netfold import terminal

    console = terminal.console()
    nbytes = options.bytes_of("nbytes", 1)
    console.print(
        f"{options.in_words}, path MTU {options.path_mtu}; {options.nbytes} bytes of int32; "
        f"{options.rounds} rounds of {options.iterations} operations. The job's slots take "
        f"{rows[0].slot_bytes / 2**20:.2f} MiB of a switch. Theory without loss: "
        f"{theory(nbytes, options.path_mtu):.3f} of the tensor over a host's link each way, and up from a leaf."
    )
    table = Table("loss", "credits", "ms", "times (least..most)", "sent again", "lost", "repeats per loss", "time-outs",
                  "host up", "host down", "leaf up", box=None)
    for row in rows:
        table.add_row(f"{row.loss:g}", row.credits or "-", f"{row.seconds * 1e3:.1f}",
                      f"{row.ratio:.2f} ({row.ratio_least:.2f}..{row.ratio_most:.2f})", f"{row.again:.2%}",
                      f"{row.lost:.0f}", f"{row.repeats_per_loss:.2f}" if row.lost else "-", f"{row.timeouts:.1f}",
                      f"{row.host_up:.3f}", f"{row.host_down:.3f}", f"{row.leaf_up:.3f}")
    console.print(table)
    console.print("Repeats, NAKs and gaps in an operation, by who saw them and what became of them:")
    for row in rows:
        levels = ", ".join(f"{name} {count:.0f}" for name, count in row.levels.items() if count >= 0.5)
        console.print(f"  {row.loss:g}{f', {row.credits}' if row.credits else ''}: {levels or 'none'}")

