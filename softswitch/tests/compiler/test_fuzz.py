# SPDX-License-Identifier: Apache-2.0
"""P4 programs that nobody would write: each compiles, and then for gcc as well, or is refused with a named error."""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path
from types import FrameType

import pytest

from cbuild import cc
from softswitch.compiler import cache, confined
from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.driver import compile_source
from softswitch.compiler.preprocess import LIBRARY
from softswitch.engine.linking import RUNTIME, TYPES
from switch_support import NATIVE, fuzz

SAMPLES = [*(Path(__file__).parent / "programs").glob("*.p4"), *NATIVE.glob("*.p4")]
BOUND = confined.CPU_SECONDS
"""Seconds of processor time that a compilation may take."""


def compiled(text: str) -> str:
    """The C of a program, or "" where it is refused. Any other exception than CompileError is a finding."""
    def too_long(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"compiled for more than {BOUND} s")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, BOUND)
    try:
        return compile_source(text, "fuzz.p4", include=LIBRARY).c_source
    except CompileError:
        return ""
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def gcc_says(c_source: str, folder: Path) -> str:
    """gcc's complaints about generated C, or ""."""
    (folder / "fuzz.c").write_text(c_source)
    done = subprocess.run([*cc.find_compiler().command, "-std=gnu11", "-fsyntax-only", *TYPES, f"-I{RUNTIME}",
                           f"-I{cc.HERE}", str(folder / "fuzz.c")], capture_output=True, text=True, timeout=120)
    return done.stderr if done.returncode else ""


def make(draw: random.Random, samples: list[list[str]]) -> str:
    """A mutated program."""
    return fuzz.mutate(draw, draw.choice(samples), draw.choice(samples))


@pytest.mark.fuzz
def test_mutated_programs_compile_or_are_refused(
    fuzzing: fuzz.Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no compilation without end, and nothing that the C compiler refuses."""
    monkeypatch.setattr(cache, "load", lambda *_, **__: None)
    monkeypatch.setattr(cache, "store", lambda *_, **__: None)
    samples = [fuzz.pieces(path.read_text()) for path in sorted(SAMPLES)]
    good = 0
    for draw in fuzzing.inputs(60):
        text = make(draw, samples)
        try:
            c_source = compiled(text)
            assert not (c_source and (complaint := gcc_says(c_source, tmp_path))), complaint
        except Exception:
            (tmp_path / "finding.p4").write_text(text)
            print(f"input {fuzzing.tried}: {tmp_path / 'finding.p4'}")
            raise
        good += bool(c_source)
    print(f"fuzz: {good} of them compiled")
    assert 0 < good < fuzzing.tried
