# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: what it holds, when it writes, and what all ranks' files show together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.flights import compare, read
from netfold.host.api.communicator import Communicator
from netfold.host.errors import NetFoldError
from netfold.host.tracing import flight
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import timeline_from_environment
from netfold.testing import loopback_job, on_every_rank
from netfold.wire.flight import Dump, OperationRecord
from support.hosts.host import impatient
from switch_support.ports import wait_for


def test_every_operation_is_recorded_with_its_path() -> None:
    """Folds, operations over TCP, of groups, and messages between two ranks are recorded; numbers count each group's
    operations."""

    def work(comm: Communicator) -> list[tuple[object, ...]]:
        comm.allreduce(np.ones(1000, np.float32))
        if comm.rank < 2:
            comm.group([1, 0]).allreduce(np.ones(3), op="max", algorithm="ring")
        if comm.rank < 2:
            (comm.send if comm.rank else comm.receive)(np.zeros(2), 1 - comm.rank)
        comm.iallreduce(np.ones(7, np.int32), name="bucket 0").wait(20)
        comm.barrier()
        return [(o.number, o.group, o.name, o.op, o.dtype, o.nbytes, o.path, o.state) for o in comm.flight()]

    with loopback_job(3, rail="innet") as comms:
        seen = on_every_rank(comms, work)
        assert all(0 < o.begin <= o.end <= time.time() for o in comms[0].flight())
    of_all = [
        (1, "", "allreduce", "sum", "float32", 4000, "innet", "done"),
        (2, "", "bucket 0", "sum", "int32", 28, "innet", "done"),
        (3, "", "barrier", "", "", 0, "innet", "done"),
    ]
    of_some = [
        (1, "ranks 1,0", "allreduce", "max", "float64", 24, "TCP, ring", "done"),
        (0, "", "receive", "", "float64", 16, "", "done"),
    ]
    assert seen[2] == of_all
    assert seen[0] == [of_all[0], *of_some, *of_all[1:]]


def test_groups_do_not_put_folded_operations_out_of_step() -> None:
    """Ranks that were in a group, or sent a message, agree with the others on the next operation's number."""

    def work(comm: Communicator) -> float:
        if comm.rank == 0:
            comm.group([0]).allreduce(np.ones(3))
        return float(comm.allreduce(np.ones(3, np.float32))[0])

    with loopback_job(2, rail="innet") as comms:
        assert on_every_rank(comms, work) == [2.0, 2.0]


def test_repeats_are_counted_by_operation() -> None:
    """On a lossy fabric an operation's retransmissions are those that the rail counted during it."""
    with loopback_job(2, rail="innet", loss=0.05, seed=3, slots=32) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(100_000, np.float32)))
        for comm in comms:
            assert comm.flight()[-1].retransmissions == comm.stats().retransmissions > 0


def test_only_the_last_thousand_are_kept() -> None:
    """The recorder's memory does not grow."""
    recorder = Flight("j", 0, 1)
    for number in range(flight.MAX_OPERATIONS + 5):
        with recorder.operation(number, "", "allreduce", "sum", "float32", 4):
            pass
    assert [o.number for o in recorder.operations()] == list(range(5, flight.MAX_OPERATIONS + 5))


def test_a_failed_operation_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a rank whose peer never called holds the error, the failed operation, and those before it."""
    monkeypatch.setenv(flight.FOLDER_VARIABLE, str(tmp_path))
    with loopback_job(2, rail="tcp") as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(3)))
        impatient(comms, 0.3)
        with pytest.raises(NetFoldError):
            comms[0].allreduce(np.ones(1000))
    (dump,) = read(tmp_path)
    assert (dump.job, dump.rank, dump.world, dump.pid) == ("loop", 0, 2, os.getpid())
    assert dump.why.startswith("operation 2 failed: CollectiveTimeout")
    assert [(o.number, o.state) for o in dump.operations] == [(1, "done"), (2, "failed")]
    assert "rank 1 gone, stopped, or never called" in dump.operations[1].error


def test_what_cannot_be_written_is_no_error_of_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, or a folder that cannot be made, is only logged."""
    (tmp_path / "file").write_text("")
    recorder = Flight("j", 0, 1, folder=tmp_path / "file" / "below")
    assert recorder.dump("a test") is None
    assert "cannot write" in caplog.text
    recorder.close()


STUCK = """
import ctypes, sys, time
from netfold.host.tracing.flight import Flight
recorder = Flight("stuck", 0, 2)
{before}
with recorder.operation(1, "", "allreduce", "sum", "float32", 4):
    print("in", flush=True)
    {inside}
"""


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)",
         "lock(mutex), lock(mutex)"),
        ("import signal; signal.set_wakeup_fd(-1)", "time.sleep(60)"),
    ],
    ids=["main thread in native code", "someone took the wake-up descriptor"],
)
def test_a_signal_writes_the_file_of_a_process_that_hangs(tmp_path: Path, before: str, inside: str) -> None:
    """Even if the main thread is stuck in native code, the file has the running operation and the stacks of all
    threads."""
    program = STUCK.format(before=before, inside=inside)
    environment = {**os.environ, flight.FOLDER_VARIABLE: str(tmp_path), flight.SIGNAL_VARIABLE: "SIGUSR1"}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        process.send_signal(signal.SIGUSR1)
        try:
            wait_for(lambda: any(tmp_path.glob("*.json")))
        finally:
            process.kill()
    (file,) = tmp_path.glob("*.json")
    assert file.name == "stuck.rank0.json"
    dump = msgspec.json.decode(file.read_bytes(), type=Dump)
    assert dump.why == "SIGUSR1 asked for it"
    assert dump.operations[0].state == "running"
    assert any("<string>" in line for lines in dump.threads.values() for line in lines)


HANDLED = """
import os, signal, time
from netfold.host.tracing.flight import Flight

def theirs(number, frame):
    # the signal may come within the print below, and a buffer cannot be entered twice
    os.write(1, b"handled %r\\n" % (number == signal.SIGUSR2 and frame is not None))

{first}
{second}
print("in", flush=True)
while True:
    time.sleep(60)
"""
OURS, THEIRS = 'recorder = Flight("handled", 0, 1)', "signal.signal(signal.SIGUSR2, {handler})"


@pytest.mark.parametrize("handler", ["theirs", "signal.SIG_IGN"])
@pytest.mark.parametrize("turn", [1, -1], ids=["program first", "recorder first"])
def test_a_handler_of_the_program_runs_as_well(tmp_path: Path, turn: int, handler: str) -> None:
    """Where the program handles the signal too, as submitit does, or ignores it, its handler runs and the file is
    written."""
    first, second = [THEIRS.format(handler=handler), OURS][::turn]
    program = HANDLED.format(first=first, second=second)
    environment = {**os.environ, flight.FOLDER_VARIABLE: str(tmp_path)}
    environment.pop(flight.SIGNAL_VARIABLE, None)
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"in\n"
            process.send_signal(signal.SIGUSR2)
            if handler == "theirs":
                assert process.stdout.readline() == b"handled True\n"
            if (turn, handler) != (-1, "signal.SIG_IGN"):  # a signal that is ignored later reaches nobody
                wait_for(lambda: any(tmp_path.glob("*.json")))
            assert process.poll() is None
        finally:
            process.kill()
        assert process.stderr is not None
        warned = b"has a handler of the program's" in process.stderr.read()
        assert warned == ((turn, handler) == (1, "theirs"))


def test_other_signals_of_the_program_write_no_file(tmp_path: Path) -> None:
    """Python writes the numbers of all signals that it handles to the same pipe, and so of children that end."""
    recorder = Flight("j", 0, 1, folder=tmp_path)
    for numbers, written in (([signal.SIGCHLD, signal.SIGINT], 0), ([signal.SIGCHLD, signal.SIGUSR2], 1)):
        readable, writable = os.pipe()
        os.write(writable, bytes(numbers))
        os.close(writable)
        flight.write_when_asked(readable, signal.SIGUSR2)
        os.close(readable)
        assert len(read(tmp_path)) == written
    recorder.close()


def test_a_signal_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wrong setting is an error when the communicator is made, not when it is needed."""
    monkeypatch.setenv(flight.SIGNAL_VARIABLE, "SIGNOTHING")
    with pytest.raises(ValueError, match="NETFOLD_FLIGHT_SIGNAL='SIGNOTHING': expected the name of a signal"):
        Flight("j", 0, 1, folder=tmp_path)


def _dump(rank: int, numbers: list[int], state: str = "done") -> Dump:
    operations = [OperationRecord(n, "", "allreduce", "sum", "float32", 4, "innet", 1.0, 2.0) for n in numbers]
    if operations:
        operations[-1].state = state
    return Dump("j", rank, 4, "h", rank + 100, 3.0, "", operations, {})


def test_the_rank_that_is_behind_is_named() -> None:
    """Together the files show which rank did not call the operation that the others wait in, and which wrote no
    file."""
    lines = compare([_dump(0, [1, 2, 3], "running"), _dump(1, [1, 2]), _dump(3, [1, 2, 3], "failed")])
    assert lines[0] == "job j, 4 ranks"
    assert "rank 0 (h, 100): operation 3 (allreduce sum float32, 4 bytes, innet) running" in lines[1]
    assert "nothing of rank 2" in lines[4]
    assert lines[5].endswith("at operation 3: rank 1")
    assert "no operation yet" in compare([_dump(0, [])])[1]


def test_the_command_shows_a_folder(tmp_path: Path) -> None:
    """`netfold flight` prints what the files hold, or one paragraph with status 1 where there are none."""
    empty = CliRunner().invoke(app, ["flight", str(tmp_path)])
    assert (empty.exit_code, "NETFOLD_FLIGHT=" in empty.output) == (1, True)
    (tmp_path / "j.rank0.json").write_bytes(msgspec.json.encode(_dump(0, [1])))
    good = CliRunner().invoke(app, ["flight", str(tmp_path)])
    assert (good.exit_code, "operation 1" in good.output) == (0, True)
    (tmp_path / "j.rank1.json").write_text(json.dumps({"job": 3}))
    bad = CliRunner().invoke(app, ["flight", str(tmp_path)])
    assert (bad.exit_code, "j.rank1.json: no file of a flight recorder" in bad.output) == (1, True)


@pytest.mark.parametrize("what", ["pipe", "link to a pipe"])
def test_a_pipe_in_the_folder_is_named_and_not_waited_for(tmp_path: Path, what: str) -> None:
    """In a shared folder anybody may make a pipe of such a name, to which nobody ever writes."""
    pipe = tmp_path / ("j.rank0.json" if what == "pipe" else "pipe")
    os.mkfifo(pipe)
    if what != "pipe":
        (tmp_path / "j.rank0.json").symlink_to(pipe)
    done = subprocess.run(
        [sys.executable, "-m", "netfold.cli", "flight", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert re.search(r"j\.rank0\.json: no file of a flight recorder: .*expected a regular file", done.stderr)


# ---- where files are -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("job", [
    "../../etc/cron.d/x", "/etc/passwd", "..", ".", "a/b", "a\0b", "a\nb", "a b;rm -rf *", "\u202etxt", "é" * 20,
])
def test_no_name_of_a_job_leads_out_of_the_folder(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's name comes with the plan: its file and its timeline's lie in the folder that was asked for, whatever the
    name."""
    folder = tmp_path / "asked for"
    path = Flight(job, 3, 4, folder=folder).dump("a test")
    assert path is not None
    assert path.resolve().parent == folder
    assert re.fullmatch(r"[A-Za-z0-9_.-]+\.rank3\.json", path.name)
    assert list(tmp_path.iterdir()) == [folder]
    monkeypatch.setenv("NETFOLD_TIMELINE", str(folder / "trace.json"))
    timeline = timeline_from_environment(job, 3, 4)
    assert timeline is not None
    assert timeline.path.resolve().parent == folder
    assert re.fullmatch(r"trace\.[A-Za-z0-9_-]+\.rank3\.json", timeline.path.name)
