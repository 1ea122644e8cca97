# SPDX-License-Identifier: Apache-2.0
"""Every Python example of the documentation runs: alone, or on the ranks of a real fabric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netfold.topo.network import sandbox
from support import needs
from support.docs import snippets
from support.docs.snippets import SCENES, Snippet
from support.fabrics.fabrics import leafspine
from support.hosts.c_programs import FORKS, compiled
from support.sandboxes.topo import in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.slow

EXAMPLES = snippets.snippets()
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def chosen(kind: str) -> list[Snippet]:
    """The examples of a kind."""
    return [one for one in EXAMPLES if one.key in SCENES and SCENES[one.key].kind == kind]


def named(snippet: Snippet) -> str:
    """The name of an example in the output."""
    return " ".join(snippet.key)


def test_each_example_has_its_scene() -> None:
    """An example that no test runs, and a scene whose example is gone, are told."""
    assert {snippet.key for snippet in EXAMPLES} == SCENES.keys()


@pytest.mark.timeout(330)
@pytest.mark.parametrize("snippet", chosen("alone"), ids=named)
def test_an_example_runs_by_itself(snippet: Snippet, tmp_path: Path) -> None:
    """The example is a whole program, started in an empty folder beside examples/."""
    needs.require(*SCENES[snippet.key].needs)
    (tmp_path / "examples").symlink_to(snippets.ROOT / "examples")
    (tmp_path / "logs").mkdir()
    file = tmp_path / "program.py"
    file.write_text(snippets.program(snippet))
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, env={**os.environ, "PATH": PATH},
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def on_ranks(network: Network, kind: str, ranks: int, folder: Path) -> None:
    """Run all examples of a kind on so many ranks of one job."""
    able = [one for one in chosen(kind) if not any(needs.missing(need) for need in SCENES[one.key].needs)]
    file = folder / f"{kind}.json"
    file.write_text(json.dumps([(named(one), snippets.program(one)) for one in able]))
    env = {"MASTER_ADDR": network.fabric.hosts[0].address, "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1",
           "RES_OPTIONS": "timeout:1 attempts:1"}
    command = [*program("snippets.py"), str(file)]
    for lines in network.launch(command, job=kind, hosts=network.fabric.hosts[:ranks], env=env).wait(within=120):
        assert [line for line in lines if line in map(named, able)] == list(map(named, able))


@pytest.mark.timeout(200)
@pytest.mark.usefixtures("torch_in_forks")
@in_sandbox(timeout=180)
def test_examples_run_on_the_ranks_of_a_fabric(tmp_path: Path) -> None:
    """Examples with a communicator run on four ranks, those of torch and in C on two, over switches that fold; a
    child that a C program has forked adds nothing to its parent's sums."""
    fabric = leafspine(2, 2, snippets.RANKS, rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        on_ranks(network, "ranks", snippets.RANKS, tmp_path)
        if needs.missing("torch") is None:
            on_ranks(network, "torch", 2, tmp_path)
        if needs.missing("libpython") is None:
            forks = compiled(tmp_path / "forks", FORKS)
            two = network.fabric.hosts[::3]  # one below each leaf
            for lines in network.launch([str(forks)], job="forks", hosts=two).wait(within=60):
                assert f"child NETFOLD_CLOSED, sum {len(two)}" in lines
            example = compiled(tmp_path / "example", (snippets.ROOT / "examples/allreduce.c").read_text())
            for rank, lines in enumerate(network.launch([str(example)], job="c", hosts=two).wait(within=60)):
                assert any(line.startswith(f"rank {rank} of {len(two)}: exact; ") for line in lines), lines
