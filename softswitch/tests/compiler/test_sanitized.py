# SPDX-License-Identifier: Apache-2.0
"""Programs of every language feature under AddressSanitizer and UBSan, fed with recorded frames turned hostile."""

from __future__ import annotations

from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_file
from switch_support.sanitized import build, run

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.p4"))


@pytest.mark.slow
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda p: p.stem)
def test_generated_code_stands_hostile_frames(tmp_path: Path, source: Path) -> None:
    """The longest recorded frame cut at every byte and with bits turned touches nothing that it should not."""
    frames = [line.split()[2] for line in source.with_suffix(".stf").read_text().splitlines() if "packet" in line]
    (tmp_path / "frame").write_bytes(bytes.fromhex(max(frames, key=len)))

    run(build(compile_file(source).c_source), str(tmp_path / "frame"), "3000")
