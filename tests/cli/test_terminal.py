# SPDX-License-Identifier: Apache-2.0
"""What goes into a pipe or a file is the same in every shell: a terminal's width neither wraps nor cuts it."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import msgspec
import pytest

from netfold import terminal
from support.demo import a_report

pytestmark = pytest.mark.slow

LONG = "a fabric whose name is longer than any terminal is wide " * 8
SHOWN = f"""
import dataclasses, msgspec
from netfold.bench.commands import loss
from netfold.bench.options.faults import LossOptions
from netfold.cli import doctor, links, paths, show, top
from netfold.controller.health.wiring import Cable, Cables
from netfold.controller.operations.rates import Rates
from netfold.controller.paths import path_service
from netfold.demo import report
from netfold.terminal import console
from netfold.wire import operator as op, stalls

long = {LONG!r}
traffic = op.Traffic(1, 2, 3)
status = op.Status(
    long, "bmv2", 61.0, [op.SwitchStatus("leaf1", "leaf", long, False, long, 12, 1, 0, 16384, 0)],
    [op.LinkStatus("leaf1:1", long, "1gbit", 0.01, traffic, traffic)],
    [op.JobStatus("train", "active", 7, 2, [0, 1], [], [], 2048, [op.TreeStatus(long, 1.0, {{"leaf1": [long]}})], long,
                  [], stays=long)])
show.show(status)
slot = stalls.OpenSlot("leaf1", long, "SUM32", 1, 2, 3, [long], [long])
show.show_slots(long, [stalls.JobSlots("train", 7, 4, [slot])])
rates = Rates()
rates.update(status)
console().print(top.screen(status, status, rates))
links.show(Cables([Cable("leaf1:1", long, True, long, False, True, long, long)]))
paths.show_table(path_service.Table([path_service.LeafRow(long, "pinned")], [], [], {{}}), pins=True)
doctor.show([doctor.Finding(doctor.Check("thing", long, long, lambda: long), False, long)])
loss._show([loss.LossRow(0.1, long, 1, 1, 1, 1, 0.1, 1, 1, 1, 1, 1, 1, {{long: 3}}, 1)],
           LossOptions(switch="bmv2", path_mtu=1024, nbytes="1024"))
report.show(msgspec.convert(msgspec.json.decode(input()), report.DemoReport), console())
"""


def printed(command: list[str], columns: str | None, given: bytes = b"") -> str:
    """Standard output and error of a command in a pipe, in a shell with this COLUMNS."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERMINAL_WIDTH")}
    if columns is not None:
        environment["COLUMNS"] = columns
    done = subprocess.run(command, env=environment, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=90, check=False)
    return done.stdout.decode()


def test_tables_in_a_pipe_are_the_same_in_every_shell_and_whole() -> None:
    """Status, slots, top, links, paths, doctor, the loss benchmark and the demo's report, with words far too long."""
    narrow, unset = (printed([sys.executable, "-c", SHOWN], columns, msgspec.json.encode(a_report()))
                     for columns in ("40", None))
    assert narrow == unset
    assert "Traceback" not in unset, unset
    assert unset.count(LONG.strip()) > 20
    assert "\u2026" not in unset


COMMANDS = [
    ("netfold.cli", "plan", "--topo", "leafspine,2,2,4", "--entries"), ("netfold.cli", "--help"),
    ("netfold.cli", "plan", "--help"), ("netfold.cli", "plan", "--no-such-option"), ("softswitch", "run", "--help"),
]
RUN = f"""
import asyncio, grpc, importlib.metadata, msgspec, numpy, os, runpy, sys  # which know nothing of terminals
for module, *arguments in {COMMANDS!r}:
    print("\\n$", module, *arguments, flush=True)
    if os.fork() == 0:
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    os.wait()
"""


def test_commands_in_a_pipe_print_the_same_in_every_shell() -> None:
    """Plans, help and usage errors; each command runs in a fork, in which nothing that may look at the shell's width is
    imported before."""
    narrow, unset = (printed([sys.executable, "-c", RUN], columns) for columns in ("40", None))
    assert narrow == unset
    assert "Traceback" not in unset
    said = [text for text in unset.split("\n$ ") if text]
    assert len(said) == len(COMMANDS)
    assert all(text.count("\n") > 2 for text in said), said


def test_a_terminal_has_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, lines are wrapped where they end on the screen."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    screen, pipe = Screen(), io.StringIO()
    for file in (screen, pipe):
        terminal.console(file).print("word " * 20)
    assert (len(screen.getvalue().splitlines()), len(pipe.getvalue().splitlines())) == (3, 1)
