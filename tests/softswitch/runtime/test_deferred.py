# SPDX-License-Identifier: Apache-2.0
"""softswitch.runtime.deferred: parts of a package are imported without the rest, which is there when asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch.runtime.deferred import defer


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose `__init__` is told from its part by what it leaves in sys."""
    name = "deferred_for_a_test"
    (tmp_path / name).mkdir()
    (tmp_path / name / "part.py").write_text("value = 5\n")
    (tmp_path / name / "__init__.py").write_text(
        "import sys\nsys.runs = getattr(sys, 'runs', 0) + 1\n"
        "if sys.runs == 1: raise OSError('not yet')\n"
        "from .part import value\nother = value + 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "runs", 0, raising=False)
    yield name
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


def test_the_init_runs_when_a_name_of_it_is_asked_for(package: str) -> None:
    """A part alone does not run it; an error in it is the caller's, and the next one tries again; then it has run."""
    defer(package)
    assert importlib.import_module(f"{package}.part").value == 5
    module = importlib.import_module(package)
    assert sys.runs == 0
    with pytest.raises(OSError, match="not yet"):
        _ = module.other
    assert module.other == 6
    assert module.part is sys.modules[f"{package}.part"]
    assert sys.runs == 2
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_what_is_imported_or_missing_is_left_alone(package: str) -> None:
    """Nobody's module is replaced, and an import of what is not there fails where it is written."""
    defer("pytest")
    assert sys.modules["pytest"] is pytest
    defer("no_such_package_for_a_test")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_for_a_test")


def test_the_server_imports_no_controller_of_finsy_and_users_have_it() -> None:
    """What a switch imports at its start does not hold finsy's own classes; who asks for them gets them."""
    code = (
        "import sys, softswitch.p4runtime.server\n"
        "assert 'finsy.controller' not in sys.modules\n"
        "import finsy\n"
        "assert finsy.Controller.__module__ == 'finsy.controller'\n"
        "assert finsy.proto.p4r is sys.modules['finsy.proto.p4.v1.p4runtime_pb2']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
