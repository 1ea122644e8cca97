# SPDX-License-Identifier: Apache-2.0
"""p4c's own v1model samples with packet tests, where a checkout of p4c is at hand:

    P4C_SAMPLES=.../p4c/testdata/p4_16_samples pytest tests/stf/test_corpus.py
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from softswitch.compiler.diagnostics import CompileError
from softswitch.stf.runner import run

SAMPLES = os.environ.get("P4C_SAMPLES", "")
_V1MODEL = re.compile(r'#include\s*[<"]v1model\.p4')
BMV2_FAILS_TOO = 1
"""extern-funcs-bmv2 declares an extern function that no target has."""


@pytest.mark.needs("p4c-samples")
@pytest.mark.timeout(1800)
def test_p4cs_samples_pass_and_what_does_not_compile_is_refused() -> None:
    """As many samples pass as on BMv2, none with a wrong result; those that do not compile are
    refused as unsupported."""
    folder = Path(SAMPLES)
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    for test in sorted(folder.glob("*.stf")):
        program = test.with_suffix(".p4")
        if not program.exists() or _V1MODEL.search(program.read_text()) is None:
            continue
        try:
            report = run(program, test, include=[folder])
        except CompileError as error:
            print(error)
            verdicts["refused" if "error: unsupported: " in str(error) else "not taken"] += 1
            continue
        verdicts["passed" if report.passed else "failed"] += 1
        if not report.passed:
            wrong.append(str(report))
    print(dict(verdicts))

    assert not wrong, "\n\n".join(wrong)
    assert verdicts["passed"] > 180
    assert verdicts["refused"] <= BMV2_FAILS_TOO
    assert verdicts["not taken"] == 0
