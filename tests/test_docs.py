# SPDX-License-Identifier: Apache-2.0
"""What README.md, docs/, docstrings and comments name exists: pages, files, commands with their options,
variables of the environment."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support import needs
from support.docs.pages import APPS, PAGES, ROOT, TOOLS, code, commands, resolve
from support.syntax import statements

ROOMS = sorted(path.name for path in ROOT.glob("[!.]*/") if path.name != "build")
YOURS = {"PROGRAM.p4", "fold.c", "l2.p4", "prog.p4", "pushed.p4", "train.py"}
"""Files of the reader's."""
SYSTEMS = {"asm/socket.h", "linux/udp.h", "rxe_comp.c", "rxe_recv.c", "rxe_req.c", "rxe_resp.c"}
"""Headers that Linux brings, and sources of its drivers."""


@cache
def files() -> list[str]:
    """All files of the rooms."""
    return [str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]


@cache
def file_names() -> set[str]:
    """All names that a text may use for a file: `host/mesh/tcp.py`, `mesh/tcp.py` or `tcp.py`."""
    return {file.split("/", first)[-1] for file in files() for first in range(file.count("/") + 1)}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def remarks(source: Path) -> str:
    """The docstrings of a Python file, or the comments of one in C or P4."""
    if source.suffix != ".py":
        return "\n".join(re.findall(r"/\*.*?\*/|//[^\n]*", source.read_text(), re.S))
    literals = [node.value for node in statements(source) if isinstance(node, ast.Expr)]
    return "\n".join(str(value.value) for value in literals if isinstance(value, ast.Constant))


def missing_files(text: str) -> set[str]:
    """The files that a text names and that are nowhere: `mesh/tcp.py` may be in any room, `X.c` is any file at all."""
    named = set(re.findall(r"(?<![\w/.-])((?:\w+/)*\w+\.(?:py|c|h|p4))\b(?!\.)", text)) - YOURS - SYSTEMS
    return {name for name in named - file_names() if Path(name).stem != "X"}


@cache
def helps(tool: str, *names: str) -> bool:
    """True if a command prints its --help."""
    return CliRunner().invoke(APPS[tool], [*names, "--help"]).exit_code == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link leads to a file of the repository, and to a heading of it where it names one."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        where = (page.parent / file).resolve() if file else page
        assert where.exists(), f"{page.name}: there is no {target}"
        assert not anchor or anchor in anchors(where), f"{page.name}: {where.name} has no heading for #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """A page names no file that has been renamed or removed."""
    assert not missing_files("\n".join(code(page)))


@pytest.mark.parametrize("room", ROOMS)
def test_files_that_sources_name_exist(room: str) -> None:
    """No docstring or comment names a file that has been renamed or removed."""
    sources = [path for path in (ROOT / room).rglob("*.*") if path.suffix in (".py", ".c", ".h", ".p4")]
    assert not {str(path.relative_to(ROOT)): missing for path in sources if (missing := missing_files(remarks(path)))}


def check(words: list[str], where: str) -> None:
    """A command line parses as far as its options go, and its --help can be printed."""
    command, names, rest = resolve(words)
    shown = " ".join(words)
    assert len(names) > 1 or not hasattr(command, "commands"), f"{where}: `{shown}`: no such command"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest[: rest.index("--") if "--" in rest else None]:
        if word.startswith("--"):
            assert word.partition("=")[0] in {*known, "--help"}, f"{where}: `{shown}` has no {word}"
    assert helps(*(name.split("|")[0] for name in names)), f"{where}: `{shown}`: its --help fails"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    """Every command line parses as far as its options go, and its --help can be printed."""
    for words in commands(page):
        check(words, page.name)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("docs", "tests", "papers")])
def test_commands_that_messages_name_exist(room: str) -> None:
    """A message that tells its reader to type a command of ours names one that there is, with options that it has."""
    for path in (path for path in (ROOT / room).rglob("*.*") if path.suffix in (".py", ".c")):
        for found in re.findall(r"`((?:netfold|softswitch) [a-z][a-z -]*)", path.read_text()):
            if len(words := found.split()) > 1:
                check([word for word in words if word.islower() and word != "-"], str(path.relative_to(ROOT)))


def test_every_command_is_documented() -> None:
    """A command that no page names is one that nobody finds."""
    named = {tuple(resolve(words)[1]) for page in PAGES for words in commands(page)}
    text = "\n".join(page.read_text() for page in PAGES)

    def missing(command: Any, names: tuple[str, ...]) -> Iterator[str]:
        if hasattr(command, "commands"):
            for name in command.commands:
                yield from missing(command.commands[name], (*names, name))
        elif names not in named and f"`{names[-1]}" not in text:
            yield " ".join(names)

    assert not list(missing(TOOLS["netfold"], ("netfold",)))


def test_variables_are_documented_and_exist() -> None:
    """Every NETFOLD_ variable that the packages read stands on a page, and every one on a page is read by them."""
    pattern = r"\bNETFOLD_[A-Z][A-Z_0-9]*[A-Z0-9]\b"
    sources = [ROOT / file for file in files() if file.endswith(".py") and not file.startswith(("tests", "docs"))]
    read = {name for file in sources for name in re.findall(pattern, file.read_text())}
    told = {name for page in PAGES for name in re.findall(pattern, page.read_text())}
    assert told - {*re.findall(pattern, (ROOT / "host/capi/netfold.h").read_text())} <= read
    # what a launcher tells what it starts, be it in a virtual machine, and `netfold up` what is typed at its prompt
    internal = {"NETFOLD_SANDBOX", "NETFOLD_RUNDIR", "NETFOLD_FABRIC", "NETFOLD_GUEST",
                "NETFOLD_LISTENERS", "NETFOLD_FAULTS", "NETFOLD_FAULT_KEY"}
    assert read - internal <= told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_examples_import_exist(page: Path) -> None:
    """Every name that a Python example imports from here is where the example says."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith(("netfold", "softswitch")):
                continue
            if str(node.module).startswith("netfold.torch") and needs.missing("torch"):
                continue
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}"), block


def test_papers_keeps_what_its_pages_show() -> None:
    """Each figure that is kept is shown by a page beside it, each table is named by one, and no folder has more tables
    than figures: the commands make the rest."""
    kept = [Path(file) for file in subprocess.run(
        ["git", "ls-files", "papers"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()]
    texts = {page.parent: "" for page in kept}
    for page in kept:
        if page.suffix == ".md":
            texts[page.parent] += (ROOT / page).read_text()
    shown = {folder / name for folder, text in texts.items() for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)}
    named = {folder / name for folder, text in texts.items() for name in re.findall(r"[\w/.-]+\.csv", text)}
    figures, tables = ([file for file in kept if file.suffix == suffix] for suffix in (".svg", ".csv"))
    assert set(figures) == shown
    assert set(tables) <= named
    for folder in texts:
        assert sum(file.parent == folder for file in tables) <= sum(file.parent == folder for file in figures), folder
