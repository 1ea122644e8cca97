# SPDX-License-Identifier: Apache-2.0
"""The text of docs/failures.md, from errors and their scenes."""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import tempfile
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from netfold.cli import doctor
from support.handbook.scenes import SCENES, Scene
from support.syntax import statements

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = ROOT / "docs" / "failures.md"
ROOMS: Final = {"host": "netfold.host", "controller": "netfold.controller", "fabric": "netfold.fabric",
                "topo": "netfold.topo", "rpc": "netfold.rpc", "wire": "netfold.wire", "sim": "netfold.sim",
                "plots": "netfold.plots", "bench": "netfold.bench", "demo": "netfold.demo",
                "src/netfold/cli": "netfold.cli", "src/netfold/testing": "netfold.testing",
                "softswitch/src/softswitch": "softswitch", "cbuild/src/cbuild": "cbuild"}
"""Folders of what users run -> the package that they are imported as."""
PARTS: Final = {
    "On a rank": ("netfold.host.",),
    "Fabric files, the controller, and calls to it": ("netfold.fabric.", "netfold.controller.", "netfold.rpc."),
    "Fabrics on this machine": ("netfold.topo.", "netfold.cli."),
    "softswitch": ("softswitch.", "cbuild."),
    "Simulators, figures, benchmarks": ("netfold.sim.", "netfold.plots.", "netfold.bench."),
}
"""Heading -> the packages whose errors stand under it; those of P4Runtime have a heading of their own."""
P4RUNTIME: Final = "softswitch.engine.errors"

UNSTAGED: Final = {
    "netfold.topo.processes.failures.ControllerFailed": "needs a fabric in namespaces",
    "netfold.bench.harness.strangers.StrangerFailed": "needs a stranger who gets what he must not",
    "netfold.bench.harness.workers.WorkerFailed": "needs a fabric in namespaces",
}
"""Errors that no scene makes, and why: they are on the page without an example."""
LIKE_FABRIC_FAILED: Final = "a FabricFailed, whose entry holds for it: virtual machines as hosts (docs/fabrics.md)"
INTERNAL: Final = {
    "netfold.host.errors.NetFoldError": "the base of all errors of netfold.host",
    "netfold.host.collectives.open_on_all.Unfit": "becomes TransportError, or the warning that all goes over TCP",
    "netfold.host.innet.stand_in.Broken": "becomes TreesLost",
    "netfold.host.mesh.sockets.PeerUnreachable": "becomes PeerLost, or is tried again",
    "netfold.host.mesh.handshake.HandshakeRefused": "becomes PeerLost, or ends a stranger's connection",
    "netfold.host.mesh.memory.Killed": "of netfold.testing: how a rank ends that the test kills",
    "netfold.host.rails.rail_set.Fenced": "a RailDown that other rails take over from",
    "netfold.controller.switch.codec.CodecError": "becomes SwitchError",
    "netfold.controller.switch.entities.Conflict": "two planners contradict each other: a bug, which tests look for",
    "netfold.rpc.rpc.Refusal": "becomes JoinRefused on a rank, CallRefused at a command",
    "netfold.topo.processes.console.Stopped": "a signal that ends a command",
    "netfold.topo.rxe.engines.EnginesFailed": LIKE_FABRIC_FAILED,
    "netfold.topo.agents.frames.BadFrame": "ends a virtual machine's line, and its host",
    "netfold.topo.rxe.image.ImageError": LIKE_FABRIC_FAILED,
    "netfold.topo.rxe.machine.GuestFailed": LIKE_FABRIC_FAILED,
    "netfold.cli.doctor.Missing": "a finding of `netfold doctor`, which has a table of its own on the page",
    "netfold.sim.model.system.WrongSum": "a counterexample of the exhaustive model",
    "netfold.sim.model.system.WrongAcknowledgement": "a counterexample of the exhaustive model",
    "netfold.sim.model.system.NotKept": "a counterexample of the exhaustive model",
    "softswitch.cli.start._NotUnderstood": "typer reads the words then",
    "softswitch.compiler.confined.NotCompiled": "becomes INVALID_ARGUMENT of P4Runtime, with the compiler's lines",
    "softswitch.compiler.confined.NotAProgram": "becomes INVALID_ARGUMENT of P4Runtime",
    "softswitch.compiler.confined.TooCostly": "becomes RESOURCE_EXHAUSTED of P4Runtime",
    "softswitch.compiler.confined.CompilerFailed": "becomes INTERNAL of P4Runtime",
    "softswitch.compiler.consteval.ConstError": "becomes CompileError",
    "softswitch.compiler.diagnostics.P4Error": "becomes CompileError",
    "softswitch.compiler.diagnostics.Unsupported": "becomes CompileError",
    "cbuild.cc.LimitError": "becomes RESOURCE_EXHAUSTED of P4Runtime",
    "softswitch.engine.errors.EngineError": "the base of P4Runtime's refusals",
    "softswitch.explain.runtime_json.RuntimeJsonError": "becomes EntriesError",
    "softswitch.tools.cli.values.CommandError": "simple_switch_CLI's own words, which the stand-in repeats",
    "softswitch.tools.cli.values.MatchKeyError": "simple_switch_CLI's own words, which the stand-in repeats",
    "softswitch.tools.cli.values.RuntimeDataError": "simple_switch_CLI's own words, which the stand-in repeats",
    "softswitch.tools.p4c.UsageError": "p4c's own words, which the stand-in repeats",
    "softswitch.tools.program_options.OptionError": "BMv2's own words, which the stand-in repeats",
    "softswitch.tools.switch_output.StartError": "BMv2's own words, which the stand-in repeats",
}
"""Exceptions that no user meets by this name, and what becomes of them."""
STATUSES: Final = (
    ("0", "done", ""),
    ("1", "`netfold`, `softswitch`: something failed, or a check found something",
     "read the message on standard error: it is one of those above"),
    ("2", "`netfold`, `softswitch`: invalid request, or the command's packages are missing",
     "correct the option that the message names; `--help` lists them"),
    ("65", "a rank's data is wrong (`WrongData`)", "as for that error"),
    ("124", "`netfold run --timeout`: the time is up", "give a longer timeout, or find out what the ranks wait for"),
    ("127", "the program of `netfold run` cannot be started", "correct its path; the command's PATH applies"),
    ("128 and more", "ended by a signal: 130 Ctrl-C, 137 SIGKILL (often for want of memory), 143 SIGTERM",
     "`dmesg` names processes that were killed for want of memory"),
)
"""Exit status, meaning, what to do."""


class Declared(NamedTuple):
    """An exception that a module of the rooms declares."""

    module: str
    name: str
    doc: str

    @property
    def dotted(self) -> str:
        """The name by which the lists above know it."""
        return f"{self.module}.{self.name}"

    @property
    def meaning(self) -> str:
        """The first paragraph of its docstring."""
        return " ".join(self.doc.split("\n\n")[0].split())

    @property
    def remedy(self) -> str:
        """The last paragraph of its docstring, where that begins with "Remedy:"; else nothing."""
        last = self.doc.split("\n\n")[-1]
        return " ".join(last.removeprefix("Remedy:").split()) if last.startswith("Remedy:") else ""


@cache
def declared() -> list[Declared]:
    """Every exception that a module of the rooms declares, by the modules' names; nothing is imported for it, so that
    no package need be there."""
    bases: dict[Declared, set[str]] = {}
    for folder, package in ROOMS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            module = ".".join((package, *(part for part in parts if part != "__init__")))
            for node in statements(path):
                if isinstance(node, ast.ClassDef) and node.bases:
                    one = Declared(module, node.name, ast.get_docstring(node) or "")
                    bases[one] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    known = {name for name, kind in vars(builtins).items()
             if isinstance(kind, type) and issubclass(kind, BaseException)}
    found: set[Declared] = set()
    while more := {one for one in bases if one not in found and bases[one] & known}:
        found |= more
        known |= {one.name for one in more}
    return [one for one in bases if one in found]


def staged() -> dict[str, tuple[type[BaseException], Scene]]:
    """The scenes by the names of their errors."""
    return {f"{kind.__module__}.{kind.__qualname__}": (kind, make) for kind, make in SCENES.items()}


def message(name: str) -> str:
    """The message of an error in its scene, without parts that differ between machines."""
    kind, make = staged()[name]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            said = make()
        except kind as error:
            said = str(error) if type(error) is kind else error
        if not isinstance(said, str):
            raise AssertionError(f"the scene of {name}: expected its message, got {said!r}")
        said = said.replace(f"{Path.cwd()}/", "").replace(str(Path.home()), "~")
    said = re.sub(r"127\.\d+\.\d+\.(\d+)", r"127.0.0.\1", said)
    return re.sub(r"(nobody answers at \S+|no controller answers at \S+) \(.*?\)(?=[;:])", r"\1 (...)", said)


def comparable(page: str) -> str:
    """A page without its numbers, which are a run's own: ports, seconds, versions."""
    return re.sub(r"\b0x[0-9a-f]+\b|\d+(\.\d+)*", "#", page)


def wrapped(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _entry(one: Declared) -> Iterator[str]:
    yield f"### {one.name}"
    if one.dotted not in UNSTAGED:
        yield "\n".join(["```text", *(_folded(line) for line in message(one.dotted).splitlines()), "```"])
    yield wrapped(f"`{one.module}`. {one.meaning}")
    yield wrapped(f"**What to do:** {_linked(one.remedy)}")


def _folded(line: str) -> str:
    """A line of a message, folded with an indent where it is long; where it is not, as it is."""
    if len(line) <= 110:
        return line
    return textwrap.fill(line, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _linked(text: str) -> str:
    """Text in which names of pages are links."""
    return re.sub(r"docs/(\w+)\.md", _link, text)


def _link(page: re.Match[str]) -> str:
    """A page of NetFold's, or of the switch's, whose errors name it as seen from their project."""
    name = page[1]
    return f"[{name}]({'' if (ROOT / 'docs' / f'{name}.md').exists() else '../softswitch/docs/'}{name}.md)"


def _cell(text: str) -> str:
    return _linked(text).replace(f"{ROOT}/", "./").replace(str(Path.home()), "~").replace("|", "\\|").replace("\n", " ")


def entries() -> list[Declared]:
    """The errors that have an entry, in the order of the page."""
    met = [one for one in declared() if one.dotted not in INTERNAL]
    return [one for prefixes in [*PARTS.values(), (P4RUNTIME,)] for one in met
            if one.module.startswith(prefixes) and (one.module == P4RUNTIME) == (prefixes == (P4RUNTIME,))]


def text() -> str:
    """The whole page."""
    blocks = [
        "# When something fails",
        wrapped("This page lists all errors of NetFold's library, controller, fabrics and switch, each with an example "
                "of its message, its meaning, and a remedy. Search it for the words of your message. Python programs "
                "catch an error by its name. A command prints the message and ends with an "
                "[exit status](#exit-statuses). `netfold doctor` lists [missing parts](#what-netfold-doctor-finds) of "
                "this machine."),
        wrapped("`.venv/bin/python tests/support/handbook` generates this page from the errors' docstrings and from "
                "messages that it provokes. A test compares it with the code."),
    ]
    refused = "What P4Runtime refuses"
    for heading, prefixes in [*PARTS.items(), (refused, (P4RUNTIME,))]:
        blocks.append(f"## {heading}")
        if heading == refused:
            blocks.append(wrapped("softswitch refuses requests with these gRPC codes. In a `Write` each update has its "
                                  "own code, in the details of the status."))
        for one in entries():
            if one.module.startswith(prefixes) and (one.module == P4RUNTIME) == (heading == refused):
                blocks += _entry(one)
    rows = [f"| {_cell(one.name)} | {'`make demo`; ' if one.required else ''}{_cell(one.needed_for)} | "
            f"{_cell(one.remedy)} |" for one in doctor.checks()]
    blocks += ["## What netfold doctor finds", "\n".join(
        ["| missing | needed for | get it |", "|---|---|---|", *rows])]
    blocks += ["## Exit statuses", "\n".join(
        ["| status | means | what to do |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in STATUSES)])]
    return "\n\n".join(blocks) + "\n"
