# SPDX-License-Identifier: Apache-2.0
"""`netfold run`: ranks in the foreground, their output, how they are ended, and what is refused."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.fabric.file import save
from netfold.fabric.generate import leafspine
from netfold.host.opening.planes import PLANES_VARIABLE, parse_planes
from support import needs
from support.sandboxes.topo import in_sandbox
from switch_support.ports import wait_for

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo import run
from netfold.topo.network import rundir
from netfold.topo.network.planes import on_plane, planes_of
from netfold.topo.processes import console
from netfold.topo.processes.ranks import Namespaces, environment, start, state_of

UNTIL = "until [ -e %s ]; do sleep 0.05; done"
"""A shell command that waits for a file."""
NETFOLD = [sys.executable, "-m", "netfold.cli"]


class Ranks:
    """Shell commands as the ranks of a console."""

    def __init__(self, *commands: str) -> None:
        self.out, self.errors = io.BytesIO(), io.BytesIO()
        self.console = console.Console(self.out, self.errors)
        self.processes = []
        for rank, command in enumerate(commands):
            process = start(["sh", "-c", command], Namespaces([]), {}, subprocess.PIPE)
            self.processes.append(process)
            self.console.add(f"h{rank + 1}", process)

    def run(self, *, grace: float = 20, timeout: float | None = 60) -> int:
        try:
            return self.console.run(grace=grace, timeout=timeout)
        finally:
            self.console.kill()

    @property
    def said(self) -> list[str]:
        return self.errors.getvalue().decode().splitlines()


def test_every_line_has_its_rank_in_front() -> None:
    """Each line has its rank in front, in output and errors apart; a last line may lack its newline."""
    ranks = Ranks("echo a; echo bad >&2; printf b", *["true"] * 9, "echo c")
    assert ranks.run() == 0
    assert sorted(ranks.out.getvalue().splitlines()) == [b"[ 0] a", b"[ 0] b", b"[10] c"]
    assert ranks.said == ["[ 0] bad"]


def test_the_first_failure_is_the_status_and_the_others_may_speak(tmp_path: Path) -> None:
    """The status is that of the first failure; others may end within the grace, and their output is shown."""
    told = tmp_path / "told"
    ranks = Ranks(f"{UNTIL % told}; echo lost rank 1; exit 7", "exit 3", "true")

    def when_said() -> None:
        wait_for(lambda: b"ended with status 3" in ranks.errors.getvalue())
        told.touch()

    threading.Thread(target=when_said, daemon=True).start()
    assert ranks.run() == 3
    assert ranks.out.getvalue() == b"[0] lost rank 1\n"
    assert "netfold: run: rank 1 on h2 ended with status 3" in ranks.said
    assert "netfold: run: rank 0 on h1 ended with status 7" in ranks.said


def test_a_failure_ends_those_who_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After the grace, ranks and what they started get SIGINT, SIGTERM and SIGKILL, in this order."""
    monkeypatch.setattr(console, "STEPS", tuple((name, number, 0.2) for name, number, _ in console.STEPS))
    deaf = tmp_path / "deaf"
    ranks = Ranks(f"trap '' INT TERM; touch {deaf}; while :; do sleep 0.1; done", f"{UNTIL % deaf}; kill -KILL $$")
    assert ranks.run(grace=0.1) == 128 + signal.SIGKILL
    assert ranks.processes[0].returncode == -signal.SIGKILL
    said = "\n".join(ranks.said)
    assert "rank 1 on h2 was killed by SIGKILL" in said
    assert said.index("rank 0 asked to end") < said.index("rank 0 told to end") < said.index("rank 0 killed (SIGKILL)")


def test_time_is_bounded_where_asked() -> None:
    """--timeout ends all ranks with the status of timeout(1)."""
    ranks = Ranks("exec sleep 600", "exec sleep 600")
    assert ranks.run(timeout=0.2) == 124
    assert "netfold: run: 0.2 s are over" in ranks.said


def test_a_program_left_behind_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's own child that keeps its pipes is not waited for, and does not outlive the run."""
    monkeypatch.setattr(console, "DRAIN", 0.1)
    ranks = Ranks("sleep 600 & echo done $!")
    assert ranks.run(timeout=None) == 0
    (line,) = ranks.out.getvalue().splitlines()
    assert line.startswith(b"[0] done ")
    child = int(line.split()[-1])
    wait_for(lambda: state_of(child).startswith(("gone", "Z")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM: all ranks get SIGINT, and the status says which signal it was."""

    def when_up() -> None:
        wait_for(lambda: b"up" in ranks.out.getvalue())
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=when_up, daemon=True)
    with console.stopping():
        ranks = Ranks("trap 'exit 5' INT; echo up; while :; do sleep 0.1; done", "exec sleep 600")
        thread.start()
        assert ranks.run() == 128 + number
    assert [process.returncode for process in ranks.processes] == [5, -signal.SIGINT]


IN_BACKGROUND = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"]
"""The start of a command line whose program is started as by nohup and a shell's `&`."""
RUN_OF_ONE = """
import subprocess, sys
from netfold.topo.processes import console
from netfold.topo.processes.ranks import Namespaces, start
ranks = console.Console(sys.stdout.buffer, sys.stderr.buffer)
with console.stopping():
    ranks.add("h1", start(["sh", "-c", sys.argv[1]], Namespaces([]), {}, subprocess.PIPE))
    sys.exit(ranks.run(grace=20))
"""


def test_ctrl_c_is_not_for_a_run_in_the_background(tmp_path: Path) -> None:
    """A run with SIGINT and SIGHUP ignored goes on when its process group gets them, and so do its ranks."""
    go_on = tmp_path / "go on"
    ranks = f"echo up; until [ -e '{go_on}' ]; do sleep 0.05; done; echo done"
    run = subprocess.Popen([*IN_BACKGROUND, sys.executable, "-c", RUN_OF_ONE, ranks], stdout=subprocess.PIPE,
                           start_new_session=True)
    with run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == b"[0] up\n"
            os.killpg(run.pid, signal.SIGINT)
            os.killpg(run.pid, signal.SIGHUP)
            go_on.touch()
            assert (run.stdout.read(), run.wait(60)) == (b"[0] done\n", 0)
        finally:
            run.terminate()


class StoppedTerminal(io.BytesIO):
    """A terminal whose user presses Ctrl-C while it takes the line "b"; ``busy`` runs while it takes the line "a"."""

    def __init__(self, busy: Callable[[], None]) -> None:
        super().__init__()
        self._busy = busy

    def write(self, line: Any) -> int:
        if line.endswith(b"a\n"):
            self._busy()
        elif line.endswith(b"b\n"):
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(line)


@pytest.mark.timeout(60)
def test_ctrl_c_during_a_write_forgets_no_rank_that_has_ended(tmp_path: Path) -> None:
    """A rank ends, and then another one writes while the terminal is busy; Ctrl-C during that write ends the rest."""
    first, then = tmp_path / "first", tmp_path / "then"

    def busy() -> None:
        first.touch()
        wait_for(lambda: ranks.processes[0].ended() is not None)
        then.touch()
        written = ranks.processes[2].stdout
        assert select.select([written], [], [], 30)[0]

    with console.stopping():
        ranks = Ranks(UNTIL % first, "echo a; exec sleep 600", f"{UNTIL % then}; echo b; exec sleep 600")
        for stream in ranks.console.streams:
            stream.to = StoppedTerminal(busy) if stream.to is ranks.out else stream.to
        assert ranks.run() == 128 + signal.SIGINT
    assert [process.returncode for process in ranks.processes] == [0, -signal.SIGINT, -signal.SIGINT]


def test_a_rank_is_told_all_it_needs() -> None:
    """torchrun's variables, gloo's interface and ours; jobs of other names meet at other ports."""
    fabric = leafspine(2, 1, 4)
    told = environment(fabric, fabric.hosts[1:3], 1, job="a")
    assert {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.1.2", "NETFOLD_JOB": "a",
            "GLOO_SOCKET_IFNAME": "h3-eth0", "NETFOLD_ADDRESS": "10.0.2.1"}.items() <= told.items()
    assert told["MASTER_PORT"] != environment(fabric, fabric.hosts, 0, job="b")["MASTER_PORT"]


def test_a_rank_is_told_where_the_standby_serves() -> None:
    """Ranks that start after the standby has taken over find it, on each plane, whose sockets have its letter."""
    fabric = replace(leafspine(1, 0, 2, rundir=Path("/run")), standby="unix:/run/standby.sock")
    both = "unix:/run/controller.sock,unix:/run/standby.sock"
    assert environment(fabric, fabric.hosts, 0, job="a")["NETFOLD_CONTROLLER"] == fabric.controllers == both
    told = parse_planes(planes_of([fabric, on_plane(fabric, 1)], "h1")[PLANES_VARIABLE])
    assert [plane.controller for plane in told.values()] == [both, "unix:/run/bcontroller.sock,unix:/run/bstandby.sock"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--", "true"], "on which hosts"),
        (["--topo", "leafspine,1,0,2", "-np", "0", "--", "true"], "expected 1 or more"),
        (["--topo", "leafspine,1,0,2", "--grace", "-1", "--", "true"], "--grace -1"),
        (["--loss", "0.5", "--", "true"], "go with --topo"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2 and one paragraph, before anything is started."""
    monkeypatch.delenv(run.FABRIC_VARIABLE, raising=False)
    result = CliRunner().invoke(app, ["run", *arguments])
    assert (result.exit_code, says in result.output) == (CANNOT, True), result.output


def test_a_job_service_that_hosts_cannot_reach_is_refused(tmp_path: Path) -> None:
    """A loopback address is another one in every network namespace."""
    save(leafspine(1, 0, 2), tmp_path / "lab.toml")
    result = CliRunner().invoke(app, ["run", "--fabric", str(tmp_path / "lab.toml"), "--", "true"])
    assert (result.exit_code, "give it a unix socket" in result.output) == (CANNOT, True), result.output


def test_a_fabric_in_a_sandbox_is_told_from_one_that_is_not_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosts are entered from its prompt alone, where several runs go on at once by `&`."""
    with rundir.locked_folder(tmp_path) as folder:
        save(leafspine(1, 0, 2, rundir=folder), tmp_path / "lab.toml")
        monkeypatch.setattr(rundir, "PLACES", (tmp_path,))
        result = CliRunner().invoke(app, ["run", "--fabric", str(tmp_path / "lab.toml"), "--", "true"])
        assert (result.exit_code, " ".join(result.output.split())) == (CANNOT, (
            "netfold: leafspine-1-0-2 runs in namespaces of its own: type `sh netfold run ...` at its prompt "
            "(`netfold up --topo`), with `&` for several at once"))
    result = CliRunner().invoke(app, ["run", "--fabric", str(tmp_path / "lab.toml"), "--", "true"])
    assert (result.exit_code, "no Mininet host here is called" in result.output) == (CANNOT, True), result.output


PROGRAM = """
import os, sys
import numpy as np
import netfold
with netfold.init() as comm:
    total = comm.allreduce(np.full(1000, comm.rank, np.int32))
    print(comm.rail, total[0])
sys.exit(4 if comm.rank == 1 else 0)
"""


@pytest.mark.timeout(120)
@in_sandbox(timeout=100)
def test_a_program_runs_on_the_hosts_of_a_fabric_of_its_own(tmp_path: Path) -> None:
    """A fabric comes up, three ranks fold, one fails on purpose, and its status comes out."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = CliRunner().invoke(app, ["run", "-np", "3", "--topo", "leafspine,2,1,4", "--", sys.executable,
                                    str(tmp_path / "program.py")])
    assert done.exit_code == 4, done.output
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] innet 3" for rank in range(3)]
    assert "rank 1 on h2 ended with status 4" in done.stderr


@pytest.mark.netns
@pytest.mark.needs("namespaces", "mininet")
@pytest.mark.timeout(120)
def test_the_prompt_of_a_fabric_runs_programs_on_it() -> None:
    """`sh netfold run` at the prompt of `netfold up --topo` finds the fabric and its hosts by itself."""
    typed = f"sh {sys.executable} -m netfold.cli run -np 2 -- sh -c 'echo $RANK of $WORLD_SIZE'\nexit\n"
    done = subprocess.run(
        [*NETFOLD, "up", "--topo", "leafspine,1,0,2"], input=typed, capture_output=True, text=True, timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] 0 of 2" in done.stdout
    assert "[1] 1 of 2" in done.stdout


def test_more_ranks_than_hosts_share_them_as_equally_as_can_be() -> None:
    """Side by side, so that local ranks count up; the first hosts have one more where they do not divide."""
    fabric = leafspine(2, 2, 4)
    names = [host.name for host in run.hosts_of_ranks(fabric, 8)]
    assert names == ["h1", "h1", "h2", "h2", "h3", "h3", "h4", "h4"]
    assert [host.name for host in run.hosts_of_ranks(fabric, 3)] == ["h1", "h2", "h3"]
    told = [environment(fabric, run.hosts_of_ranks(fabric, 8), rank, job="a") for rank in range(8)]
    assert [env["LOCAL_RANK"] for env in told] == ["0", "1"] * 4
    assert {env["LOCAL_WORLD_SIZE"] for env in told} == {"2"}
    assert told[0]["NETFOLD_ADDRESS"] == told[1]["NETFOLD_ADDRESS"] != told[2]["NETFOLD_ADDRESS"]
    assert [host.name for host in run.hosts_of_ranks(fabric, 7)] == ["h1", "h1", "h2", "h2", "h3", "h3", "h4"]
    with pytest.raises(run.CannotRun, match="-np 0: expected 1 or more; leafspine-2-2-4 has 4 hosts"):
        run.hosts_of_ranks(fabric, 0)
