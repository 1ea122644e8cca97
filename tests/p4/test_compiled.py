# SPDX-License-Identifier: Apache-2.0
"""The program of p4src, as softswitch compiles it: what the controller may rely on when it pushes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netfold.controller.switch import pipeline
from softswitch.compiler.driver import compile_file, compile_source
from support import ROOT
from switch_support.sanitized import build, run

NETFOLD = ROOT / "p4src" / "netfold.p4"
FRAME = (
    bytes.fromhex("0200000000010200000000020800" "4500043c000040004011" "0000" "0a0000010a000002" "c00012b704280000")
    + bytes.fromhex("0740ffff" "00000005" "00000009") + bytes(1024) + bytes(4)
)
"""A RoCEv2 WRITE MIDDLE of 1024 bytes."""


def test_preprocessed_text_is_the_whole_program() -> None:
    """Compiling `preprocessed`, away from all files, gives the same C and the same P4Info."""
    whole = compile_file(NETFOLD)
    again = compile_source(whole.preprocessed, str(NETFOLD))

    assert "#include" not in whole.preprocessed
    assert again.c_source == whole.c_source
    assert again.p4info == whole.p4info


def test_generated_c_names_the_lines_of_included_files() -> None:
    """The generated C has comments with the lines of the P4 source, each by its file."""
    assert re.search(r"/\* .*fold\.p4:\d+ \*/", compile_file(NETFOLD).c_source)


@pytest.mark.parametrize("children", ["64", "256"])
def test_the_compiler_warns_of_nothing(children: str) -> None:
    """A warning of ours in the program that everybody compiles would teach people to read over warnings."""
    assert compile_file(NETFOLD, defines={"MAX_CHILDREN": children}).warnings == ""


@pytest.mark.needs("p4c")
def test_p4c_writes_the_same_p4info() -> None:
    """The controller may take either compiler's P4Info."""
    assert pipeline.build("softswitch").p4info == pipeline.build("bmv2").p4info


def test_it_stands_hostile_frames(tmp_path: Path) -> None:
    """A good frame cut at every byte and with bits turned, between random entries, groups and requests, under
    sanitizers."""
    (tmp_path / "frame").write_bytes(FRAME)

    run(build(compile_file(NETFOLD).c_source), str(tmp_path / "frame"), "4000")
