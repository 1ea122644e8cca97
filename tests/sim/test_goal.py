# SPDX-License-Identifier: Apache-2.0
"""GOAL schedules: what is written is read again, simulates as it did, and what is wrong is told by its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.sim.collectives.goal import read, write
from netfold.sim.engines.packet import Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import leaf_spine
from netfold.sim.workloads.workload import COLLECTIVES, Workload, ring

FABRIC = leaf_spine(hosts=16, leaves=4, spines=4)


def _seconds(work: Workload) -> float:
    outcome = simulate(FABRIC, work, SCHEMES["ethereal"], transport=Transport(jitter=0.0))
    assert not outcome.unfinished
    return outcome.time


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "double-binary-tree"])
def test_a_written_collective_is_read_and_takes_as_long(name: str) -> None:
    """Flows, bytes and what waits for what are those of the workload; both take equally long."""
    work = COLLECTIVES[name](range(16), 1 << 20)
    ranks, again = read(write(work, 16))
    flows = again.size > 0
    assert ranks == 16
    for column in ("source", "destination", "size"):
        assert sorted(getattr(again, column)[flows]) == sorted(getattr(work, column))
    assert _seconds(again) == pytest.approx(_seconds(work), rel=0.02)


SCHEDULE = """num_ranks 2
// by hand
rank 0 {
l1: calc 5000 cpu 1
l2: send 90000b to 1 tag 3 cpu 0 nic 0   # eager
l2 requires l1
l3: recv 90000b from 1
}
rank 1 {
a: recv 90000b from 0 tag 3
b: send 90000b to 0
b requires a
c: calc 70000
c irequires b
}
"""


def test_a_schedule_runs_as_its_lines_say() -> None:
    """5 us of computing, a message there and one back; beside it, from the same moment on as the second message, 70 us
    of computing."""
    ranks, work = read(SCHEDULE)
    assert ranks == 2
    outcome = simulate(FABRIC, work, SCHEMES["netfold"], transport=Transport(jitter=0.0))
    there = outcome.finished[np.flatnonzero(work.size)[0]]
    assert outcome.finished[np.flatnonzero(np.isclose(work.gap, 5e-6))[0]] == pytest.approx(5e-6)
    assert there > 5e-6 + 90_000 * 8 / 400e9
    assert outcome.finished[np.flatnonzero(np.isclose(work.gap, 7e-5))[0]] == pytest.approx(there + 7e-5)
    assert outcome.time == pytest.approx(there + 7e-5)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("num_ranks 2\n", "", ":2: expected a rank below num_ranks"),
    ("num_ranks 2\n", "num_ranks 1\n", ":1: expected 2 to"),
    ("calc 5000 cpu 1", "think 5000", ":4: expected num_ranks N"),
    ("to 1 tag 3", "to 2 tag 3", ":5: expected another rank below 2"),
    ("to 1 tag 3", "to 0 tag 3", ":5: expected another rank below 2"),
    ("l2 requires l1", "l2 requires l9", ":6: expected labels that stand above"),
    ("l3: recv", "l2: recv", ":7: expected a label that its rank has not had"),
    ("recv 90000b from 1", "recv 80000b from 1", "expected a send and a recv of as many bytes"),
    ("l3: recv 90000b from 1\n", "", ":10: expected a send and a recv"),
    ("l2 requires l1", "l2 requires l1\nl1 requires l2", "2 operations wait for each other in a circle|in a circle"),
])
def test_a_wrong_line_is_told_by_its_number(old: str, new: str, says: str) -> None:
    """Each mistake names the file, the line and what was expected."""
    with pytest.raises(ValueError, match=says):
        read(SCHEDULE.replace(old, new, 1), "a.goal")


def test_what_goal_cannot_say_is_not_written() -> None:
    """Pauses between all ranks, and a flow that waits for two others' message."""
    work = ring(range(4), 1 << 12)
    with pytest.raises(ValueError, match="pauses between ranks"):
        write(work.then(work), 4)
    with pytest.raises(ValueError, match="at neither of whose ends"):
        write(COLLECTIVES["double-binary-tree"](range(16), 1 << 20), 16)


def test_the_command_writes_and_simulates(tmp_path: Path) -> None:
    """A ring of 16 ranks takes as long by each scheme, since each host sends to one other alone; unknown names are
    refused."""
    file = str(tmp_path / "ring.goal")
    done = CliRunner().invoke(app, ["sim", "goal", file, "--write", "ring", "--ranks", "16", "--size", "64"])
    assert done.exit_code == 0, done.output
    assert "480 messages of 16 ranks" in done.output
    done = CliRunner().invoke(app, ["sim", "goal", file, "--schemes", "netfold,spray-ideal"])
    assert done.exit_code == 0, done.output
    assert "16 ranks, 480 messages" in done.output
    times = [float(line.split()[1]) for line in done.output.splitlines() if line.endswith(" us")]
    assert times[0] == pytest.approx(times[1], rel=0.02)
    for wrong, says in ((["--schemes", "none"], "no scheme is called"), (["--fabric", "moon"], "no fabric is called"),
                        (["--write", "gossip"], "no collective is called")):
        done = CliRunner().invoke(app, ["sim", "goal", file, *wrong])
        assert done.exit_code == CANNOT
        assert says in done.stderr
