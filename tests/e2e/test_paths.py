# SPDX-License-Identifier: Apache-2.0
"""Collectives over planned, hashed, sprayed and recycled paths in real namespaces; and a link that breaks meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from netfold.fabric.graph import Engine
from support import needs
from support.fabrics.paths import LONG, SMALL
from support.sandboxes.topo import ENGINES_LONG, in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.bench.commands.paths import MODES, run, show, summary

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_every_collective_is_exact_in_every_mode(engine: Engine, tmp_path: Path) -> None:
    """Each rank checks every element of its results."""
    options = replace(SMALL[engine], out=tmp_path)
    rows = summary(run(options), options)
    print(show(rows))
    collectives = SMALL[engine].collectives.split(",")
    assert {(row.collective, row.mode) for row in rows} == {(c, m) for c in collectives for m in MODES}


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=150)
def test_a_link_that_breaks_in_an_all_to_all_is_left_by_the_hosts(engine: Engine, tmp_path: Path) -> None:
    """It swallows packets in silence, and no probe tells: time-outs move the pieces, all elements are right, and the
    controller is told, once another path has answered.  For how long a flow stands still is `netfold bench paths`' to
    say."""
    options = replace(SMALL[engine], modes="pinned", collectives="", fail_link=0.0, silent=True, probe=0.0,
                      out=tmp_path, **LONG[engine])
    (row,) = summary(run(options), options)
    print(show([row]))
    assert row.failed
    log = (tmp_path / "logs" / "controller.log").read_text()
    assert "no answer from rank" in log
    assert "suspect for leaf" in log
