# SPDX-License-Identifier: Apache-2.0
"""What the demo measured: a record, its JSON file, and the table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from netfold.wire.operator import LinkStatus


class LinkBytes(msgspec.Struct, frozen=True):
    """Bytes over one link, there (a to b) and back, as the switches counted them: Ethernet frames without FCS."""

    a: str
    b: str
    there: int
    back: int
    ring_there: int
    """What a ring allreduce of the same gradients puts there."""
    ring_back: int
    lost: int
    """Packets lost on purpose, both ways."""


class Carried(msgspec.Struct, frozen=True):
    """What one tree carried, all ranks together."""

    root: str
    gradient_bytes: int
    packets_sent: int
    retransmissions: int


class Time(msgspec.Struct, frozen=True):
    """One allreduce of one gradient by one way over these links; slowest rank, median of several."""

    way: str
    seconds: float | None
    problem: str = ""
    """Why there is no time."""


class DemoReport(msgspec.Struct, frozen=True):
    """Everything that a run of the demo found out; sizes in bytes, times in seconds."""

    engine: str
    ranks: int
    leaves: int
    spines: int
    rate: str | None
    loss_rate: float
    seed: int
    steps: int
    seconds: float
    """Of training."""
    seconds_in_allreduce: float
    rail: str
    """How the gradients travelled: "innet", or "tcp" where the switches did not fold."""
    explain: str
    final_weights_equal: bool
    """Bit for bit on all ranks."""
    weights_sha256: str
    max_abs_diff_vs_single: float
    """Largest difference of a final weight from the single-process run's."""
    loss: float
    loss_single: float
    accuracy: float
    accuracy_single: float
    gradient_bytes: int
    """Of one step, as float32."""
    lane_bits: int
    """Bits that an element has on its way through the switches."""
    bytes_per_host_link: float
    """Mean over the hosts' links and both directions, during training."""
    ring_bytes_per_host_link: float | None
    """The same for a ring allreduce of the same gradients, measured over these links."""
    retransmissions: int
    packets_sent: int
    packets_lost: int
    """On purpose, on all links."""
    trees: list[Carried]
    times: list[Time]
    links: list[LinkBytes]

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


Traffic = dict[tuple[str, str], tuple[int, int, int]]
"""Link (a, b) -> bytes there, bytes back, packets lost on purpose."""


def traffic(links: Sequence[LinkStatus]) -> Traffic:
    """What the controller's counters say."""
    return {
        (link.a, link.b): (link.a_to_b.bytes, link.b_to_a.bytes, link.a_to_b.lost + link.b_to_a.lost) for link in links
    }


def between(before: Traffic, after: Traffic) -> Traffic:
    """What was added."""
    return {
        link: (there - before[link][0], back - before[link][1], lost - before[link][2])
        for link, (there, back, lost) in after.items()
    }


def loads(training: Traffic, ring: Traffic | None, scale: float) -> list[LinkBytes]:
    """Both side by side; the ring's is ``scale`` times what was measured, which makes it that of as many steps."""
    idle = dict.fromkeys(training, (0, 0, 0))
    return [
        LinkBytes(
            a, b, there, back, round((ring or idle)[a, b][0] * scale), round((ring or idle)[a, b][1] * scale), lost
        )
        for (a, b), (there, back, lost) in training.items()
    ]


def host_link_bytes(traffic_: Traffic, hosts: set[str]) -> float:
    """Mean over hosts' links and directions."""
    mine = [
        count
        for ends, counts in traffic_.items()
        if {end.rpartition(":")[0] for end in ends} & hosts
        for count in counts[:2]
    ]
    return sum(mine) / len(mine)


def show(report: DemoReport, console: Console) -> None:
    """Print the tables."""
    main = Table(title="Trained through the fabric", title_justify="left", show_edge=False)
    for heading in ("", "through the switches", "for comparison"):
        main.add_column(heading)
    equal = "equal, bit for bit" if report.final_weights_equal else "[bold red]NOT EQUAL[/bold red]"
    main.add_row("weights of all ranks", equal, f"sha256 {report.weights_sha256[:16]}")
    main.add_row("loss", f"{report.loss:.6f}", f"{report.loss_single:.6f} single process")
    main.add_row("accuracy", f"{report.accuracy:.2%}", f"{report.accuracy_single:.2%} single process")
    main.add_row("a weight is off by", f"{report.max_abs_diff_vs_single:.2g} at most", "from single process")
    ring, ours = report.ring_bytes_per_host_link, report.bytes_per_host_link
    ratio = "ring not measured" if ring is None else f"ring {size(ring)}, {ring / ours:.2f} times"
    main.add_row("a host link, each way", size(ours), ratio)
    innet, *others = report.times
    compared = "\n".join(f"{time.way} {_seconds(time)}" for time in others)
    lanes = "" if report.lane_bits == 32 else f", in lanes of {report.lane_bits} bits"
    main.add_row(f"allreduce of {size(report.gradient_bytes)}", f"{_seconds(innet)}{lanes}", compared)
    main.add_row("lost on purpose", f"{report.packets_lost} packets", f"{report.retransmissions} sent again")
    for tree in report.trees:
        sent = f"{tree.packets_sent} packets, {tree.retransmissions} again"
        main.add_row(f"tree {tree.root}", f"{size(tree.gradient_bytes)} of gradients", sent)
    console.print(main)
    console.print()
    links = Table(title="Bytes on every link", title_justify="left", show_edge=False)
    for heading in ("link", "there", "back", "ring there", "ring back", "lost"):
        links.add_column(heading, justify="left" if heading == "link" else "right")
    for load in report.links:
        ring_columns = (size(load.ring_there), size(load.ring_back)) if ring else ("-", "-")
        links.add_row(f"{load.a} - {load.b}", size(load.there), size(load.back), *ring_columns, str(load.lost))
    console.print(links)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} GB"


def _seconds(time: Time) -> str:
    return f"{time.seconds * 1e3:.1f} ms" if time.seconds is not None else f"- ({time.problem})"
