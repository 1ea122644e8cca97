# SPDX-License-Identifier: Apache-2.0
"""`netfold top`: rates of links, slots, jobs and lost packets of a running fabric, once a second."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Annotated

import typer

from netfold.cli.common import address_of, awaited, token_of
from netfold.cli.options import Address, FabricFile

if TYPE_CHECKING:
    from rich.console import Group

    from netfold.wire.operator import Status, SwitchStatus, Traffic


def top(
    file: FabricFile = None,
    controller: Address = None,
    interval: Annotated[float, typer.Option("-d", "--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    rounds: Annotated[int | None, typer.Option("-n", "--rounds", min=1, help="Looks; default: until Ctrl-C.")] = None,
) -> None:
    """Watch a running fabric: what every link carries, slots in use, jobs and their last re-planning, packets lost.

    In a pipe or a file every look is printed below the one before.
    """
    from rich.live import Live

    from netfold import terminal
    from netfold.controller import client

    address, token = address_of(file, controller), token_of(file)

    def look() -> tuple[float, Status]:
        status: Status = awaited(client.status(address, token=token))
        return time.monotonic(), status

    before, console = look(), terminal.console()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError))
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        for _ in itertools.count() if rounds is None else range(rounds):
            time.sleep(interval)
            now = look()
            picture = screen(before[1], now[1], now[0] - before[0])
            if live is not None:
                live.update(picture, refresh=True)
            else:
                console.print(picture)
            before = now


def screen(before: Status, now: Status, seconds: float) -> Group:
    """Tables with the difference of two statuses, ``seconds`` apart."""
    from rich.console import Group
    from rich.table import Table

    from netfold.cli.show import round_words, words

    switches = Table("switch", "state", "slots", "folded/s", "repeats/s", "gaps/s", "corrupt/s", "refused/s", box=None)
    for old, new in zip(before.switches, now.switches, strict=True):
        folded, repeats = (new.folded.first - old.folded.first, new.folded.repeats - old.folded.repeats)
        switches.add_row(new.name, words(new.up, new.drained, new.problem),
                         f"{new.slots_used}/{new.slots}", _rate(folded, seconds), _rate(repeats, seconds),
                         _rate(new.gaps - old.gaps, seconds), _rate(new.corrupt - old.corrupt, seconds),
                         _rate(_refused(new) - _refused(old), seconds))
    links = Table("link", "state", "rate", "there Mb/s", "back Mb/s", "packets/s", "lost/s", box=None)
    for a, b in zip(before.links, now.links, strict=True):
        directions = ((a.a_to_b, b.a_to_b), (a.b_to_a, b.b_to_a))
        packets = sum(new.packets - old.packets for old, new in directions)
        lost = sum(new.lost - old.lost for old, new in directions)
        links.add_row(f"{b.a} - {b.b}", words(b.up, b.drained), b.rate or "-",
                      *(_megabits(old, new, seconds) for old, new in directions), _rate(packets, seconds),
                      _rate(lost, seconds))
    jobs = Table("job", "state", "ranks", "trees", "last re-planning", box=None)
    for job in now.jobs:
        if job.state != "finished":
            ranks = f"{len(job.joined) - len(job.left) - len(job.lost)} of {job.world}"
            jobs.add_row(job.name, job.state, ranks, " ".join(tree.root for tree in job.trees) or job.reason or "-",
                         "-" if job.round is None else round_words(job.round))
    up = sum(switch.up for switch in now.switches)
    head = f"fabric {now.fabric} on {now.engine}, up {now.uptime:.0f} s, {up} of {len(now.switches)} switches up"
    return Group(head, switches, links, jobs)


def _refused(switch: SwitchStatus) -> int:
    return switch.spoofed + switch.unassigned + switch.unfolded


def _megabits(old: Traffic, new: Traffic, seconds: float) -> str:
    return f"{max(0, new.bytes - old.bytes) * 8 / seconds / 1e6:.1f}"


def _rate(count: int, seconds: float) -> str:
    """Count per second; 0 if the switch was restarted, since it counts from 0 then."""
    return f"{max(0, count) / seconds:.0f}"
