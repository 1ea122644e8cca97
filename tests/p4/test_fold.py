# SPDX-License-Identifier: Apache-2.0
"""The fold program on real switches with real interfaces, entries by the controller, packets by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import TESTS, environment
from support.sandboxes.topo import ENGINES

FOLD = TESTS / "support" / "p4" / "fold.py"
LINKS = TESTS / "support" / "p4" / "links.py"
PUNT = TESTS / "support" / "p4" / "punt.py"


def namespace() -> list[str]:
    """The command that gives the next one a network of its own."""
    return ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


def checks(helper: Path, engine: str, folder: Path) -> int:
    """How many checks of a helper held, in a namespace of its own; all that it ran did."""
    run = subprocess.run([*namespace(), sys.executable, str(helper), engine, str(folder)], capture_output=True,
                         text=True, timeout=170, env=environment(), stdin=subprocess.DEVNULL)
    log = folder / "switch.log"
    assert run.returncode == 0, run.stderr + (log.read_text(errors="replace") if log.exists() else "")
    return len([line for line in run.stdout.splitlines() if json.loads(line)["ok"]])


@pytest.mark.netns
@pytest.mark.needs("namespaces")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_leaf_folds_as_written_down(engine: str, tmp_path: Path) -> None:
    """Every operation on every rank, header fields to the last bit, repeats, marks, corrupt and late packets; whom an
    open slot waits for."""
    assert checks(FOLD, engine, tmp_path) == 10


@pytest.mark.netns
@pytest.mark.needs("namespaces")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_may_reach_the_cpu_port(engine: str, tmp_path: Path) -> None:
    """Nothing from a host's port, not even a perfect link probe; from a switch's port as many probes as its meter lets
    pass, while another switch's port has room of its own; every packet is counted.  What a neighbour sends to all is
    counted on the switch, if it comes from the port that the cable should lead to."""
    assert checks(PUNT, engine, tmp_path) == 6


@pytest.mark.netns
@pytest.mark.needs("namespaces")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_pulled_cable_is_noticed(engine: str, tmp_path: Path) -> None:
    """Link probes go over real interfaces, stop with the cable, and come again with it; what they tell of where cables
    lead is so."""
    assert checks(LINKS, engine, tmp_path) == 4
