# SPDX-License-Identifier: Apache-2.0
"""All commands keep the conventions that docs/commands.md has in a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from netfold.cli import doctor
from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.cli.top import look_in_json
from netfold.controller.operations.rates import Rates
from netfold.plain_text import json_line
from netfold.wire.operator import FabricEvent, Status
from support.docs.snippets import ROOT

TABLE: Final = (ROOT / "docs/commands.md").read_text().partition("## Conventions")[2]
KINDS: Final = {
    "--json": bool, "--rows": Path, "--controller": str, "--topo": str, "--rate": str, "--share": float,
    "--loss": float, "--for": str, "--timeout": float, "--seed": int, "--out": Path, "--quiet": bool,
    "--verbose": bool, "--force": bool,
}
"""What each option of the table takes, wherever it is."""
SHORT: Final = {"-o": {"--out", "--op"}, "-q": {"--quiet"}, "-v": {"--verbose"}}
"""What a short option stands for; `bench allreduce` has nccl-tests' flags."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands that do something, by their words."""
    if not hasattr(command, "commands"):
        yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))


COMMANDS: Final = dict(leaves(get_command(app)))
OPTIONS: Final = [(name, option) for name, command in COMMANDS.items() for option in command.params
                  if option.param_type_name == "option"]


def taking(word: str) -> set[str]:
    """The commands with this option."""
    return {name for name, option in OPTIONS if word in option.opts}


def test_an_option_of_the_table_takes_the_same_everywhere() -> None:
    """A flag is nowhere a file, a link's rate nowhere a share; and the table has each of these options."""
    for name, option in OPTIONS:
        for word in set(option.opts) & KINDS.keys():
            takes = option.type_descriptor.annotation
            assert takes is KINDS[word], f"{name} {word} takes {takes}"
    others = {"--fabric", "--install", "--machines", "--help"}
    assert set(re.findall(r"`(--[a-z]+)", TABLE)) - others == set(KINDS)


def test_short_options_stand_for_the_same() -> None:
    """-o, -q and -v."""
    for name, option in OPTIONS:
        for short in set(option.opts) & SHORT.keys():
            assert SHORT[short] & set(option.opts), f"{name} {short}"


def test_json_is_where_the_table_says() -> None:
    """What prints a state prints it for programs, too."""
    (row,) = re.findall(r"^\| `--json` .*$", TABLE, re.MULTILINE)
    said = set(re.findall(r"`([a-z][a-z -]+)`", row))
    paths = {name for name in COMMANDS if name.startswith("paths ")}
    assert taking("--json") == (said - {"paths"}) | paths


def test_what_tells_what_it_does_can_be_quiet() -> None:
    """--quiet and --verbose are where the table says."""
    (row,) = re.findall(r"^\| `--quiet`.*$", TABLE, re.MULTILINE)
    quiet, _, verbose = row.rpartition("; ")
    assert taking("--quiet") == set(re.findall(r"`([a-z][a-z ]+)`", quiet))
    assert taking("--verbose") == set(re.findall(r"`([a-z][a-z ]+)`", verbose))


def test_plans_findings_and_rates_are_printed_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one line of JSON, with the names that the tables have; the exit status is the same as for people."""
    planned = json.loads(CliRunner().invoke(app, ["plan", "--topo", "leafspine,2,2,4", "--json"]).stdout)
    assert planned["trees"][0]["folds"][0]["children"]
    assert all(switch["entries"] > 0 and not switch["writes"] for switch in planned["switches"])

    def absent() -> str:
        raise doctor.Missing("not on PATH")

    monkeypatch.setattr(doctor, "checks", lambda: [doctor.Check("thing", "all", "apt install thing", absent, True)])
    found = CliRunner().invoke(app, ["doctor", "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout) == [{"name": "thing", "ok": False, "required": True, "found": "not on PATH",
                                         "needed_for": "all", "get_it": "apt install thing"}]
    idle = Status("lab", "softswitch", 1.0, [], [], [])
    event = FabricEvent(1, 2.0, "down", "leaf1", "its server is silent")
    assert json.loads(look_in_json(idle, Rates(), [event])) == {
        "status": json.loads(json_line(idle)), "rates": {"links": [], "switches": []},
        "events": [json.loads(json_line(event))]}


def test_what_asks_a_controller_takes_a_fabric() -> None:
    """By its file or name, as an option or argument; faults and captures, which ask a fabric, do so too."""
    for name in sorted(taking("--controller") | {name for name in COMMANDS if name.startswith("fault ")} | {"pcap"}):
        metavars = {parameter.metavar for parameter in COMMANDS[name].params}
        assert "FABRIC.toml|NAME" in metavars, name


def test_what_developers_need_is_not_in_the_help() -> None:
    """Hidden are the commands that the page lists, and options of fabrics over machines."""
    hidden = {name for name, command in COMMANDS.items() if command.hidden}
    assert hidden == {"bench growth", "bench simulator", "bench soak", "paths planner"}
    assert {word for _, option in OPTIONS if option.hidden for word in option.opts} == {
        "--launcher", "--python", "--first-vni", "--underlay-mtu"}
    assert "growth" not in CliRunner().invoke(app, ["bench", "--help"]).output


def test_a_fabric_that_was_edited_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, and the files of an export, are replaced where they are as they were, or with --force."""
    monkeypatch.chdir(tmp_path)

    def write(*words: str) -> int:
        return CliRunner().invoke(app, ["fabric", "leafspine,2,2,4", *words]).exit_code

    for words, file in ((("-o", "lab.toml"), "lab.toml"), (("--export", "netlab", "-o", "lab"), "lab/topology.yml")):
        assert (write(*words), write(*words)) == (0, 0)
        written = Path(file).read_text()
        Path(file).write_text("# mine\n" + written)
        assert write(*words) == CANNOT
        assert Path(file).read_text().startswith("# mine")
        assert write(*words, "--force") == 0
        assert Path(file).read_text() == written


def test_a_shell_completes_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """By typer's protocol, whatever the line begins with."""
    monkeypatch.setenv("_NETFOLD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "netfold st")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert CliRunner().invoke(app, [], prog_name="netfold").output.split() == ["status", "stall"]
