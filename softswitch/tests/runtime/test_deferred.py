# SPDX-License-Identifier: Apache-2.0
"""softswitch.runtime.deferred: parts of a package are imported without the rest, which is there when asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
        "from .part import value\nother = value + 1\nfrom .last import first\nfrom . import early as kept\n"
    )
    # each needs names of the other: they can be imported in one order alone, that of __init__
    (tmp_path / name / "last.py").write_text("first = 1\nfrom .early import late\n")
    (tmp_path / name / "early.py").write_text("from .last import first\nlate = first + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "runs", 0, raising=False)
    yield name
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


def test_the_init_runs_when_a_name_of_it_is_asked_for(package: str) -> None:
    """A part alone does not run it; an error in it is the caller's, and the next one tries again; then it has run."""
    defer(f"{package}.part")
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


def test_another_part_is_imported_after_the_init_and_once(package: str) -> None:
    """As without `defer`: parts find each other in the order of the `__init__`, and are the same modules for all."""
    defer(f"{package}.part")
    sys.runs = 1
    early = importlib.import_module(f"{package}.early")
    assert early.late == 2
    assert sys.runs == 2
    assert importlib.import_module(package).last.late == 2
    assert importlib.import_module(package).kept is early
    assert sys.modules[f"{package}.early"] is early
    assert early.__spec__.origin == early.__file__
    assert importlib.import_module(f"{package}.part").value == 5
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.nothing")


def test_threads_that_ask_while_the_init_runs_get_what_it_gives(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are waited for; an import of a part that the `__init__` is going to import does not wait for it, since
    that would wait for the import."""
    monkeypatch.setattr(sys, "entered", threading.Event(), raising=False)
    monkeypatch.setattr(sys, "go", threading.Event(), raising=False)
    (tmp_path / package / "__init__.py").write_text(
        "import sys\nsys.entered.set()\nassert sys.go.wait(60)\nfrom .plain import first\nother = first + 1\n"
    )
    (tmp_path / package / "plain.py").write_text("first = 1\n")
    defer(f"{package}.part")
    module = importlib.import_module(package)
    with ThreadPoolExecutor(3) as pool:
        try:
            running = pool.submit(getattr, module, "other")
            assert sys.entered.wait(60)
            waiting = pool.submit(getattr, module, "other")
            assert pool.submit(importlib.import_module, f"{package}.plain").result(60).first == 1
        finally:
            sys.go.set()
        assert running.result(60) == waiting.result(60) == 2


def test_what_is_imported_or_missing_is_left_alone(package: str) -> None:
    """Nobody's module is replaced, and an import of what is not there fails where it is written."""
    defer("pytest.part")
    assert sys.modules["pytest"] is pytest
    defer("no_such_package_for_a_test.part")
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
