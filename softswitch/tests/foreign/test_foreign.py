# SPDX-License-Identifier: Apache-2.0
"""Public programs that nobody made for softswitch, where a folder of them is at hand (docs/programs.md):

    FOREIGN_PROGRAMS=FOLDER pytest tests/foreign --timeout=36000
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from foreign import programs
from foreign.run import judge_all

pytestmark = [pytest.mark.needs("foreign-programs"), pytest.mark.needs("bmv2"), pytest.mark.timeout(36000)]
SEED = 1


def test_what_p4c_takes_compiles_and_forwards_as_on_bmv2(tmp_path: Path) -> None:
    """99 of 100 programs that p4c's BMv2 back end takes compile; none ends in a traceback or gcc's errors, none has
    another P4Info, and of none leaves another packet than BMv2 sends, where the specification fixes it."""
    found = list(programs.find(Path(os.environ["FOREIGN_PROGRAMS"])))
    print(f"{len(found)} programs, seed {SEED}")
    rows = list(judge_all(found, cache=tmp_path, seed=SEED, workers=os.cpu_count() or 1))
    print(Counter((row["p4c"], row["ours"]) for row in rows))

    taken = [row for row in rows if row["p4c"] == "yes"]
    assert len(taken) > 50
    assert sum(row["ours"] == "yes" for row in taken) >= 0.99 * len(taken)
    assert not [row for row in rows if row["ours"] in ("crash", "C", "timeout")]
    assert not [row for row in taken if row["p4info"] == "differs"]
    assert not [row for row in taken if row["traffic"] == "differs"]
