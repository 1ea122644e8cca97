# SPDX-License-Identifier: Apache-2.0
"""p4c's own samples and samples of errors: taken here where p4c takes them, and refused where it refuses them.

    P4C_SAMPLES=.../p4c/testdata/p4_16_samples pytest tests/compiler/test_samples.py
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softswitch.compiler import cache
from softswitch.compiler.driver import CompileError, compile_file

SAMPLES = Path(os.environ.get("P4C_SAMPLES", ""))
REFUSED_HERE = {
    "issue2201-bmv2.p4": "a log_msg has fewer places than values: BMv2 ends where it runs that",
    "multicast-bmv2.p4": "two actions have one control-plane name: p4c writes no P4Info of it",
    "issue2283_2-bmv2.p4": "@p4runtime_translation without a type: p4c writes no P4Info of it",
}
REFUSED_THERE = {
    "issue1062-bmv2.p4": "a key turns out to be a constant where constants are propagated",
    "issue692-bmv2.p4": "an element of a stack is read that no state has extracted, which p4c finds by data flow",
    "next-def-use.p4": "the same",
}


def taken_here(path: Path) -> bool:
    """True if our compiler takes a program; anything else than a CompileError fails the test."""
    try:
        return bool(compile_file(path).c_source)
    except CompileError:
        return False


def taken_by_p4c(paths: Iterable[Path]) -> list[bool]:
    """True if p4c's back end for BMv2 takes each of these programs."""
    def one(path: Path) -> bool:
        command = ["p4c-bm2-ss", "--Wdisable", "-o", "/dev/null", str(path)]
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, paths))


@pytest.mark.timeout(900)
@pytest.mark.needs("p4c-samples", "p4c")
def test_p4cs_samples_have_p4cs_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceptions are in this file by name; p4c is asked only about programs where it could differ."""
    monkeypatch.setattr(cache, "load", lambda *_, **__: None)
    monkeypatch.setattr(cache, "store", lambda *_, **__: None)
    samples = [path for path in sorted(SAMPLES.glob("*.p4")) if "v1model.p4" in path.read_text()]
    errors = [*sorted((SAMPLES.parent / "p4_16_errors").glob("*.p4")),
              *sorted((SAMPLES.parent / "p4_16_bmv_errors").glob("*.p4"))]
    verdicts = {path: taken_here(path) for path in [*samples, *errors]}
    doubtful = [path for path in samples if not verdicts[path] or path.name in REFUSED_THERE]
    doubtful += [path for path in errors if verdicts[path] or path.name in REFUSED_HERE]
    theirs = dict(zip(doubtful, taken_by_p4c(doubtful), strict=True))

    assert len(samples) > 400
    assert len(errors) > 500
    assert {p.name for p in doubtful if theirs[p] and not verdicts[p]} <= set(REFUSED_HERE)
    assert {p.name for p in doubtful if verdicts[p] and not theirs[p]} <= set(REFUSED_THERE)


WARNED_HERE = {
    "gauntlet_mux_eval-bmv2.p4": "a variable that nothing reads has its value from the header, and p4c removes it",
}


@pytest.mark.timeout(300)
@pytest.mark.needs("p4c-samples")
def test_p4cs_samples_have_p4cs_warnings_of_invalid_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """By line, from the messages that p4c keeps beside its samples; the exception is in this file by name."""
    monkeypatch.setattr(cache, "load", lambda *_, **__: None)
    monkeypatch.setattr(cache, "store", lambda *_, **__: None)
    ours, theirs = {}, {}
    for path in sorted(SAMPLES.glob("*.p4")):
        if "v1model.p4" not in path.read_text() or not taken_here(path):
            continue
        said = SAMPLES.parent / f"{SAMPLES.name}_outputs" / f"{path.name}-stderr"
        text = said.read_text() if said.exists() else ""
        lines = re.findall(r"^\S*\((\d+)\): \[--Wwarn=invalid-header\]", text, re.M)
        theirs[path.name] = {int(line) for line in lines}
        warned = compile_file(path).warnings
        ours[path.name] = {int(line) for line in re.findall(r"^\S*:(\d+):\d+: warning: a field of a h", warned, re.M)}

    assert sum(map(len, theirs.values())) > 50
    assert {name for name in ours if ours[name] != theirs[name]} <= set(WARNED_HERE)
