# SPDX-License-Identifier: Apache-2.0
"""The arrows between the rooms, as docs/architecture.md draws them."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from support.syntax import statements

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "src", ROOT / "softswitch" / "src", ROOT / "cbuild" / "src")
"""Where each of the three projects has its package."""
TESTS = ROOT / "tests"

ROOMS = {
    "cbuild": (),
    "disk": ("cbuild",),
    "wire": (),
    "rpc": (),
    "plots": ("disk",),
    "fabric": ("disk", "wire"),
    "bmv2_json": (),
    "softswitch": ("cbuild",),
    "host": ("cbuild", "disk", "rpc", "wire"),
    "testing": ("host", "wire"),
    "controller": ("bmv2_json", "cbuild", "disk", "fabric", "rpc", "softswitch", "wire"),
    "sim": ("cbuild", "disk", "fabric", "plots", "wire"),
    "topo": ("cbuild", "controller", "disk", "fabric", "host", "rpc", "wire"),
    "demo": ("controller", "disk", "fabric", "host", "rpc", "topo", "wire"),
    "bench": ("cbuild", "controller", "demo", "disk", "fabric", "host", "plots", "rpc", "sim", "softswitch", "topo",
              "wire"),
    "cli": ("bench", "cbuild", "controller", "demo", "disk", "fabric", "rpc", "sim", "softswitch", "topo", "wire"),
}
"""The rooms and which others each may import, lowest first.  A script may also import what users do, netfold itself."""
INSIDE = {
    "fabric": ("", "generate", "folding", "placement", "routing"),
    "host": ("", "tracing", "operation", "mesh", "client", "native", "collectives", "parameters", "selection", "exact",
             "innet", "verbs", "roce", "opening", "rails", "staging", "api", "capi", "torch"),
    "controller": ("switch", "health", "jobs", "paths", "operations", "web", ""),
    "topo": ("processes", "network", "faults", "captures", "", "agents", "rxe", "machines"),
    "softswitch": ("runtime", "engine", "compiler", "trace", "trace.page", "stf", "p4runtime", "thrift",
                   "tools.cli", "tools", "explain", "cli", ""),
}
"""The folders of a room, lowest first: each may import those before it.  "" is the room's own top level."""
SUPPORT = ("", "models", "fabrics", "control", "p4", "hosts", "devices", "sandboxes", "ranks", "hostile", "docs",
           "handbook")
"""The folders of tests/support, likewise."""


def modules() -> Iterator[tuple[str, bool, Path]]:
    """Every module of the projects by its import name, whether it is a package, and its file."""
    for source in SOURCES:
        for folder, folders, files in os.walk(source, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__" and not name.endswith(".egg-info")]
            for file in files:
                if file.endswith(".py"):
                    path = Path(folder, file)
                    parts = path.relative_to(source).with_suffix("").parts
                    package = parts[-1] == "__init__"
                    yield ".".join(parts[:-1] if package else parts), package, path


@cache
def imports(path: Path) -> set[str]:
    """Every module, and every name of a module, that a file imports, wherever in it."""
    found: set[str] = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return found


@cache
def folder_imports() -> dict[tuple[str, str], list[str]]:
    """Which folder (package) imports from which other one, and the modules that do."""
    known = {name: name if package else name.rpartition(".")[0] for name, package, _ in modules()}
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, _, path in modules():
        for target in sorted(imports(path) & known.keys()):
            if known[target] != known[name]:
                edges[known[name], known[target]].append(f"{name} imports {target}")
    return edges


def room(package: str) -> str:
    """The room of a package: "host" for netfold.host.mesh, "softswitch" for softswitch.engine, "" for netfold."""
    parts = package.split(".")
    return parts[0] if parts[0] != "netfold" else parts[1] if len(parts) > 1 else ""


def test_folders_form_a_graph_without_cycles() -> None:
    """No folder imports, over however many others, one that imports it."""
    edges = folder_imports()
    assert len(edges) > 100
    graph = nx.DiGraph(edges.keys())
    cycles = [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]
    assert not cycles, [edges[edge] for edge in graph.subgraph(cycles[0]).edges]


def test_modules_form_a_graph_without_cycles() -> None:
    """No module imports one that imports it, not even for types or inside a function."""
    names = {name for name, _, _ in modules()}
    graph = nx.DiGraph()
    for name, _, path in modules():
        found = imports(path) & names
        packages = {target.rpartition(".")[0] for target in found}  # of a module that is imported from there
        graph.add_edges_from((name, target) for target in found - packages - {name})
    assert len(graph.edges) > 1000
    cycles = [group for group in nx.strongly_connected_components(graph) if len(group) > 1]
    assert not cycles, [sorted(group) for group in cycles]


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_import_only_those_below_them(name: str) -> None:
    """No module imports from a room that its own must not know."""
    below = list(ROOMS)[: list(ROOMS).index(name)]
    assert set(ROOMS[name]) <= set(below)
    scripts = name in ("bench", "demo", "cli")
    wrong = [
        said
        for (package, target), why in folder_imports().items()
        for said in why
        if room(package) == name and room(target) not in (name, *ROOMS[name], *([""] if scripts else []))
    ]
    assert not wrong


@pytest.mark.parametrize("name", INSIDE)
def test_folders_of_a_room_import_only_those_below_them(name: str) -> None:
    """Inside a room, too, imports go one way, as docs/architecture.md lists its folders."""
    top = name if name == "softswitch" else f"netfold.{name}"
    order = {f"{top}.{folder}".rstrip("."): place for place, folder in enumerate(INSIDE[name])}
    inside = {name for name, package, _ in modules() if package and f"{name}.".startswith(f"{top}.")}
    assert inside == set(order)
    wrong = [
        said
        for (package, target), why in folder_imports().items()
        for said in why
        if package in order and target in order and order[target] > order[package]
    ]
    assert not wrong


def test_folders_of_the_tests_support_import_only_those_below_them() -> None:
    """The shared code of the tests is layered, too, so that what a test imports says what it needs."""
    support = TESTS / "support"
    files = {".".join(path.relative_to(TESTS).with_suffix("").parts).removesuffix(".__init__"): path
             for path in support.rglob("*.py")}
    home = {name: ".".join(path.relative_to(support).parent.parts) for name, path in files.items()}
    assert set(home.values()) == set(SUPPORT)
    wrong = [
        f"{name} imports {target}"
        for name, path in files.items()
        for target in imports(path) & files.keys()
        if SUPPORT.index(home[target]) > SUPPORT.index(home[name])
    ]
    assert not wrong


def test_every_room_is_in_the_table() -> None:
    """A new folder of a project states what it may import."""
    rooms = {room(name) for name, package, _ in modules() if package} - {""}
    assert rooms - {"p4src"} == set(ROOMS)


def test_a_test_file_says_by_its_place_whose_it_is() -> None:
    """Folders of tests are named as those that they test; the others belong to no single room."""
    packages = {name.removeprefix("netfold.").replace(".", "/") for name, package, _ in modules() if package}
    folders = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")} - {"."}
    assert len(folders) > 30
    assert folders - packages == {"e2e", "p4", "packaging"}
    switch = ROOT / "softswitch" / "tests"
    folders = {str(Path("softswitch", path.parent.relative_to(switch))) for path in switch.rglob("test_*.py")}
    assert len(folders) > 10
    assert folders - packages == {"softswitch/foreign"}


def test_the_switch_and_its_tests_know_nothing_of_netfold() -> None:
    """The project softswitch is whole without the others but what it compiles with."""
    files = list((ROOT / "softswitch").rglob("*.py"))
    assert len(files) > 250
    assert not [str(path) for path in files for used in imports(path) if used.split(".")[0] in ("netfold", "support")]


def test_no_module_of_the_product_imports_scapy() -> None:
    """scapy is GPL-2.0-only: tests may use it, a distribution under Apache-2.0 must not."""
    users = {name for name, _, path in modules() if any(used.split(".")[0] == "scapy" for used in imports(path))}
    assert not users


@pytest.mark.parametrize("package", ["netfold", "softswitch", "cbuild"])
def test_public_classes_have_distinct_names(package: str) -> None:
    """Within a package no two modules define a public class of the same name, so that a name says which one is
    meant."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, _, path in modules():
        if name.split(".")[0] == package:
            for found in re.findall(r"^class ([^\W_]\w*)", path.read_text(), re.M):
                homes[found].append(name)
    assert homes
    assert not {name: where for name, where in homes.items() if len(where) > 1}
