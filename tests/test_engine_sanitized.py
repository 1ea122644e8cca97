# SPDX-License-Identifier: Apache-2.0
"""The runtime under AddressSanitizer and UBSan: hostile frames, hostile requests, leaks at the end."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers_probe import PROBE

from softswitch import cc
from softswitch.compiler.driver import compile_file
from softswitch.linking import CORE, RUNTIME

HOSTILE = PROBE.with_name("hostile.c")
FLAGS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
SEED = "20261121"


@pytest.fixture(scope="module")
def build() -> Callable[[str | Path], Path]:
    """Links a program with a sanitized runtime and hostile.c."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc with its sanitizers")
    compiler = cc.Compiler((gcc,), "sanitized")
    try:
        runtime = cc.build([HOSTILE, *(RUNTIME / file for file in CORE)], kind="shared", name="hostile-runtime",
                           include=[RUNTIME], flags=FLAGS, compiler=compiler)
    except cc.BuildError as error:
        if "san" in str(error) and "cannot find" in str(error):
            pytest.skip("this gcc has no sanitizer libraries")
        raise
    return lambda program: cc.build([program], kind="exe", name="hostile", include=[RUNTIME], flags=FLAGS,
                                    libs=[str(runtime)], compiler=compiler)


def run(program: Path, *args: str) -> None:
    done = subprocess.run([program, SEED, *args], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "frames" in done.stdout


def test_hostile_frames_and_requests_touch_nothing_they_should_not(build: Callable[[str | Path], Path]) -> None:
    """Truncated at every byte, oversized, random; requests cut short, random, and valid ones with wrong numbers."""
    run(build(PROBE))


fold_frame = (
    bytes.fromhex("0200000000010200000000020800" "4500043c000040004011" "0000" "0a0000010a000002" "c00012b704280000")
    + bytes.fromhex("0740ffff" "00000005" "00000009") + bytes(1024) + bytes(4)
)
"""A RoCEv2 WRITE MIDDLE of 1024 bytes."""


@pytest.mark.parametrize(("source", "frame"), [
    ("tests/native/traffic.p4", struct.pack(">BBHI", 4, 1, 2, 3) + bytes(40)),
    ("tests/native/tables.p4", bytes(40)),
    ("p4src/netfold.p4", fold_frame),
], ids=["traffic", "tables", "netfold"])
def test_compiled_programs_stand_hostile_frames_too(
    build: Callable[[str | Path], Path], tmp_path: Path, source: str, frame: bytes
) -> None:
    """A good frame cut at every byte and with bits turned, between random entries, groups and requests."""
    (tmp_path / "frame").write_bytes(frame)

    run(build(compile_file(Path(__file__).parents[1] / source).c_source), str(tmp_path / "frame"), "4000")
