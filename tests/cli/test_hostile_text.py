# SPDX-License-Identifier: Apache-2.0
"""Names, reasons and messages of others are printed as they are: no markup, no control characters of the terminal."""

from __future__ import annotations

import io
import logging
import re

import msgspec
import pytest

from netfold import plain_text
from netfold.cli.links import show as show_links
from netfold.cli.paths import show_table as show_paths
from netfold.cli.show import show, show_slots
from netfold.cli.top import screen
from netfold.controller.health.wiring import Cable, Cables
from netfold.controller.operations.rates import Rates
from netfold.controller.paths import path_service
from netfold.plain_console import Terminal
from netfold.wire.jobs import RankReport
from netfold.wire.operator import (
    FabricEvent,
    JobStatus,
    LinkStatus,
    RoundStatus,
    Status,
    SwitchStatus,
    Traffic,
    TreeStatus,
)
from netfold.wire.stalls import JobSlots, OpenSlot

HOSTILE = {
    "closing tag": "[/x]",
    "tag": "[red]all is well[/red]",
    "link": "[link=http://example.com]here[/link]",
    "handler": "[@click=app.quit]x[/]",
    "emoji code": ":boom:",
    "backslash": "\\[/x]",
    "escape": "\x1b[2J\x1b[31m",
    "title of the window": "\x1b]0;owned\x07",
    "C1 controls": "\x9b2J",
    "carriage return": "all is well\rfailed",
    "backspace": "lost\b\b\b\bfine",
    "right to left": "\u202egnp.exe",
    "half a character": "\ud800",
}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def a_status(text: str) -> Status:
    """A status with the text wherever another process has the say."""
    tree, report = TreeStatus(text, 1.0, {text: [text]}, [text]), RankReport(text, 0, 7, 1, 1, 1, 1)
    job = JobStatus(text, text, 7, 2, [0, 1], [], [text, text], 4, [tree], text, [report], lost=[1],
                    round=RoundStatus(1, text, 1.0, None, text), stays=text)
    traffic = Traffic(1, 2, 3)
    return Status(text, text, 1.0, [SwitchStatus(text, text, text, False, text, 1, 1, 1, 1, 1)],
                  [LinkStatus(text, text, text, 0.0, traffic, traffic)], [job])


@pytest.mark.parametrize("name", HOSTILE)
def test_what_others_said_is_printed_as_it_is(name: str) -> None:
    """Status, top, slots, links and paths: every word is there, and nothing but words."""
    text = HOSTILE[name]
    out = io.StringIO()
    console = Terminal(file=out, width=4000, force_terminal=False)
    show(a_status(text), console)
    console.print(screen(a_status(text), a_status(text), Rates(),
                         [FabricEvent(1, 1.0, "up", text, text)]))
    show_slots(text, [JobSlots(text, 7, 4, [OpenSlot(text, text, text, 1, 2, 3, [text], [text])])], console)
    show_links(Cables([Cable(text, text, True, text, True, True, text, text)]), console)
    printed = out.getvalue()
    assert printed.count(plain_text.clean(text)) > 20
    assert not CONTROL.search(printed)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_log_and_json_have_no_control_characters_either(name: str) -> None:
    """A log's line says what was sent, as escapes; JSON has its own."""
    text = HOSTILE[name]
    record = logging.LogRecord("netfold", logging.WARNING, "", 0, "rank 1 left: %s", (text,), None)
    assert not CONTROL.search(plain_text.LogFormatter("%(message)s").format(record))
    if name != "half a character":  # which JSON in UTF-8 cannot carry in the first place
        line = plain_text.json_line(a_status(text))
        assert not CONTROL.search(line)
        assert msgspec.json.decode(line, type=Status) == a_status(text)


def test_no_reason_forges_a_record_of_the_log() -> None:
    """What follows a line's end within a record is indented."""
    forged = "bye\n2026-01-01 00:00:00,000 WARNING netfold: spine1 is drained"
    record = logging.LogRecord("netfold", logging.WARNING, "", 0, "rank 1 left: %s", (forged,), None)
    first, second = plain_text.LogFormatter("%(message)s").format(record).split("\n")
    assert (first, second[:6]) == ("rank 1 left: bye", "    20")


def test_paths_of_a_hostile_leaf(capsys: pytest.CaptureFixture[str]) -> None:
    """`netfold paths show` prints to a console of its own."""
    show_paths(path_service.Table(
        [path_service.LeafRow("[/x]", "pinned")], [], [path_service.PinRow("[/x]", "[/x]", 1, 1, "[/x]", True)],
        {"[/x]": 1}), pins=True)
    assert "[/x]" in capsys.readouterr().out
