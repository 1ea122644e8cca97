# SPDX-License-Identifier: Apache-2.0
"""The table of bad days in docs/security.md: every line has a test, and every test of a table is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "security.md"


def rows() -> list[tuple[str, str]]:
    """Each line's bad day, and its test."""
    section = PAGE.read_text().partition("## Bad days\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    return [(day, test.strip("`")) for day, _, test in lines[2:]]


@pytest.mark.parametrize(("day", "test"), rows())
def test_every_bad_day_has_a_test(day: str, test: str) -> None:
    """The file has that function, and a case of that name where one is named."""
    found = re.fullmatch(r"([\w/]+\.py)::(test_\w+)(?:\[(\w+)\])?", test)
    assert found, f"{day}: expected FILE.py::test_NAME, got {test!r}"
    place = TESTS.parent if found[1].startswith("softswitch/") else TESTS
    tree = ast.parse((place / found[1]).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert found[2] in names
    assert found[3] is None or found[3] in names


def test_every_case_of_a_full_disk_has_a_line() -> None:
    """Whoever adds a case adds a line."""
    text = (TESTS / "e2e" / "test_full_disk.py").read_text()
    cases = re.findall(r"\w+", text.partition("for case in (")[2].partition(")")[0])
    named = {match for _, test in rows() for match in re.findall(r"\[(\w+)\]", test)}
    assert set(cases) == named
    assert len(rows()) > 30
