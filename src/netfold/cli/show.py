# SPDX-License-Identifier: Apache-2.0
"""Prints a status as tables of switches, links and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netfold import terminal
from netfold.terminal import said
from netfold.wire.operator import JobStatus, LinkStatus, Punts, RoundStatus, Status, SwitchStatus, Traffic
from netfold.wire.stalls import JobSlots

SHOWN: Final = 16
"""Ranks that are listed one by one."""


def show(status: Status, console: Console | None = None) -> None:
    """Print a status."""
    console = console or terminal.console()
    up = sum(switch.up for switch in status.switches)
    console.print(said("fabric ", (status.fabric, "bold"), f" on {status.engine}, controller up {status.uptime:.0f} s, "
                       f"{up} of {len(status.switches)} switches up"))
    switches = Table("switch", "role", "P4Runtime", "state", "entries", "slots", "corrupt", "refused", "repeats",
                     "punts dropped", box=None)
    for s in status.switches:
        state = words(s.up, s.drained, s.problem)
        switches.add_row(s.name, s.role, s.grpc, state, str(s.entries), f"{s.slots_used}/{s.slots}", str(s.corrupt),
                         _refused(s), _repeats(s), _punts(s.punts))
    console.print(switches)
    links = Table("link", "state", "rate", "faults", "there", "back", "done there/back", "gaps there/back", box=None)
    for link in status.links:
        there, back = link.a_to_b, link.b_to_a
        state = words(link.up, link.drained, link.problem)
        links.add_row(f"{link.a} - {link.b}", state, link.rate or "-", _faults(link), _traffic(there),
                      _traffic(back), f"{_done(there)} / {_done(back)}", f"{there.gaps} / {back.gaps}")
    console.print(links)
    for job in status.jobs:
        _job(console, job)
    if not status.jobs:
        console.print("no jobs")


def words(up: bool, drained: bool, why: str = "") -> Text:
    """The state of a switch or link, and a reason."""
    return said(("up", "green") if up else ("down", "red"), ", " if drained else "",
                ("drained" if drained else "", "yellow"), f": {why}" if why else "")


def show_slots(switch: str, jobs: Sequence[JobSlots], console: Console | None = None) -> None:
    """Print the open slots of a switch."""
    console = console or terminal.console()
    if not jobs:
        console.print(f"no job holds slots of {switch}")
    for job in jobs:
        console.print(said("job ", (job.job, "bold"), f", epoch {job.epoch}: {len(job.open)} of {job.probed} slots of "
                           f"{switch} are open"))
        if not job.open:
            continue
        table = Table("tree", "operation", "slot", "PSN", "bitmap", "in", "missing", box=None)
        for s in job.open:
            missing = " ".join(s.missing) or "nothing: waits for the result from above"
            table.add_row(s.tree, s.operation, str(s.slot), str(s.psn), f"{s.bitmap:#x}", " ".join(s.present), missing)
        console.print(table)


def _job(console: Console, job: JobStatus) -> None:
    epoch = f", epoch {job.epoch}" if job.epoch else ""
    kind = "group" if job.group_of else "job"
    console.print(said(f"{kind} ", (job.name, "bold"), f": {job.state}{epoch}, {len(job.joined)} of {job.world} ranks "
                       f"joined, {len(job.left)} left", (f", {len(job.lost)} lost" if job.lost else "", "red")))
    if job.reason:
        console.print(f"  {job.reason}", style="yellow")
    if job.rc:
        waits = f"; waits for the queue pairs of {_ranks(job.unconnected)}" if job.unconnected else ""
        windowed = len(job.joined) - len(job.rc)
        console.print(f"  {_ranks(job.rc)} by queue pairs of their NICs, {windowed} windowed{waits}")
    for tree in job.trees:
        ways = "; ".join(f"{switch} <- {' '.join(children)}" for switch, children in tree.switches.items())
        console.print(f"  tree {tree.root}, weight {tree.weight:.2f}, {job.slots} slots: {ways}")
        if tree.links:
            console.print(f"    over {', '.join(tree.links)}")
    if job.round is not None:
        console.print(f"  {round_words(job.round)}", style="yellow")
    if job.stays:
        console.print(f"  {job.stays}", style="yellow")
    if job.reports:
        sent = sum(r.packets_sent for r in job.reports)  # ranks count them when they leave
        console.print(f"  {sum(r.bytes_reduced for r in job.reports) / 1e6:.1f} MB reduced over all ranks, "
                      f"{f'{sent} packets sent, ' if sent else ''}"
                      f"{sum(r.retransmissions for r in job.reports)} sent again")


def _ranks(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {some}"


def round_words(last: RoundStatus) -> str:
    """How often a job's trees were planned anew, and the reason and duration of the last time."""
    times = "once" if last.number == 1 else f"{last.number} times"
    end = f"went on after {last.took * 1e3:.0f} ms" if last.took is not None else "the ranks stand still"
    problem = f" ({last.problem})" if last.took is None and last.problem else ""
    return f"trees planned anew {times}, last {last.ago:.0f} s ago: {last.why}; {end}{problem}"


def _traffic(traffic: Traffic) -> str:
    return f"{traffic.packets} packets, {traffic.bytes / 1e6:.2f} MB"


_FAULTS: Final = (("loss", "lost"), ("corrupt", "corrupted"), ("duplicate", "duplicated"), ("reorder", "held"))
"""A link's faults, each with the field of Traffic that counts it."""


def _repeats(switch: SwitchStatus) -> str:
    """Counts of repeats and NAKs by what became of them, and of gaps: answered here, asked of the level above, ..."""
    counts = {**msgspec.structs.asdict(switch.folded), "gaps": switch.gaps}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count and name != "first") or "-"


def _punts(punts: Punts) -> str:
    """Counts of packets for the CPU port that did not reach the controller, by why."""
    counts = {"refused": punts.refused, "over rate": punts.over_rate, "dropped": punts.dropped}
    return ", ".join(f"{count} {why}" for why, count in counts.items() if count) or "-"


def _refused(switch: SwitchStatus) -> str:
    """Counts of packets that a switch did not let in, by reason."""
    return ", ".join(f"{count} {name}" for name in ("spoofed", "unassigned", "unfolded")
                     if (count := getattr(switch, name))) or "-"


def _faults(link: LinkStatus) -> str:
    return ", ".join(f"{fault} {share:g}" for fault, _ in _FAULTS if (share := getattr(link, fault))) or "-"


def _done(traffic: Traffic) -> str:
    names = (*(done for _, done in _FAULTS), "spoofed")
    return ", ".join(f"{count} {done}" for done in names if (count := getattr(traffic, done))) or "-"
