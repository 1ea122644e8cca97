# SPDX-License-Identifier: Apache-2.0
"""What NetFold's tests share with the machine, beside what every suite of this repository does
(switch_support/suite.py)."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from typer import testing

import support
from netfold.topo.processes import ranks
from support import needs
from support.sandboxes import warm
from support.sandboxes.processes import switches  # noqa: F401  (a fixture of several rooms)
from support.sandboxes.template import Template
from support.sandboxes.topo import TEMPLATES

STATE: Final = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
"""The folder in which controllers keep their state."""
WARM: Final = pytest.StashKey[warm.WarmProcesses]()
"""The processes from which tests in sandboxes fork switches and ranks; the pytest that has the workers has them."""


if hasattr(testing, "_get_command"):  # by it typer builds all commands for each one that a test invokes: 0.04 s
    testing._get_command = cache(testing._get_command)


@pytest.fixture
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where ranks of one machine share memory: a folder of the test's own, since other runs use /dev/shm, too."""
    from netfold.host.collectives import shared_memory

    with tempfile.TemporaryDirectory(dir=shared_memory.SHARED) as folder:
        monkeypatch.setattr(shared_memory, "SHARED", folder)
        yield Path(folder)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib is missing: for tests of data alone, which need not wait for the figures that are drawn of them."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def torch_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in a sandbox are forked from a process that has imported torch, where torch is there: once for all such
    tests."""
    if needs.missing("torch") is None:
        monkeypatch.setattr(ranks.FORKS, "modules", support.TORCH)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """`--rxe-machines 4`, and the options of every suite."""
    pluginmanager.import_plugin("switch_support.suite")
    parser.addoption("--rxe-machines", type=int, default=2, metavar="NUMBER",
                     help="boot so many virtual machines for the test of ordinary RDMA stacks, 2 or more")


def pytest_configure(config: pytest.Config) -> None:
    """A controller keeps the fabric's key in the state's folder: not in the home of whoever runs the tests.  What a
    test starts takes Ctrl-C, also where a shell has pytest ignore it (`&`)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    state = config.stash[STATE] = tempfile.TemporaryDirectory(prefix="netfold-state-")
    os.environ["XDG_STATE_HOME"] = state.name
    if hasattr(config, "workerinput"):
        warm.Warm(warm_folder(config)).serve_torch()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the template and the warm processes, and remove the folder of the controllers' state."""
    while TEMPLATES:
        TEMPLATES.pop().close()
    if WARM in config.stash:
        config.stash[WARM].close()
    config.stash[STATE].cleanup()


def warm_folder(config: pytest.Config) -> str:
    """The folder in which the warm processes of this run listen; the pytest that has the workers starts them."""
    if hasattr(config, "workerinput"):
        return str(config.workerinput["warm"])
    if WARM not in config.stash:
        config.stash[WARM] = warm.WarmProcesses()
    return config.stash[WARM].folder


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist where the warm processes listen."""
    node.workerinput["warm"] = warm_folder(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is imported now stays: no search for garbage in it, while it grows."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """All that tests import is imported, and none of them has run: what tests in sandboxes are forked from, which share
    it, and in which no test's search for garbage looks."""
    gc.freeze()
    gc.enable()
    if any(item.get_closest_marker("netns") for item in session.items) and not session.config.option.collectonly:
        TEMPLATES.append(Template(session, warm_folder(session.config)))
