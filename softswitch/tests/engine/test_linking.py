# SPDX-License-Identifier: Apache-2.0
"""softswitch.engine.linking: programs share what they have in common, so that each costs its own C file alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbuild import cc
from softswitch.engine import linking
from switch_support.probe import PROBE

QUICK = ("-O0",)
"""The level does not matter here."""


def test_the_runtime_is_compiled_once_for_all_programs_and_both_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library, an executable and a second program: each of their translation units is compiled a single time."""
    compiled: list[str] = []
    real = cc._compile

    def counted(*args: object) -> None:
        compiled.append(str(args[5]))
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cc, "_compile", counted)
    library = linking.build(PROBE, flags=QUICK, cache_dir=tmp_path)
    units = {f"runtime-{unit.name}" for unit in (*linking.UNITS["shared"], *linking.UNITS["exe"])}

    def names() -> list[str]:
        return sorted(Path(path).name.rsplit("-", 2)[0] for path in compiled)

    once = {f"runtime-{unit.name}" for unit in linking.UNITS["shared"]}
    assert names() == sorted([*once, "switch", "switch"])  # the program, and the library
    executable = linking.build(PROBE, kind="exe", flags=QUICK, cache_dir=tmp_path)
    assert names() == sorted([*units, "switch", "switch", "switch"])
    compiled.clear()
    other = linking.build(PROBE.read_text() + "\n/* another */\n", kind="exe", flags=QUICK, cache_dir=tmp_path)
    assert names() == ["switch", "switch"]
    assert len({library, executable, other}) == 3


@pytest.fixture
def one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is a single short file."""
    monkeypatch.setattr(linking, "UNITS", {"shared": linking.UNITS["shared"][-1:]})


@pytest.mark.usefixtures("one_unit")
def test_an_object_that_has_gone_is_made_again(tmp_path: Path) -> None:
    """The cache may be emptied under a process that has used it."""
    (made,) = linking.begin("shared", flags=QUICK, cache_dir=tmp_path)
    made.result().unlink()

    (again,) = linking.begin("shared", flags=QUICK, cache_dir=tmp_path)
    assert again.result().is_file()


@pytest.mark.usefixtures("one_unit")
def test_flags_hold_for_the_runtime_too(tmp_path: Path) -> None:
    """A build for debugging does not run the optimised runtime."""
    plain, other = (
        {part.result() for part in linking.begin("shared", flags=flags, cache_dir=tmp_path)}
        for flags in (QUICK, (*QUICK, "-DX"))
    )
    assert not plain & other


def test_every_file_of_the_runtime_is_in_one_unit_of_a_kind() -> None:
    """A C file that was added to the folder belongs to the library, the executable, or both; and once."""
    files = {file.name for file in linking.RUNTIME.glob("*.c")}
    for units in linking.UNITS.values():
        listed = [file for unit in units for file in unit.files]
        assert len(listed) == len(set(listed))
        assert set(listed) <= files
    assert {file for units in linking.UNITS.values() for unit in units for file in unit.files} == files
