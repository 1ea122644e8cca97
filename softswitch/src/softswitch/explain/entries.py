# SPDX-License-Identifier: Apache-2.0
"""The control plane's state for `softswitch explain`, from a file in one of three notations."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from finsy.proto import p4i

from softswitch.engine.engine import Engine
from softswitch.engine.local import LocalEngine
from softswitch.explain import runtime_json
from softswitch.runtime import files
from softswitch.stf import runner, script


class EntriesError(Exception):
    """A file of entries cannot be used; the message says why.

    Remedy: correct the line of the entries' file that the message names: the STF language, a runtime JSON of p4lang's
    tutorials, or commands of simple_switch_CLI.
    """


class Described(Protocol):
    """The part of a compiled program that its entries are written by."""

    @property
    def p4info(self) -> p4i.P4Info: ...
    @property
    def bmv2_json(self) -> str: ...


class PushedProgram(NamedTuple):
    """A program that a switch runs, by what it tells control planes of it."""

    p4info: p4i.P4Info
    bmv2_json: str


def load(engine: Engine, program: Described, path: Path) -> tuple[list[tuple[int, bytes]], str, int]:
    """Writes what a file says into a switch: NAME.json as p4lang's tutorials have it, NAME.stf a packet test, any other
    commands of simple_switch_CLI.

    Returns the (port, frame) pairs of the file's own packets, which only packet tests have, what commands said, and how
    many of them failed. Raises EntriesError.
    """
    try:
        text = files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise EntriesError(f"--entries {path}: {getattr(error, 'strerror', None) or error}") from None
    names = {action.preamble.id: [param.name for param in action.params] for action in program.p4info.actions}
    if path.suffix == ".json":
        try:
            runtime_json.load(engine, text, names, str(path))
        except runtime_json.RuntimeJsonError as error:
            raise EntriesError(str(error)) from None
        return [], "", 0
    if path.suffix == ".stf":
        if not isinstance(engine, LocalEngine):
            raise EntriesError(f"--entries {path}: a packet test is for `softswitch stf` and `explain`: expected "
                               "NAME.json as in p4lang's tutorials, or commands of simple_switch_CLI")
        return _packet_test(engine, text, path, names), "", 0
    try:
        from softswitch.explain import commands
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "thrift":
            raise
        raise EntriesError(f"--entries {path}: commands of simple_switch_CLI need Apache's package thrift, which is "
                           "missing: pip install thrift") from None
    return [], *commands.run(engine, program.p4info, program.bmv2_json, text)


def _packet_test(
    engine: LocalEngine, text: str, path: Path, names: dict[int, list[str]]
) -> list[tuple[int, bytes]]:
    """Executes what is neither packet nor expectation, and returns the packets."""
    try:
        statements = script.parse(text, str(path))
    except script.StfSyntaxError as error:
        raise EntriesError(str(error)) from None
    frames = (script.Packet, script.Expect, script.NoPacket, script.Wait, script.CheckCounter)
    report = runner.run_statements(engine, [s for s in statements if not isinstance(s, frames)], names, str(path))
    if not report.passed:
        raise EntriesError("\n".join(report.failures))
    return [(s.port, s.data) for s in statements if isinstance(s, script.Packet)]
