# SPDX-License-Identifier: Apache-2.0
"""Several planes from the command line: their forms, the rails of a job on them, and a run on two planes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.fabric import generate
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.topo import run
from support import needs
from support.sandboxes.topo import in_sandbox


def test_forms_with_planes_give_a_fabric_each() -> None:
    """dual and triple before any form; one rate for all or one for each; without them there is one fabric."""
    planes = generate.parse_planes("dual,leafspine,2,1,4", rate="150mbit,75mbit")
    assert [{link.rate for link in fabric.links} for fabric in planes] == [{"150mbit"}, {"75mbit"}]
    assert len(generate.parse_planes("triple,threetier,2,1,1,1,4", rate="1gbit")) == 3
    assert generate.parse_planes("leafspine,1,0,2") == [generate.parse("leafspine,1,0,2")]


@pytest.mark.parametrize(
    ("text", "rate", "says"),
    [
        ("dual,leafspine,1,0", None, "unknown topology 'leafspine,1,0'"),
        ("quad,leafspine,1,0,2", None, "unknown topology 'quad"),
        ("dual,leafspine,1,0,2", "1mbit,2mbit,3mbit", "one for all planes, or 2"),
        ("leafspine,1,0,2", "1mbit,2mbit", "one for all planes, or 1"),
    ],
)
def test_forms_that_cannot_be_say_why(text: str, rate: str | None, says: str) -> None:
    """Each mistake is shown with what was expected."""
    with pytest.raises(FabricError, match=says):
        generate.parse_planes(text, rate=rate)


def test_a_plane_keeps_all_faults_of_its_links() -> None:
    """Only the names of a link's ends differ on a plane; its rate and every share of packets are as given."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    from netfold.topo.network.planes import on_plane

    faults = {"loss": 0.01, "duplicate": 0.02, "reorder": 0.03, "corrupt": 0.04}
    one = leafspine(2, 1, 4, rate="1gbit", **faults)
    for link, given in zip(on_plane(one, 1).links, one.links, strict=True):
        assert (link.a, link.b) != (given.a, given.b)
        assert msgspec.structs.replace(link, a=given.a, b=given.b) == given
    assert any(link.corrupt for link in one.links)


def test_rails_follow_the_planes_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several planes fold on each; $NETFOLD_RAILS and the option say otherwise; one plane needs none."""
    one = leafspine(1, 0, 2)
    monkeypatch.delenv(RAILS_VARIABLE, raising=False)
    hosts = one.hosts
    assert run.rails_for([one], None, hosts) == {}
    assert run.rails_for([one, one], None, hosts) == {RAILS_VARIABLE: "innet@a+innet@b"}
    monkeypatch.setenv(RAILS_VARIABLE, "tcp@a+innet@b")
    assert run.rails_for([one, one], None, hosts) == {RAILS_VARIABLE: "tcp@a+innet@b"}
    assert run.rails_for([one, one], "roce@a+tcp@b", hosts) == {RAILS_VARIABLE: "roce@a+tcp@b"}


def test_rails_on_planes_that_are_not_there_are_refused() -> None:
    """Status 2 before anything is started, with the planes that there are."""
    arguments = ["run", "--topo", "dual,leafspine,1,0,2", "--rails", "innet@a+tcp@c", "--", "true"]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "one of the planes a, b" in result.output) == (CANNOT, True), result.output


def test_rails_that_take_one_rank_a_host_are_refused_where_ranks_share_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2 and one line before anything is started; over TCP any number of ranks goes, and over one plane."""
    monkeypatch.delenv(RAILS_VARIABLE, raising=False)
    result = CliRunner().invoke(app, ["run", "-np", "3", "--topo", "dual,leafspine,1,0,2", "--", "true"])
    assert result.exit_code == CANNOT
    assert "run -np 3, rails 'innet@a+innet@b': innet@a, innet@b can have one rank a host" in result.output
    one = leafspine(1, 0, 2)
    three = [*one.hosts, one.hosts[0]]
    for rails, says in (("roce@a", "roce@a can have"), ("tcp@a+innet@b", "innet@b can have")):
        with pytest.raises(run.CannotRun, match=says):
            run.rails_for([one, one], rails, three)
    assert run.rails_for([one, one], "tcp@a+tcp@b", three) == {RAILS_VARIABLE: "tcp@a+tcp@b"}
    assert run.rails_for([one], "innet@a", three) == {RAILS_VARIABLE: "innet@a"}


PROGRAM = """
import json, numpy as np, netfold
with netfold.init() as comm:
    for size in (1000, 1 << 20):
        parts = [np.random.default_rng([size, rank]).integers(-999, 999, size, np.int32) for rank in range(comm.size)]
        assert (comm.allreduce(parts[comm.rank], name=f"of {size}") == np.sum(parts, axis=0)).all()
    comm.broadcast(np.zeros(10))
    print(json.dumps([operation.path for operation in comm.flight()]))
"""


@pytest.mark.timeout(150)
@in_sandbox(timeout=120)
def test_a_program_runs_over_two_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are exact, the flight recorder has each rail's share and why, and the timeline has rows for each rail."""
    monkeypatch.setenv("NETFOLD_TIMELINE", str(tmp_path / "trace.json"))
    monkeypatch.setenv("NETFOLD_RAIL_STALL", "2")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = CliRunner().invoke(app, [
        "run", "--topo", "dual,leafspine,1,0,2", "--rate", "100mbit", "--rails", "innet@a+tcp@b", "--", sys.executable,
        str(tmp_path / "program.py"),
    ])
    assert done.exit_code == 0, done.output
    for line in done.stdout.splitlines():
        short, long, copy = json.loads(line.partition("] ")[2])
        assert "soonest" in short
        assert "innet@a + " in long
        assert "tcp@b (" in long
        assert "alone)" in long
        assert "soonest" in copy
    files = [str(tmp_path / f"trace.run.rank{rank}.json") for rank in range(2)]
    merged = CliRunner().invoke(app, ["timeline", "merge", *files, "-o", str(tmp_path / "all.json")])
    assert merged.exit_code == 0, merged.output
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [(rows[e["pid"], e["tid"]], e) for e in events if e["ph"] == "X"]
    for rank in range(2):
        here = {row for row, event in spans if event["pid"] == rank}
        assert {"operations", "innet@a", "tcp@b", "innet@a packets", "tcp@b messages"} <= here
        chunks = [event for row, event in spans if event["pid"] == rank and row in ("innet@a", "tcp@b")]
        assert sum(event["args"]["nbytes"] for event in chunks) == 4 << 20, "the parts of the one long sum"
