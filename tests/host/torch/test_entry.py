# SPDX-License-Identifier: Apache-2.0
"""torch finds the backend by itself, and a program whose group is refused ends in one line."""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator

import pytest

from netfold.topo.processes.forks import Forks
from support.docs.snippets import ROOT

pytest.importorskip("torch")

PROGRAM = """
import sys
import torch
import torch.distributed as dist
assert "netfold.torch" not in sys.modules
backend = sys.argv[1]
dist.init_process_group(backend, init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
print(type(dist.group.WORLD).__name__, *(name in sys.modules for name in ("torch._dynamo", "netfold.torch")))
dist.destroy_process_group()
"""


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs the program with a backend and environment variables, in a fork of a process that has imported torch; our
    entry point is that of a distribution which is beside the paths of this process.  Returns the status and what it
    has printed, on standard output and on standard error."""
    folder, group = tmp_path_factory.mktemp("entry"), "torch.backends"
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group]
    info = folder / "netfold-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: netfold\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NETFOLD_")}
    kept |= {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "PYTEST_CURRENT_TEST": ""}
    script = folder / "program.py"
    script.write_text(PROGRAM)
    forks = Forks("torch.distributed", environment=kept)

    def one(backend: str, **variables: str) -> tuple[int, str, str]:
        (folder / "store").unlink(missing_ok=True)
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            program = forks.start([sys.executable, str(script), backend, str(folder / "store")], output, errors,
                                  environment=kept | variables)
            status = program.wait(240)
            output.seek(0)
            errors.seek(0)
            return status, output.read(), errors.read()

    yield one
    forks.close()


@pytest.mark.slow
def test_a_group_needs_no_import_of_ours(run: Run) -> None:
    """`import torch` alone imports nothing of NetFold; a group of its backend does, and other backends do not.  A
    collective does not import Dynamo, which takes seconds."""
    _, said, errors = run("netfold", NETFOLD_CONTROLLER="store", NETFOLD_ADDRESS="127.0.0.1")
    assert said == "NetfoldGroup False True\n", errors
    assert run("gloo")[1].endswith("False\n")


@pytest.mark.slow
def test_a_refused_group_ends_in_one_line(run: Run) -> None:
    """Without a controller the message names three ways on, without a traceback unless that is asked for; a group with
    a device that ours does not carry is refused before anything else."""
    status, _, errors = run("netfold")
    assert status == 1
    (line,) = errors.splitlines()
    assert "NETFOLD_CONTROLLER" in line
    assert "'store'" in line
    assert "netfold run -np 1 --topo leafspine,2,1,2 -- python SCRIPT" in line
    assert "Traceback" in run("netfold", NETFOLD_TRACEBACK="1")[2]
    assert "is for tensors on all devices" in run("cpu:netfold,cuda:gloo")[2]
