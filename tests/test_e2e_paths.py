# SPDX-License-Identifier: Apache-2.0
"""Collectives over planned, hashed, sprayed and recycled paths in real namespaces; and a link that breaks meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_topo import ENGINES, in_sandbox

from netfold.controller.fabric import Engine

pytest.importorskip("mininet.net", reason="Mininet is not installed: apt install mininet")

from netfold.bench.paths import MODES, Settings, draw, run, show, summary

pytestmark = pytest.mark.timeout(300)
SMALL = {
    "softswitch": Settings(2, 2, 4, rate="50mbit", switch="softswitch", nbytes=800_000, rounds=1),
    "bmv2": Settings(2, 2, 4, rate="10mbit", switch="bmv2", nbytes=200_000, rounds=1,
                     collectives=("all_to_all", "ring")),
}


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_every_collective_is_exact_in_every_mode(engine: Engine, tmp_path: Path) -> None:
    """Ranks check each element. Planned all-to-all loads both uplinks of each leaf alike, and uses both."""
    rows = summary(run(SMALL[engine], tmp_path / "logs"))
    print(show(rows))
    assert {(row.collective, row.mode) for row in rows} == {(c, m) for c in SMALL[engine].collectives for m in MODES}
    even = next(row for row in rows if (row.collective, row.mode) == ("all_to_all", "pinned"))
    assert even.up < 1.1
    picture = draw(rows, "paths")
    assert picture.count("<title>") == 2 * len(rows)


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=100)
def test_a_link_that_breaks_in_an_all_to_all_is_left_by_the_hosts(engine: Engine, tmp_path: Path) -> None:
    """It swallows packets in silence, and no probe tells: time-outs move the pieces, all elements are right, and the
    controller is told.  Whether no flow stands still for 200 ms is a matter of an idle machine and of `netfold bench
    paths`; here the bound leaves room for a busy one."""
    settings = SMALL[engine]._replace(modes=("pinned",), collectives=(), fail_after=0.05, silent=True, probe=0.0)
    (row,) = summary(run(settings, tmp_path / "logs"))
    print(show([row]))
    assert row.failed
    assert 0.05 < row.stalled < 1.0
    log = (tmp_path / "logs" / "controller.log").read_text()
    assert "no answer from rank" in log
    assert "suspect for leaf" in log
