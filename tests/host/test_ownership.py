# SPDX-License-Identifier: Apache-2.0
"""Attributes belong to the class that declares them: other modules call its methods instead of setting them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HOST = Path(__file__).resolve().parents[2] / "host"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every ``x.attr`` that is assigned to below a node, in whatever kind of statement."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def declared(tree: ast.AST) -> set[str]:
    """Attributes of a module's classes: of their bodies, and those that their methods set on themselves."""
    found = {node.attr for node in stored(tree) if is_self(node.value)}
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for line in owner.body:
            targets = line.targets if isinstance(line, ast.Assign) else []
            targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def made(function: Function) -> set[str]:
    """Names to which a function assigns a new object: whoever makes one may finish it."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2]
            if called.lstrip("_")[:1].isupper():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def foreign(path: Path, tree: ast.AST, owners: dict[str, set[Path]]) -> Iterator[str]:
    """Assignments to attributes that only classes of other modules declare."""
    own = {
        id(node)
        for function in ast.walk(tree) if isinstance(function, Function) for new in [made(function)]
        for node in stored(function) if isinstance(node.value, ast.Name) and node.value.id in new
    }
    for node in stored(tree):
        homes = owners.get(node.attr, set())
        if homes and path not in homes and not is_self(node.value) and id(node) not in own:
            theirs = ", ".join(sorted(home.name for home in homes))
            yield f"{path.name}:{node.lineno} sets {ast.unparse(node)}, which classes of {theirs} have"


def violations(modules: dict[Path, ast.Module]) -> list[str]:
    """The places where a module sets an attribute that only classes of other modules declare."""
    owners: dict[str, set[Path]] = defaultdict(set)
    for path, tree in modules.items():
        for name in declared(tree):
            owners[name].add(path)
    return [said for path, tree in modules.items() for said in foreign(path, tree, owners)]


def test_no_module_sets_an_attribute_of_anothers_class() -> None:
    """An object is changed by its own methods, or by the module that its class is in, or while it is being made."""
    modules = {path: ast.parse(path.read_text()) for path in sorted(HOST.rglob("*.py"))}
    assert len(modules) > 80
    assert violations(modules) == []


def test_a_foreign_assignment_is_found() -> None:
    """Through a name or an attribute, of several targets, and augmented; not where the object has just been made."""
    owner = ast.parse("class Thing:\n    size: int = 0\n    def __init__(self):\n        self.note = None\n")
    for line in (
        "thing.size = 1", "self.thing.note = 1", "a = thing.size = 1", "thing.size += 1", "(x, thing.note) = y"
    ):
        user = ast.parse(f"class User:\n    def use(self, thing):\n        {line}\n")
        assert len(violations({Path("owner.py"): owner, Path("user.py"): user})) == 1, line
    for line in ("thing = Thing(); thing.size = 1", "self.size = 1", "thing.other = 1"):
        user = ast.parse(f"class User:\n    def use(self, thing):\n        {line}\n")
        assert not violations({Path("owner.py"): owner, Path("user.py"): user}), line
