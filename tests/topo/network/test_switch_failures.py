# SPDX-License-Identifier: Apache-2.0
"""What a switch program's help and log tell: its options, and why it did not start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from netfold.bench.harness import switch_process
from netfold.topo.network import sandbox
from netfold.topo.network.switches import excerpt, has_option, notifications
from netfold.topo.processes.failures import SwitchFailed


def _program(folder: Path, text: str) -> str:
    """A shell script that prints a text whatever its arguments."""
    script = folder / "simple_switch_grpc"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(("line", "known"), [
    ("  --notifications-addr arg  address", True), ("  -n [ --notifications-addr ] arg", True),
    ("  --notifications-addr-file arg", False), ("  --no--notifications-addr", False), ("  --thrift-port arg", False),
])
def test_only_a_whole_option_of_the_help_counts(tmp_path: Path, line: str, known: bool) -> None:
    """A longer option that contains the name is another option."""
    assert has_option(_program(tmp_path, line), "--notifications-addr") is known


def test_each_bmv2_has_a_socket_of_its_own_for_notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their default path is the same for all of a machine: those of fabrics and of benchmarks get another one."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = _program(tmp_path, "  --notifications-addr arg  address")
    (_, one), (_, other) = notifications(program, "s1"), notifications(program, "s2")
    assert one != other
    words = switch_process.command("bmv2", None, "127.0.0.1:9559", ["1@s1"])
    assert words[0] == program
    assert words[words.index("--notifications-addr") + 1].startswith(f"ipc://{sandbox.private_folder()}/")
    has_option.cache_clear()
    assert notifications(_program(tmp_path, "  --thrift-port arg"), "s1") == []


def test_a_program_that_cannot_be_run_is_explained(tmp_path: Path) -> None:
    """The error names the program and what to do."""
    with pytest.raises(SwitchFailed, match=r"absent --help cannot be run .*: install the program again"):
        has_option(str(tmp_path / "absent"), "--notifications-addr")


def test_a_refused_option_is_explained_by_its_line_and_not_by_the_help(tmp_path: Path) -> None:
    """The help that follows is left out; what was printed after it is kept."""
    log = tmp_path / "log"
    usage = "\n".join(["Usage: SWITCH [options]", "Options:", *(f"  --option-{i} arg" for i in range(56))])
    log.write_text(f"\nError while parsing command line arguments: unrecognised option\n{usage}\n")
    assert excerpt(log) == ("Error while parsing command line arguments: unrecognised option", [])
    log.write_text(f"refused\n{usage}\nfarewell\n")
    assert excerpt(log) == ("refused", ["farewell"])
