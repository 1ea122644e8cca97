# SPDX-License-Identifier: Apache-2.0
"""The command `netfold`: what it prints, and that its errors are one paragraph with an exit status."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import CANNOT, FAILED
from netfold.cli.show import show
from netfold.cli.top import screen
from netfold.controller import client
from netfold.controller.operations.rates import Rates
from netfold.controller.switch import pipeline
from netfold.fabric.file import load, save
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine
from netfold.plain_console import Terminal
from netfold.topo.network import rundir
from netfold.wire.jobs import RankReport
from netfold.wire.operator import (
    FabricEvent,
    JobStatus,
    LinkStatus,
    Outcomes,
    Punts,
    RoundStatus,
    Status,
    SwitchStatus,
    Traffic,
    TreeStatus,
)
from support.control.controller import tiny_p4info
from support.control.credentials import scopes, token_file


def test_help_lists_the_commands() -> None:
    """Without arguments the help comes, with every command."""
    result = CliRunner().invoke(app, [])
    for command in ("up", "run", "status", "drop", "slots", "stall", "doctor", "plan", "fabric", "compile", "demo"):
        assert command in result.output


def test_fabric_writes_a_file_that_loads(tmp_path: Path) -> None:
    """`netfold fabric` makes what `netfold up` reads."""
    file = tmp_path / "lab.toml"
    result = CliRunner().invoke(app, ["fabric", "leafspine,2,2,8", "--switch", "bmv2", "--loss", "0.01",
                                      "--rate", "1gbit", "--seed", "4", "-o", str(file)])
    assert result.exit_code == 0, result.output
    assert load(file) == leafspine(2, 2, 8, engine="bmv2", loss=0.01, rate="1gbit", seed=4)


def test_plan_shows_trees_without_a_switch(tmp_path: Path) -> None:
    """`netfold plan` needs nothing running; --entries lists every write."""
    file = tmp_path / "lab.toml"
    save(leafspine(2, 2, 4), file)
    brief = CliRunner().invoke(app, ["plan", str(file), "--ranks", "h1,h2"])
    assert brief.exit_code == 0
    assert "tree leaf1: weight 1.000, 1 levels" in brief.stdout
    full = CliRunner().invoke(app, ["plan", "--topo", "leafspine,2,2,4", "--entries"])
    assert "spine2: insert multicast" in full.stdout
    shared = CliRunner().invoke(app, ["plan", str(file), "--ranks-per-host", "2"])
    assert "place 1: ranks 1 3 5 7" in shared.stdout
    assert "tree spine1: weight 0.500, 2 levels, 128 slots a switch" in shared.stdout


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (["up"], CANNOT, "either a FABRIC.toml or --topo"),
    (["up", "lab.toml", "--loss", "0.1"], CANNOT, "go with --topo"),
    (["up", "nowhere.toml"], CANNOT, "cannot read the fabric file nowhere.toml"),
    (["up", "--topo", "leafspine,2,2,4", "--misses", "1"], CANNOT, "fabric.misses: expected 2..1000 probes, got 1"),
    (["up", "--topo", "leafspine,2,2,4", "--probe", "100"], CANNOT, "fabric.probe: expected 0 (off)"),
    (["top"], CANNOT, "which controller?"),
    (["top", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers at unix:/nonexistent"),
    (["up", "--topo", "torus,2,2,2"], CANNOT, "unknown topology 'torus,2,2,2'"),
    (["up", "--topo", "ring,3"], CANNOT, "unknown topology 'ring,3': expected leafspine,LEAVES,SPINES,HOSTS"),
    (["up", "--topo", "leafspine,2,2"], CANNOT, "leafspine,2,2,8"),
    (["up", "--topo", "leafspine,2,0,4"], CANNOT, "at least 1 spine"),
    (["fabric", "leafspine,2,2,4", "--switch", "ovs"], CANNOT, "softswitch or bmv2, got 'ovs'"),
    (["fabric", "leafspine,2,2,4", "--rate", "quick"], CANNOT, "quick"),
    (["fabric", "leafspine,2,2,4", "--loss", "2"], CANNOT, "loss"),
    (["plan", "--topo", "leafspine,2,2,4", "--ranks", "h1,h9"], CANNOT, "h9"),
    (["plan", "--topo", "leafspine,300,1,300"], FAILED, "300 children"),
    (["plan", "--topo", "mesh,20,20"], CANNOT, "between 400 leaves have about 27,132,000 hops"),
    (["plan", "--topo", "mesh,128,65"], CANNOT, "switch: expected at most 8,192, got 8,320"),
    (["plan", "/dev/zero"], CANNOT, "expected at most 16,777,216 bytes, got more"),
    (["demo", "--ranks", "0"], CANNOT, "1 host"),
    (["demo", "--ranks", "1"], CANNOT, "--ranks: expected at least 2, got 1"),
    (["demo", "--leaves", "2", "--spines", "0"], CANNOT, "2 leaves need at least 1 spine"),
    (["demo", "--rate", "fast"], CANNOT, "expected a rate such as 100mbit"),
    (["demo", "--loss", "1.5"], CANNOT, "expected a share of 0..1, got 1.5"),
    (["demo", "--steps", "0"], CANNOT, "--steps: expected at least 1, got 0"),
    (["demo", "--lane-bits", "12"], CANNOT, "--lane-bits: expected 32, 16 or 8, got 12"),
    (["demo", "--switch", "tofino"], CANNOT, "expected softswitch or bmv2, got 'tofino'"),
    (["status"], CANNOT, "which controller?"),
    (["status", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers at unix:/nonexistent"),
    (["slots", "leaf1", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["stall", "job", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["up", "--dry-run", "--topo", "leafspine,2,2,4"], CANNOT, "expected a FABRIC.toml, whose switches are read"),
    (["up", "--topo", "leafspine,2,2,x", "--timeout", "9"], CANNOT, "--timeout goes with a FABRIC.toml"),
    (["up", "--topo", "leafspine,2,2,4", "--machines", "m.txt", "--timeout", "9"], CANNOT, "not with --topo"),
    (["up", "lab.toml", "--dry-run", "--timeout", "9"], CANNOT, "not with --topo or --dry-run"),
    (["diff", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["apply", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["drain", "spine1"], CANNOT, "which controller?"),
    (["drain", "spine1", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["undrain", "spine1", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["drop", "job", "--controller", "unix:/nonexistent/socket"], FAILED, "no controller answers"),
    (["sim", "ethereal", "--short", "--fabrics", "fat-tree"], CANNOT, "sim ethereal: --fabrics goes without --short"),
    (["sim", "ethereal", "--short", "--sizes", "1"], CANNOT, "sim ethereal: --sizes goes without --short"),
    (["sim", "ethereal", "--collectives", "none", "--sizes", "1"], CANNOT, "--sizes goes with collectives"),
    (["sim", "ethereal", "--states", "healthy", "--links", "4"], CANNOT, "--links goes with the states"),
    (["sim", "mesh", "--short", "--grids", "2x2"], CANNOT, "sim mesh: --grids goes without --short"),
    (["sim", "goal", "a.goal", "--write", "ring", "--seed", "2"], CANNOT, "sim goal: --seed goes with the simulation"),
    (["sim", "goal", "a.goal", "--ranks", "8"], CANNOT, "sim goal: --ranks goes with --write"),
])
def test_errors_are_one_paragraph(
    arguments: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No traceback; standard error says what is wrong; the status tells apart what failed and what cannot be."""
    monkeypatch.delenv("NETFOLD_CONTROLLER", raising=False)
    monkeypatch.setattr(rundir, "in_use", list)  # another test's fabric may run
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert says in result.stderr
    assert result.stderr.startswith("netfold: ")
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_status_for_people_names_what_is_down_and_why() -> None:
    """Every switch, link and job is there, and problems with their words."""
    status = Status(
        fabric="lab",
        engine="softswitch",
        uptime=61.0,
        switches=[SwitchStatus("leaf1", "leaf", "unix:/a", True, "", 12, 1, 2176, 16384, 3,
                               punts=Punts(177_000, 12, 5)),
                  SwitchStatus("spine1", "spine", "unix:/b", False, "stream broke: UNAVAILABLE", 0, 1, 0, 16384, 0)],
        links=[LinkStatus("leaf1:1", "h1:0", "1gbit", 0.01, Traffic(10, 10_000_000, 1), Traffic(9, 9_000_000, 2)),
               LinkStatus("leaf1:2", "spine1:1", None, 0, Traffic(1, 1, 0), Traffic(1, 1, 0), up=False,
                          problem="its probes are lost")],
        jobs=[JobStatus("train", "active", 77, 2, [0, 1], [], ["10.0.1.1", "10.0.1.2"], 2048,
                        [TreeStatus("leaf1", 1.0, {"leaf1": ["h1", "h2"]})], "",
                        [RankReport("train", 0, 77, 1, 1_000_000, 900, 4)], lost=[1]),
              JobStatus("ring", "active", 78, 1, [0], [], ["10.0.1.1"], 0, [], "leaf1 has no 2048 slots", [])],
    )
    out = io.StringIO()
    show(status, Terminal(file=out, width=160))
    text = out.getvalue()
    for words in ("1 of 2 switches up", "stream broke: UNAVAILABLE", "2176/16384", "leaf1:1 - h1:0", "10.00 MB",
                      "1 lost / 2 lost", "177000 refused", "12 over rate", "5 dropped",
                  "job train: active, epoch 77, 2 of 2 ranks joined", "tree leaf1, weight 1.00, 2048 slots",
                  "leaf1 has no 2048 slots", "4 sent again", "0 left, 1 lost"):
        assert words in text, text
    cut = next(line for line in text.splitlines() if "leaf1:2 - spine1:1" in line)
    assert "down: its probes are lost" in cut


def test_status_tells_what_carries_a_job_and_its_last_disaster() -> None:
    """Links of each tree; how often they were planned anew, why, and how long it took or what is waited for."""
    tree = TreeStatus("spine1", 1.0, {"spine1": ["leaf1", "leaf2"]}, ["leaf1:3 - spine1", "leaf2:3 - spine1"])
    for took, problem, words in ((0.0154, "", "spine2 is down; went on after 15 ms"),
                                 (None, "no link to h1 is up", "spine2 is down; the ranks stand still (no link")):
        job = JobStatus("train", "active", 77, 2, [0, 1], [], ["10.0.1.1", "10.0.1.2"], 2048, [tree], "", [],
                        round=RoundStatus(3, "spine2 is down", 12.0, took, problem))
        out = io.StringIO()
        show(Status("lab", "bmv2", 61.0, [], [], [job]), Terminal(file=out, width=160))
        assert "over leaf1:3 - spine1, leaf2:3 - spine1" in out.getvalue()
        assert f"trees planned anew 3 times, last 12 s ago: {words}" in out.getvalue()


@pytest.mark.parametrize(("rc", "unconnected", "line"), [
    ([], [], ""),
    ([0, 1, 2], [], "ranks 0, 1, 2 by queue pairs of their NICs, 17 windowed"),
    ([4, 5], [5], "ranks 4, 5 by queue pairs of their NICs, 18 windowed; waits for the queue pairs of rank 5"),
    (list(range(20)), list(range(2, 20)),
     f"ranks {', '.join(map(str, range(16)))} and 4 more by queue pairs of their NICs, "
     f"0 windowed; waits for the queue pairs of ranks {', '.join(map(str, range(2, 18)))} and 2 more"),
])
def test_status_tells_which_ranks_have_nics_and_whom_it_waits_for(rc: list[int], unconnected: list[int],
                                                                  line: str) -> None:
    """A line of its own for jobs with RC ranks, and none for others."""
    job = JobStatus("train", "connecting", 77, 20, list(range(20)), [], [], 2048, [], "", [], rc=rc,
                    unconnected=unconnected)
    out = io.StringIO()
    show(Status("lab", "bmv2", 61.0, [], [], [job]), Terminal(file=out, width=240))
    assert [found.strip() for found in out.getvalue().splitlines() if "NICs" in found] == [line][:bool(line)]


def test_status_and_top_tell_what_is_drained() -> None:
    """Switches and links by name, up or not; and a job that could not leave them, with the reason."""
    switch = SwitchStatus("spine1", "spine", "unix:/a", True, "", 12, 1, 0, 16384, 0, drained=True)
    link = LinkStatus("leaf1:3", "spine1:1", None, 0, Traffic(1, 1, 0), Traffic(1, 1, 0), up=False, drained=True)
    job = JobStatus("train", "active", 77, 2, [0, 1], [], [], 2048, [TreeStatus("spine1", 1.0, {})], "", [],
                    stays="spine1 is drained, and its trees stay where they are: spine2 is full")
    status = Status("lab", "bmv2", 61.0, [switch], [link], [job])
    out = io.StringIO()
    console = Terminal(file=out, width=160)
    show(status, console)
    assert "stay where they are: spine2 is full" in out.getvalue()
    console.print(screen(status, status, Rates()))
    assert (out.getvalue().count("up, drained"), out.getvalue().count("down, drained")) == (2, 2)


def test_top_shows_what_changed_between_two_looks() -> None:
    """Rates of links, sums and losses by the seconds between readings; what a switch that was started anew has done
    since is not known."""

    def look(times: int, folded: int) -> Status:
        there = Traffic(1000 * times, 1_000_000 * times, 5 * times, read=float(times))
        back = Traffic(500 * times, 125_000 * times, 0, read=float(times))
        tree = TreeStatus("leaf1", 1.0, {"leaf1": ["h1"]})
        report = RankReport("train", 1, 77, 12, 4_000_000, 0, 3, by_rail={"innet@a": 3, "tcp@b": 1})
        switch = SwitchStatus("leaf1", "leaf", "unix:/a", True, "", 12, 1, 2176, 16384, 3, Outcomes(folded, 10 * times),
                              spoofed=4 * times, unassigned=2 * times, unfolded=times, gaps=7 * times, read=there.read)
        return Status("lab", "softswitch", 61.0, [switch], [LinkStatus("leaf1:1", "h1:0", "1gbit", 0, there, back)],
                      [JobStatus("train", "active", 77, 2, [0, 1], [1], [], 2048, [tree], "",
                                 [report]),
                       JobStatus("over-and-done", "finished", 76, 2, [0, 1], [0, 1], [], 0, [], "", [])])

    out = io.StringIO()
    rates = Rates()
    rates.update(look(1, 900))
    event = FabricEvent(4, 0.0, "link down", "leaf1:1 - h1:0", "h1 is gone")
    Terminal(file=out, width=200).print(screen(look(1, 900), look(3, 100), rates, [event]))
    text = out.getvalue()
    switch, link, job = (next(line for line in text.splitlines() if line.strip().startswith(name))
                         for name in ("leaf1 ", "leaf1:1 - h1:0", "train"))
    assert switch.split()[-6:] == ["2176/16384", "-", "-", "7", "0", "7"]
    assert link.split()[-5:] == ["1gbit", "8.0", "1.0", "1500", "5"]
    assert " ".join(job.split()) == "train active 1 of 2 leaf1 12 4.0 3 innet@a 75% tcp@b 25% -"
    assert "over-and-done" not in text
    assert "leaf1 <- h1" in text
    assert "h1 is gone" in text


def test_top_in_a_pipe_prints_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """One below the other, as there is no screen to draw on anew."""
    asked: list[str] = []

    async def status(address: str, *, token: str) -> Status:
        asked.append(address)
        switch = SwitchStatus(f"leaf{len(asked)}", "leaf", "unix:/a", True, "", 12, 1, 0, 16384, 0)
        return Status("lab", "softswitch", 61.0, [switch], [], [])

    async def events(address: str, since: int, *, token: str) -> list[FabricEvent]:
        return [FabricEvent(since + 1, 0.0, "up", f"event-{since + 1}", "")]

    monkeypatch.setattr(client, "status", status)
    monkeypatch.setattr(client, "events", events)
    slept: list[float] = []
    monkeypatch.setattr("netfold.cli.top.time.sleep", slept.append)
    result = CliRunner().invoke(app, ["top", "--controller", "unix:/a", "-n", "2", "-d", "7"])
    assert result.exit_code == 0, result.output
    assert (len(asked), slept) == (3, [7.0, 7.0])
    assert result.output.index("leaf2") < result.output.index("leaf3")
    assert result.output.count("event-2") == 2
    assert result.output.count("event-3") == 1
    result = CliRunner().invoke(app, ["top", "--controller", "unix:/a", "--once"])
    assert (result.exit_code, len(asked)) == (0, 5)


def test_commands_take_the_widest_token_that_their_user_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the environment goes first; of the fabric file's, the operator's, then the viewer's; a file that others
    may read is refused by name."""
    monkeypatch.delenv("NETFOLD_TOKEN", raising=False)
    monkeypatch.delenv("NETFOLD_TOKEN_FILE", raising=False)
    said: list[str] = []

    async def status(address: str, *, token: str) -> Status:
        said.append(token)
        return Status("lab", "softswitch", 1.0, [], [], [])

    monkeypatch.setattr(client, "status", status)
    file = tmp_path / "lab.toml"
    fabric = msgspec.structs.replace(leafspine(1, 0, 2), **scopes(tmp_path))
    save(fabric, file)

    def status_code() -> tuple[int, str]:
        result = CliRunner().invoke(app, ["status", str(file)])
        return result.exit_code, result.stderr

    assert status_code()[0] == 0
    operators = Path(fabric.operator_token_file or "")
    operators.unlink()
    assert status_code()[0] == 0
    Path(fabric.viewer_token_file or "").chmod(0o644)
    Path(fabric.job_token_file or "").unlink()
    code, words = status_code()
    assert code == CANNOT
    assert "fabric.operator_token_file: cannot read" in words
    assert "fabric.viewer_token_file: " in words
    assert "expected mode 0600, got 0644" in words
    assert "NETFOLD_TOKEN_FILE" in words
    monkeypatch.setenv("NETFOLD_TOKEN_FILE", token_file(tmp_path, "mine"))
    assert status_code()[0] == 0
    assert said == ["operators", "viewers", "mine"]


@pytest.mark.parametrize("options", [[], ["--faults"]])
def test_compile_writes_the_program_of_a_fabric_with_or_without_faults(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --faults it is what the controller pushes where a link has some, by its cookie."""
    built = pipeline.Pipeline(tiny_p4info(), b"program")

    def build(engine: Engine, *, path_mtu: int, faults: bool) -> pipeline.Pipeline:
        assert (engine, path_mtu, faults) == ("softswitch", 4096, bool(options))
        return built

    monkeypatch.setattr(pipeline, "build", build)
    said = CliRunner().invoke(app, ["compile", "-o", str(tmp_path), *options])
    assert said.exit_code == 0, said.output
    assert f"cookie {built.cookie:#x}" in said.output
    assert (tmp_path / "netfold.p4i").read_bytes() == b"program"
