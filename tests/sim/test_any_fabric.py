# SPDX-License-Identifier: Apache-2.0
"""Collectives on any fabric: the other simulators' times where the fabric is a Clos, and what links allow elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from netfold.fabric.generate import parse
from netfold.sim.engines import any_fabric, fluid
from netfold.sim.engines.packet import Transport
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import of_fabric
from netfold.sim.workloads.workload import COLLECTIVES


@pytest.mark.parametrize("uplinks", ["", ",uplinks=100gbit:400gbit"])
@pytest.mark.parametrize(("scheme", "collective"), [
    ("netfold", "all-to-all"), ("netfold", "halving-doubling"), ("spray", "all-to-all")])
def test_a_clos_takes_the_time_of_its_own_simulator(uplinks: str, scheme: str, collective: str) -> None:
    """Planned by the same planners, with equal and unequal uplinks; headers aside, which this one does not have."""
    fabric = parse(f"leafspine,2,2,8{uplinks}", rate="400gbit")
    work = COLLECTIVES[collective](range(8), 8 << 20)
    ours, _ = any_fabric.simulate(any_fabric.DirectedLinks(fabric, 400e9), work, scheme, delay=0)
    regular = fluid.simulate(of_fabric(fabric, delay=0), work, SCHEMES[scheme], transport=Transport(header=0))
    assert ours.time == pytest.approx(regular.time, rel=0.02)


def test_neighbours_of_a_mesh_need_no_choice() -> None:
    """A ring along its links takes the same time however flows choose: 2 (N-1)/N of the bytes over each link."""
    fabric = parse("mesh,2,3", rate="8gbit")
    rows = any_fabric.run(fabric, collectives=["ring"], nbytes=6 << 20, delay=0, seeds=[4], echo=lambda line: None)
    assert {row.scheme for row in rows} == set(any_fabric.SCHEMES)
    assert {round(row.seconds * 1e9) for row in rows} == {10 << 20}
    assert {round(row.busiest * 1e9) for row in rows} == {10 << 20}


def test_no_scheme_is_faster_than_its_busiest_link(tmp_path: Path) -> None:
    """On a torus, for planned, sprayed and hashed flows; hosts that are no power of two leave halving out; rows are
    written."""
    said: list[str] = []
    rows = any_fabric.run(parse("torus,3,3", rate="100gbit"), nbytes=1 << 20, seeds=[1, 2], out=tmp_path,
                          echo=said.append)
    assert all(row.seconds >= row.busiest > 0 for row in rows)
    assert {row.collective for row in rows} == set(COLLECTIVES) - {"halving-doubling"}
    assert any("9 hosts are no power of two" in line for line in said)
    assert len((tmp_path / "fabric.csv").read_text().splitlines()) == 1 + len(rows)
    assert [row.over_spray for row in rows if row.scheme == "spray"] == [1.0] * 3


def test_unknown_names_and_too_few_hosts_are_refused() -> None:
    """With those that there are."""
    fabric = parse("mesh,1,2")
    for options, says in (({"collectives": ["rings"]}, "no collective is called 'rings'"),
                          ({"schemes": ["reps"]}, "no scheme is called 'reps'; there are netfold"),
                          ({"nbytes": 0}, "0 bytes")):
        with pytest.raises(ValueError, match=says):
            any_fabric.run(fabric, echo=lambda line: None, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 hosts"):
        any_fabric.run(parse("mesh,1,1"), echo=lambda line: None)
