# SPDX-License-Identifier: Apache-2.0
"""The demo's results: the record, its JSON file, and the tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netfold.disk import files
from netfold.wire.operator import LinkStatus


class LinkBytes(msgspec.Struct, frozen=True):
    """Bytes on one link, from a to b and back, as the switches counted them: Ethernet frames without FCS."""

    a: str
    b: str
    there: int
    back: int
    ring_there: int
    """Bytes from a to b that a ring allreduce of the same gradients takes."""
    ring_back: int
    lost: int
    """Packets that the switches dropped on purpose, in both directions."""


class TreeTotals(msgspec.Struct, frozen=True):
    """Totals of one tree, summed over all ranks."""

    root: str
    gradient_bytes: int
    packets_sent: int
    retransmissions: int


class NicTotals(msgspec.Struct, frozen=True):
    """Packets that the RDMA device of one virtual machine sent, repeated and acknowledged during training."""

    host: str
    data_sent: int
    needed: int
    """Data packets that the gradients take; what was sent beyond them was sent again."""
    acknowledgements_sent: int
    """ACKs, NAKs and RNR NAKs."""
    acknowledgements_received: int
    naks_received: int
    rnr_received: int
    duplicates_received: int
    errors: int
    """Retries that were used up, and packets that could not be sent."""


class AllreduceTime(msgspec.Struct, frozen=True):
    """Seconds of one allreduce of one gradient by one algorithm over these links, on the slowest rank."""

    way: str
    seconds: float | None
    problem: str = ""
    """Why there is no time."""


class DemoReport(msgspec.Struct, frozen=True):
    """Everything that a run of the demo measured; sizes in bytes, times in seconds."""

    engine: str
    hosts: str
    """The workers' hosts: "namespaces", with NetFold's end points, or "rxe", virtual machines with Linux's RDMA
    stack."""
    ranks: int
    leaves: int
    spines: int
    rate: str | None
    loss_rate: float
    seed: int
    steps: int
    seconds: float
    """Duration of the training."""
    seconds_in_allreduce: float
    rail: str
    """The rail that carried the gradients: "innet", or "tcp" if the switches did not fold."""
    explain: str
    final_weights_equal: bool
    """True if all ranks ended with the same weights, bit for bit."""
    weights_sha256: str
    max_abs_diff_vs_single: float
    """Largest difference between a final weight and that of the training in a single process."""
    loss: float
    loss_single: float
    accuracy: float
    accuracy_single: float
    gradient_bytes: int
    """Size of the gradient of one step, as float32."""
    lane_bits: int
    """Bits of an element in a packet."""
    bytes_per_host_link: float
    """Mean over the links of all hosts and both directions, during training."""
    ring_bytes_per_host_link: float | None
    """The same for a ring allreduce of the same gradients, measured over these links."""
    retransmissions: int
    packets_sent: int
    packets_lost: int
    """Packets that the switches dropped on purpose, on all links."""
    packets_folded: int
    """Packets that the workers' own switches took into slots, each once, during training."""
    nic_retransmissions: int | None
    """Data packets that the workers' RDMA devices sent again; None where there are none."""
    nics: list[NicTotals]
    trees: list[TreeTotals]
    times: list[AllreduceTime]
    links: list[LinkBytes]

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        files.replace(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


Traffic = dict[tuple[str, str], tuple[int, int, int]]
"""For each link (a, b): bytes from a to b, bytes from b to a, packets dropped on purpose."""


def traffic(links: Sequence[LinkStatus]) -> Traffic:
    """The counters of all links, as the controller reports them."""
    return {
        (link.a, link.b): (link.a_to_b.bytes, link.b_to_a.bytes, link.a_to_b.lost + link.b_to_a.lost) for link in links
    }


def difference(before: Traffic, after: Traffic) -> Traffic:
    """The traffic between two readings."""
    return {
        link: (there - before[link][0], back - before[link][1], lost - before[link][2])
        for link, (there, back, lost) in after.items()
    }


def link_bytes(training: Traffic, ring: Traffic | None, scale: float) -> list[LinkBytes]:
    """The training and the ring side by side; the ring's bytes times ``scale`` stand for as many steps."""
    idle = dict.fromkeys(training, (0, 0, 0))
    return [
        LinkBytes(
            a, b, there, back, round((ring or idle)[a, b][0] * scale), round((ring or idle)[a, b][1] * scale), lost
        )
        for (a, b), (there, back, lost) in training.items()
    ]


def host_link_bytes(traffic_: Traffic, hosts: set[str]) -> float:
    """Bytes on a host's link: the mean over all hosts and both directions."""
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
    equal = "equal, bit for bit" if report.final_weights_equal else Text("NOT EQUAL", "bold red")
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
    folded = f"{report.packets_folded} packets"
    main.add_row("folded", folded, "contributions and results, at the leaves, each once")
    for tree in report.trees:
        sent = f"{tree.packets_sent} packets, {tree.retransmissions} again"
        main.add_row(f"tree {tree.root}", f"{size(tree.gradient_bytes)} of gradients", sent)
    console.print(main)
    console.print()
    if report.nics:
        _show_nics(report, console)
    links = Table(title="Bytes on every link", title_justify="left", show_edge=False)
    for heading in ("link", "there", "back", "ring there", "ring back", "lost"):
        links.add_column(heading, justify="left" if heading == "link" else "right")
    for load in report.links:
        ring_columns = (size(load.ring_there), size(load.ring_back)) if ring else ("-", "-")
        links.add_row(f"{load.a} - {load.b}", size(load.there), size(load.back), *ring_columns, str(load.lost))
    console.print(links)


def _show_nics(report: DemoReport, console: Console) -> None:
    nics = Table(title="Packets of the kernels' RDMA devices (rdma_rxe)", title_justify="left", show_edge=False)
    headings = ("host", "data sent", "of these again", "ACKs sent", "ACKs received", "NAKs received", "RNR received",
                "data twice", "errors")
    for heading in headings:
        nics.add_column(heading, justify="left" if heading == "host" else "right")
    for nic in report.nics:
        nics.add_row(nic.host, *map(str, (
            nic.data_sent, nic.data_sent - nic.needed, nic.acknowledgements_sent, nic.acknowledgements_received,
            nic.naks_received, nic.rnr_received, nic.duplicates_received, nic.errors,
        )))
    console.print(nics)
    console.print()


def size(count: float) -> str:
    """Bytes as text with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} GB"


def _seconds(time: AllreduceTime) -> str:
    return f"{time.seconds * 1e3:.1f} ms" if time.seconds is not None else f"- ({time.problem})"
