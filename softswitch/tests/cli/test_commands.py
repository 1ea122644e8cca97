# SPDX-License-Identifier: Apache-2.0
"""The `softswitch` command: starting, stopping, and errors that say why it cannot start."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from softswitch.cli import main
from switch_support.client import Client
from switch_support.p4 import basic

pytestmark = pytest.mark.slow

TIMEOUT = 60


def process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, as a process."""
    return subprocess.run(
        [sys.executable, "-m", "softswitch", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT
    )


def softswitch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end in this process, which has imported it; a traceback would be the test's."""
    words, status = [*map(str, arguments)], None
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        try:
            main(words)
        except SystemExit as end:
            status = end.code
    assert status is None or isinstance(status, int)
    return subprocess.CompletedProcess(words, status or 0, out.getvalue(), errors.getvalue())


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A switch that is ready: (process, its ready line)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "softswitch", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT)
        line = process.stdout.readline() if ready else ""
        assert "ready" in line, process.stderr.read()
        yield process, line
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT)


def children(pid: int) -> list[int]:
    """Child processes of all threads of a process; none where it has ended meanwhile."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (thread / "children").read_text().split())
    return found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "basic.p4"
    path.write_text(basic())
    return path


def test_it_runs_a_program_and_stops_when_told(program: Path, tmp_path: Path) -> None:
    """`softswitch prog.p4 ...` serves the program it is given; SIGTERM ends it, and its child, with status 0."""
    address = f"unix:{tmp_path}/switch.sock"
    with running(program, "--grpc-server-addr", address, "--device-id", "7", "--cpu-port", "510") as (process, line):
        assert "device 7" in line
        assert address in line
        with Client(address, device=7) as client:
            assert client.read(p4r.Entity(counter_entry=p4r.CounterEntry()))
        (pid,) = children(process.pid)
        os.kill(pid, signal.SIGTERM)  # as timeout(1) and systemd do, to all processes of a group
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is None or "died" not in process.stderr.read()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_switch_has_the_threads_that_are_asked_for(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the option, else by the variable, which the switches of a fabric have of their launcher; other words than a
    number of threads are refused by name."""
    monkeypatch.setenv("SOFTSWITCH_THREADS", "2")
    for options, threads in (["--threads", "3"], 3), ([], 2):
        with running(program, "--grpc-server-addr", f"unix:{tmp_path}/{threads}.sock", *options) as (process, _):
            (pid,) = children(process.pid)
            assert len(list(Path(f"/proc/{pid}/task").iterdir())) == threads
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0
    for wrong in "", "0", "65", "two", "²":
        monkeypatch.setenv("SOFTSWITCH_THREADS", wrong)
        done = softswitch("run", "--no-p4")
        assert done.returncode == 2
        assert f"SOFTSWITCH_THREADS={wrong!r}" in done.stderr


def test_entries_of_a_file_are_there_when_it_is_ready(program: Path, tmp_path: Path) -> None:
    """`run --entries` takes a file of p4lang's tutorials as `explain --entries` does, and a controller reads them; what
    cannot be written, and a packet test, ends the command before it is ready."""
    file, wrong, test = (tmp_path / name for name in ("s1-runtime.json", "s2.json", "s3.stf"))
    entry = {"table": "I.dmac", "match": {"h.ethernet.dst": "02:00:00:00:00:01"}, "action_name": "I.forward",
             "action_params": {"port": 3}}
    file.write_text(json.dumps({"table_entries": [entry]}))
    wrong.write_text(json.dumps({"table_entries": [{**entry, "table": "I.none"}]}))
    test.write_text("packet 1 00\n")
    with running(program, "--entries", file, "--grpc-server-addr", f"unix:{tmp_path}/s") as (_, _), Client(
            f"unix:{tmp_path}/s") as client:
        (found,) = client.read(p4r.Entity(table_entry=p4r.TableEntry()))
        assert found.table_entry.match[0].exact.value == bytes.fromhex("020000000001")
    for path, says in ((wrong, "table I.none is unknown"), (test, "a packet test is for `softswitch stf`")):
        done = process(program, "--entries", path, "--grpc-server-addr", f"unix:{tmp_path}/s")
        assert done.returncode == 2
        assert says in done.stderr, done.stderr


def test_without_program_it_waits_for_one(tmp_path: Path) -> None:
    """--no-p4 starts a server without pipeline; Ctrl-C ends it with status 0."""
    with running("--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/s") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0


def test_killed_it_leaves_no_native_process(program: Path, tmp_path: Path) -> None:
    """The native process ends also when the command is killed by SIGKILL."""
    with running(program, "--grpc-server-addr", f"unix:{tmp_path}/s") as (process, _):
        (pid,) = children(process.pid)
        handle = os.pidfd_open(pid)
        process.kill()
        ready, _, _ = select.select([handle], [], [], TIMEOUT)
        os.close(handle)
        assert ready


CANNOT_START = {
    "no program": (["--device-id", "1"], "give either a PROGRAM.p4 or --no-p4"),
    "both": (["x.p4", "--no-p4"], "give either a PROGRAM.p4 or --no-p4"),
    "no such file": (["missing.p4"], "missing.p4: No such file"),
    "page elsewhere": (["--no-p4", "--page", "0.0.0.0:80"], "expected a loopback address"),
    "no such interface": (["--no-p4", "-i", "1@nope0"], "there is no interface nope0"),
    "not PORT@IFACE": (["--no-p4", "-i", "lo"], "expected PORT@INTERFACE"),
    "no digit of a number": (["--no-p4", "-i", "²@lo"], "expected PORT@INTERFACE"),
    "port number too large": (["--no-p4", "-i", "511@lo"], "0..510"),
    "port twice": (["--no-p4", "-i", "1@lo", "-i", "1@lo"], "given twice"),
    "cpu port is a port": (["--no-p4", "-i", "1@lo", "--cpu-port", "1"], "--cpu-port 1"),
    "no such directory": (["--no-p4", "--pcap", "/nope"], "/nope"),
    "bad address": (["--no-p4", "--grpc-server-addr", "nowhere.invalid:1"], "nowhere.invalid:1"),
}


@pytest.mark.parametrize("name", CANNOT_START)
def test_what_keeps_it_from_starting_is_named(name: str) -> None:
    """The command ends with status 2 and one line that says what to change, without a traceback."""
    arguments, said = CANNOT_START[name]
    made = name in ("bad address", "no such file")  # a server, already, which minds this process's signals
    done = (process if made else softswitch)("run", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named() -> None:
    """The message has the address that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = process("--no-p4", "--grpc-server-addr", address)
    assert done.returncode == 2
    assert f"cannot listen on {address}" in done.stderr


def test_a_program_with_errors_is_drawn(program: Path) -> None:
    """The message has file, line and column of the mistake."""
    program.write_text(basic().replace("s.egress_spec = port;", "s.egress_spec = nothing;"))
    for done in (process(program), softswitch("compile", program)):
        assert done.returncode in (1, 2)
        assert "basic.p4:" in done.stderr
        assert "nothing" in done.stderr
        assert "p4_device_config" not in done.stderr
        assert "Traceback" not in done.stderr


def test_compile_writes_what_is_asked_for(program: Path, tmp_path: Path) -> None:
    """`compile` writes p4info as text and binary, the C source, and the preprocessed program, which compiles again."""
    c, text, binary, source = (tmp_path / name for name in ("a.c", "a.txtpb", "a.bin", "pushed.p4"))
    assert softswitch("compile", program, "-o", c, "--p4info", text, "--preprocessed", source).returncode == 0
    assert softswitch("compile", source, "--p4info", binary).returncode == 0
    assert "ss_the_program" in c.read_text()
    one, two = p4i.P4Info(), p4i.P4Info.FromString(binary.read_bytes())
    text_format.Parse(text.read_text(), one)
    assert [t.preamble.name for t in one.tables] == ["I.dmac"]
    assert one == two
    assert "#include" not in source.read_text()
    assert softswitch("compile", program, "--dump-ir").stdout.strip()


def test_messages_begin_with_their_file_and_success_names_what_was_made(program: Path, tmp_path: Path) -> None:
    """Editors find places of errors and warnings by the beginning of the line; whoever compiles learns what there is
    now."""
    bad = tmp_path / "bad.p4"
    bad.write_text(program.read_text().replace("apply {", "apply { nothing = 1; ", 1))
    for command in ("compile", "explain"):
        done = softswitch(command, bad)
        assert done.returncode == 1
        assert done.stderr.startswith(f"{bad}:"), done.stderr
    done = softswitch("compile", program)
    assert done.stdout.startswith(f"{program}: compiled to /"), done.stdout
    assert f"{program}: wrote {tmp_path / 'a.c'}" in softswitch("compile", program, "-o", tmp_path / "a.c").stderr


def test_stf_says_whether_a_packet_test_passes(program: Path, tmp_path: Path) -> None:
    """The exit status is 0 where all expectations hold, and 1 where one does not."""
    entry = "add I.dmac h.ethernet.dst:0x020000000001 I.forward(port:3)\n"
    test = tmp_path / "test.stf"
    frame = "020000000001 020000000002 1234 00"
    test.write_text(entry + f"packet 1 {frame}\nexpect 3 {frame}\n")
    done = softswitch("stf", program, test)
    assert done.returncode == 0, done.stderr + done.stdout
    test.write_text(entry + f"packet 1 {frame}\nexpect 3 {frame[:-2]}01\n")
    assert softswitch("stf", program, test).returncode == 1


@pytest.mark.parametrize(("test", "said"), [(b"packt 1 00\n", "expected"), (b"packet 1 \xff\n", "UTF-8")])
def test_a_packet_test_that_cannot_be_read_is_one_message(
    program: Path, tmp_path: Path, test: bytes, said: str
) -> None:
    """The message says where and what was expected, without a traceback."""
    (tmp_path / "a.stf").write_bytes(test)
    done = softswitch("stf", program, tmp_path / "a.stf")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_packet_test_without_end_is_one_message(program: Path) -> None:
    """A file larger than any test is refused with the number of bytes, without a traceback."""
    done = softswitch("stf", program, Path("/dev/zero"))
    assert (done.returncode, done.stderr) == (2, "softswitch: /dev/zero: expected at most 16,777,216 bytes, got more\n")


def test_an_output_that_cannot_be_written_is_named(program: Path, tmp_path: Path) -> None:
    """A file in a folder that does not exist is refused by name."""
    missing = tmp_path / "no" / "where.c"
    done = softswitch("compile", program, "-o", missing)
    assert done.returncode == 2
    assert f"{missing}: No such file" in done.stderr


def test_neither_a_file_nor_a_command_names_the_commands() -> None:
    """A mistyped command is no program that is missing."""
    done = softswitch("explian", "x.p4")
    assert done.returncode == 2
    assert "no such command; expected PROGRAM.p4 or one of run, compile," in done.stderr


@pytest.mark.parametrize("command", ["compile", "explain"])
def test_json_is_refused_where_p4_is_expected(command: str, tmp_path: Path) -> None:
    """By its kind, rather than by a mistake in its first line."""
    (tmp_path / "x.json").write_text(' {"a": 1}')
    done = softswitch(command, tmp_path / "x.json")
    assert done.returncode == 2
    assert "this is JSON; expected P4 text" in done.stderr


def test_version_and_help() -> None:
    """Version and help are printed without a program."""
    assert softswitch("version").stdout.startswith("softswitch ")
    assert softswitch("--version").stdout == softswitch("version").stdout
    assert "compile" in softswitch("--help").stdout
    assert softswitch("-h").stdout == softswitch("--help").stdout
