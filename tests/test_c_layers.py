# SPDX-License-Identifier: Apache-2.0
"""The arrows between C modules: a module is a .c file with its .h file, and calls only what it includes."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = "softswitch/src/softswitch/runtime"
PUBLIC = {"host/native": {"rc.h", "fold.h", "abi.c"}, "sim/native": {"run.c", "fluid.c"},
          RUNTIME: {"switch.h", "softswitch.h", "capture.c", "main.c"}}
"""Folder -> headers that programs of others include, and files with what they call by name."""
INCLUDE = re.compile(r'^#include "(?:[^"]*/)?([^"/]+)\.h"', re.MULTILINE)


def modules(folder: Path) -> dict[str, set[str]]:
    """For each module of a folder, those of the same folder that its .c and .h include."""
    files = [path for path in folder.iterdir() if path.suffix in (".c", ".h")]
    names = {path.stem for path in files}
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in files:
        found[path.stem] |= set(INCLUDE.findall(path.read_text())) & names - {path.stem}
    return found


@pytest.mark.parametrize("folder", PUBLIC)
def test_c_modules_form_layers(folder: str) -> None:
    """No module includes, over whichever others, itself."""
    graph = modules(ROOT / folder)
    assert len(graph) > 5
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{folder}: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("folder", PUBLIC)
def test_functions_are_declared_by_the_module_that_has_them(folder: str) -> None:
    """What includes show is what is called: X.c's functions are declared in X.h, or in the public header of its group.

    Otherwise one header for all would make every circle look like layers.
    """
    definition = re.compile(r"^(?!static\b|typedef\b)[a-z][\w *]*?\b(\w+)\([^;]*\)\s*\{", re.MULTILINE)
    public = PUBLIC[folder]
    wrong = []
    for source in sorted((ROOT / folder).glob("*.c")):
        if source.name in public:
            continue
        headers = {source.stem + ".h"} | {name for name in public if name.endswith(".h")}
        declared = "".join((ROOT / folder / name).read_text() for name in headers if (ROOT / folder / name).exists())
        names = definition.findall(source.read_text())
        wrong += [f"{source.name}: {name}" for name in names if not re.search(rf"\b{name}\(", declared)]
    assert not wrong
