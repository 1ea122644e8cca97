# SPDX-License-Identifier: Apache-2.0
"""The arrows between the rooms, as docs/architecture.md draws them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "wire": ("netfold.controller", "netfold.host", "netfold.topo", "netfold.sim", "softswitch"),
    "host": ("netfold.controller", "netfold.topo", "netfold.sim", "softswitch.compiler", "softswitch.p4runtime"),
    "controller": ("netfold.host",),
    "softswitch": ("netfold",),
    "sim": ("netfold.host", "netfold.topo"),
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_rooms_talk_through_their_contracts(room: str) -> None:
    """No module imports what its room must not know."""
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in sorted(imports(path))
        for banned in FORBIDDEN[room]
        if name == banned or name.startswith(banned + ".")
    ]
    assert not wrong


def test_only_one_optional_module_imports_scapy() -> None:
    """scapy is GPL-2.0-only: tests may use it, the product must not need it."""
    rooms = ("netfold", "wire", "host", "controller", "softswitch", "topo", "sim", "examples")
    users = {
        str(path.relative_to(ROOT))
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if any(name.split(".")[0] == "scapy" for name in imports(path))
    }
    assert users == {"wire/scapy_roce.py"}


def test_what_is_no_python_is_installed_too() -> None:
    """Sources that are compiled on first use lie in the package data, or an installed NetFold lacks them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = tool["package-dir"]
    patterns = tool["package-data"]["*"]
    homes = [ROOT / folders.get(name, name.replace(".", "/")) for name in tool["packages"]]
    sources = [path for home in homes for path in home.rglob("*") if path.suffix in (".c", ".h", ".p4", ".typed")]
    assert len(sources) > 50
    missed = {
        str(path.relative_to(ROOT)) for path in sources
        if not any(path in home.glob(pattern) for home in homes if path.is_relative_to(home) for pattern in patterns)
    }
    assert not missed
