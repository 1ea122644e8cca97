# SPDX-License-Identifier: Apache-2.0
"""`netfold top`: a running fabric in a terminal, once a second: rates of links, slots, jobs, trees, events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netfold.cli.common import awaited
from netfold.cli.controllers import controller_of
from netfold.cli.options import Address, Json, RunningFabric

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from netfold.controller.operations.rates import DirectionRate, Rates
    from netfold.wire.operator import FabricEvent, JobStatus, Status, SwitchStatus

EVENTS: Final = 8
"""Events that are shown, the last ones."""


def top(
    file: RunningFabric = None,
    controller: Address = None,
    interval: Annotated[float, typer.Option("-d", "--interval", min=0.1, help="Seconds between two readings.")] = 1.0,
    rounds: Annotated[int | None, typer.Option("-n", "--rounds", min=1,
        help="Number of readings; default: until Ctrl-C.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One reading, for scripts: the same as -n 1.")] = False,
    json: Json = False,
) -> None:
    """Watch a running fabric: what links carry, slots in use, jobs with trees and progress, and what happens.

    Rates are from each switch's own readings, and never above the link's; "-": not known, since a switch does not
    answer or was started anew. In a pipe or a file every look is printed below the one before.
    """
    from rich.live import Live

    from netfold import terminal
    from netfold.controller.operations.rates import Rates

    (address, token), rates = controller_of(file, controller), Rates()
    looks: range | itertools.count[int] = itertools.count() if rounds is None else range(rounds)
    before, console = awaited(_look(address, token, 0)), terminal.console()
    events: list[FabricEvent] = []
    rates.update(before[0])
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError))
        shows_live = console.is_terminal and not json
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if shows_live else None
        for _ in range(1) if once else looks:
            events = [*events, *before[1]][-EVENTS:]
            time.sleep(interval)
            now = awaited(_look(address, token, events[-1].seq if events else 0))
            if json:
                print(look_in_json(now[0], rates, now[1]), flush=True)
                before = now
                continue
            picture = screen(before[0], now[0], rates, [*events, *now[1]][-EVENTS:])
            if live is not None:
                live.update(picture, refresh=True)
            else:
                console.print(picture)
            before = now


async def _look(address: str, token: str, since: int) -> tuple[Status, list[FabricEvent]]:
    """The status now, and the events after number ``since``: none for a caller who may not read them."""
    from netfold.controller import client
    from netfold.rpc.rpc import CallRefused

    status = await client.status(address, token=token)
    try:
        return status, await client.events(address, since, token=token)
    except CallRefused:
        return status, []


def look_in_json(now: Status, rates: Rates, events: Sequence[FabricEvent]) -> str:
    """A line with the status, the rates since the one before, which ``rates`` has had, and the events since then."""
    from netfold import plain_text

    told = rates.update(now)
    links = [{"there": link.there._asdict(), "back": link.back._asdict()} for link in told.links]
    switches = [switch._asdict() for switch in told.switches]
    rates_now = {"links": links, "switches": switches}
    return plain_text.json_line({"status": now, "rates": rates_now, "events": list(events)})


def screen(before: Status, now: Status, rates: Rates, events: Sequence[FabricEvent] = ()) -> Group:
    """Tables of a status with the rates since the one before, which ``rates`` has had."""
    from rich.console import Group
    from rich.table import Table

    from netfold.cli.show import words

    told = rates.update(now)
    switches = Table("switch", "state", "slots", "folded/s", "repeats/s", "gaps/s", "corrupt/s", "refused/s", box=None)
    for old, new, rate in zip(before.switches, now.switches, told.switches, strict=True):
        switches.add_row(new.name, words(new.up, new.drained, new.problem), f"{new.slots_used}/{new.slots}",
                         _number(rate.folded), _number(rate.repeats), _per_second(old, new, old.gaps, new.gaps),
                         _per_second(old, new, old.corrupt, new.corrupt),
                         _per_second(old, new, _refused(old), _refused(new)))
    links = Table("link", "state", "rate", "there Mb/s", "back Mb/s", "packets/s", "lost/s", box=None)
    for link, way in zip(now.links, told.links, strict=True):
        links.add_row(f"{link.a} - {link.b}", words(link.up, link.drained, link.problem), link.rate or "-",
                      _megabits(way.there), _megabits(way.back), _sum(way.there.packets, way.back.packets),
                      _sum(way.there.lost, way.back.lost))
    up = sum(switch.up for switch in now.switches)
    head = f"fabric {now.fabric} on {now.engine}, up {now.uptime:.0f} s, {up} of {len(now.switches)} switches up"
    return Group(head, switches, links, *_jobs(now), *([_events(events)] if events else []))


def _jobs(now: Status) -> list[Table]:
    """Jobs that have not ended, and their trees."""
    from rich.table import Table

    from netfold.cli.show import round_words

    jobs = Table("job", "state", "ranks", "trees", "operations", "MB reduced", "sent again", "shares",
                 "last re-planning", box=None)
    trees = Table("tree", "job", "weight", "folds at", "over", box=None)
    for job in now.jobs:
        if job.state == "finished":
            continue
        there = len(job.joined) - len(job.left) - len(job.lost)
        jobs.add_row(job.name, job.state, f"{there} of {job.world}",
                     " ".join(tree.root for tree in job.trees) or job.reason or "-",
                     str(max((report.operations for report in job.reports), default=0)),
                     f"{sum(report.bytes_reduced for report in job.reports) / 1e6:.1f}",
                     str(sum(report.retransmissions for report in job.reports)), _shares(job),
                     "-" if job.round is None else round_words(job.round))
        for tree in job.trees:
            ways = "; ".join(f"{switch} <- {' '.join(children)}" for switch, children in tree.switches.items())
            trees.add_row(tree.root, job.name, f"{tree.weight:.2f}", ways or "-", ", ".join(tree.links) or "-")
    return [jobs, trees] if trees.row_count else [jobs]


def _events(events: Sequence[FabricEvent]) -> Table:
    from rich.table import Table

    table = Table("time", "event", "what", "", box=None)
    for event in events:
        table.add_row(time.strftime("%H:%M:%S", time.localtime(event.time)), event.kind, event.target, event.text)
    return table


def _shares(job: JobStatus) -> str:
    """Each rail's share of the job's bytes, over the ranks that have reported."""
    carried: dict[str, int] = {}
    for report in job.reports:
        for name, count in report.by_rail.items():
            carried[name] = carried.get(name, 0) + count
    total = sum(carried.values())
    return " ".join(f"{name} {count / total:.0%}" for name, count in sorted(carried.items())) if total else "-"


def _refused(switch: SwitchStatus) -> int:
    return switch.spoofed + switch.unassigned + switch.unfolded


def _megabits(rate: DirectionRate) -> str:
    return "-" if rate.bits is None else f"{rate.bits / 1e6:.1f}"


def _sum(there: float | None, back: float | None) -> str:
    return "-" if there is None or back is None else f"{there + back:.0f}"


def _number(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _per_second(old: SwitchStatus, new: SwitchStatus, before: int, now: int) -> str:
    """Count per second of a counter of a switch; "-" where one reading is missing or it was started anew."""
    return f"{(now - before) / (new.read - old.read):.0f}" if 0 < old.read < new.read and now >= before else "-"
