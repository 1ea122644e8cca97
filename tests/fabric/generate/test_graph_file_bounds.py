# SPDX-License-Identifier: Apache-2.0
"""Small files that say large things: what a graph's file costs is bounded by its bytes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from netfold.fabric.generate import parse
from netfold.fabric.graph import FabricError

ENOUGH = 15
"""Processor seconds, of which these files need two; before they were bounded, they needed 35 and more."""


def refusal_within_bounds(path: Path) -> str:
    """The error of the file's reader, in a process of 2 GiB and so many processor seconds."""
    program = ("import sys; from netfold.fabric.generate import parse; from netfold.fabric.graph import FabricError\n"
               "try: print(len(parse(f'file:{sys.argv[1]}').switches))\n"
               "except FabricError as error: print(error)")

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (ENOUGH, ENOUGH))
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False,
                          preexec_fn=bounded, timeout=10 * ENOUGH)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hosts_are_counted_before_they_are_made(tmp_path: Path) -> None:
    """A file of 300 KB that asks for 800 million hosts is refused with their number, and fills no memory."""
    path = tmp_path / "g.json"
    nodes = [{"id": f"s{number}", "hosts": 99999} for number in range(8000)]
    path.write_text(json.dumps({"nodes": nodes, "links": []}))
    assert "host: expected at most 65,536, got 799,992,000" in refusal_within_bounds(path)


def test_blanks_of_gml_are_read_once(tmp_path: Path) -> None:
    """8 MB of lines of blanks are no graph, and take seconds."""
    path = tmp_path / "g.gml"
    path.write_text(("\n" + " " * 4000) * 2000 + "multigraph 1 x")
    assert "not a graph in the form .gml" in refusal_within_bounds(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_multigraph_of_gml_counts_on_a_line_of_its_own(tmp_path: Path, end: str) -> None:
    """Indented or not, and whatever ends the line: two nodes have two links."""
    path = tmp_path / "g.gml"
    lines = ["graph [", "  multigraph 0 ", "  node [ id 0 ]", "  node [ id 1 ]"]
    path.write_bytes(end.join([*lines, *["  edge [ source 0 target 1 ]"] * 2, "]"]).encode())
    fabric = parse(f"file:{path}")
    assert len(fabric.links) == 2 + len(fabric.hosts)


def test_thousands_of_nodes_of_one_label_get_names_of_their_own(tmp_path: Path) -> None:
    """Each number is tried once, so that 20,000 hosts of one label get their names as soon as others; then their switch
    has no port for them."""
    path = tmp_path / "g.json"
    nodes = [{"id": 0, "label": "s1"}, *({"id": number, "label": "Xy", "kind": "host"} for number in range(1, 20001))]
    links = [{"source": 0, "target": number} for number in range(1, 20001)]
    path.write_text(json.dumps({"nodes": nodes, "links": links}))
    assert "port" in refusal_within_bounds(path)


def test_a_fabric_of_most_hosts_is_no_mistake(tmp_path: Path) -> None:
    """The bound counts hosts that are nodes as well as those that switches have."""
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"nodes": [{"id": "a", "hosts": 65535}, {"id": "b", "kind": "host"},
                                          {"id": "c", "kind": "host"}],
                                "links": [{"source": "a", "target": "b"}, {"source": "a", "target": "c"}]}))
    with pytest.raises(FabricError, match="host: expected at most 65,536, got 65,537"):
        parse(f"file:{path}")
