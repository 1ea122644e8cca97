# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, and the command lines that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from netfold.cli.app import app as netfold
from softswitch.cli.app import app as softswitch

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "softswitch/README.md", ROOT / "cbuild/README.md",
         *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "softswitch/docs").glob("*.md")),
         *sorted((ROOT / "papers").rglob("*.md"))]
APPS = {"netfold": netfold, "softswitch": softswitch}
TOOLS: dict[str, Any] = {name: typer.main.get_command(app) for name, app in APPS.items()}


def code(page: Path) -> Iterator[str]:
    """The code of a page: what stands in backticks, and every line of code blocks."""
    text = page.read_text()
    text = re.sub(r"^```text\n.*?^```", "", text, flags=re.M | re.S)  # what programs print
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        yield from block.splitlines()
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from re.findall(r"^    (\S.*)$", text, re.M)
    yield from re.findall(r"`([^`\n]+)`", text)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command line of ours that a page shows."""
    for line in code(page):
        line = re.sub(r"^(\$ |sudo |sh |(\w+=\S+ )+)*(\.venv/bin/)?", "", line.strip().replace("\\|", "|"))
        if re.match(r"(netfold|softswitch) [a-z-]", line):
            yield shlex.split(re.split(r"\s+#|\s[|>&]\s|;", line)[0].replace("[", " ").replace("]", " "))


def resolve(words: list[str]) -> tuple[Any, list[str], list[str]]:
    """The command that the words name, its names, and the words that are left."""
    command, names, rest = TOOLS[words[0]], words[:1], words[1:]
    if words[0] == "softswitch" and words[1] not in command.commands:
        rest.insert(0, "run")  # as its entry point does
    while hasattr(command, "commands"):
        found = command.commands.get(rest[0].split("|")[0]) if rest else None
        if found is None:
            break
        command, names, rest = found, [*names, rest[0]], rest[1:]
    return command, names, rest


def invoked(line: str) -> tuple[int, str]:
    """Runs a command line in this process: its exit status, and what it printed, errors included."""
    tool, *words = shlex.split(line)
    if tool == "softswitch" and words[0] not in TOOLS[tool].commands:
        words.insert(0, "run")
    done = CliRunner().invoke(APPS[tool], words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{line}: {done.exception!r}") from done.exception
    return done.exit_code, done.output
