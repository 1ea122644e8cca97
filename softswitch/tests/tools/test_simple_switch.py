# SPDX-License-Identifier: Apache-2.0
"""simple_switch and simple_switch_grpc: options, words and exit status are those of BMv2."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from finsy.proto import p4r

from softswitch.compiler.driver import compile_source
from softswitch.p4runtime.listening import Tls
from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.program import Compiler
from softswitch.p4runtime.server import Server
from softswitch.tools import simple_switch, switch_output
from softswitch.tools.program_options import Option
from softswitch.tools.switch_options import GENERAL, IGNORED, OPEN, REFUSED, TARGET, TARGET_GRPC, read
from softswitch.tools.switch_output import StartError
from switch_support.client import Client
from switch_support.p4 import basic

TIMEOUT = 60


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program as the stand-in of p4c writes it."""
    path = tmp_path / "prog.json"
    path.write_text(compile_source(basic(), "prog.p4").bmv2_json)
    return path


@contextlib.contextmanager
def running(name: str, *arguments: str | Path, ready: str, **environment: str) -> Iterator[list[str]]:
    """A switch that has printed `ready`; its lines on stdout so far. It ends by SIGTERM, with status 0."""
    script = f"import sys; from softswitch.tools.simple_switch import {name}; sys.exit({name}())"
    process = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, bufsize=1, env={**os.environ, **environment})
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while not any(ready in line for line in lines):
            assert select.select([process.stdout], [], [], TIMEOUT)[0]
            line = process.stdout.readline()
            assert line, lines
            lines.append(line)
        yield lines
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT)


def refusal(*words: str, grpc: bool = True) -> str:
    """The message with which a command line is refused."""
    with pytest.raises(StartError) as refused:
        read(words, TARGET_GRPC if grpc else TARGET)
    return str(refused.value)


def test_options_come_as_courses_give_them(tmp_path: Path) -> None:
    """As the tutorials and p4-utils start it: the program in the middle, more options behind, target options last."""
    words = (f"-i 1@s1-eth1 -i 2@s1-eth2 --pcap {tmp_path} --nanolog ipc:///tmp/bm-0-log.ipc --device-id 0 b/prog.json "
             "--log-console --thrift-port 9091 -- --grpc-server-addr 0.0.0.0:50051 --cpu-port 255")
    arguments = read(words.split(), TARGET_GRPC)
    assert arguments is not None
    assert arguments.program == "b/prog.json"
    assert arguments.general["interface"] == ["1@s1-eth1", "2@s1-eth2"]
    assert (arguments.general["pcap"], arguments.general["thrift-port"]) == (str(tmp_path), 9091)
    assert arguments.target == {"grpc-server-addr": "0.0.0.0:50051", "cpu-port": 255}


def test_every_refused_or_ignored_option_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused ones end the program; those without effect cost a line on stderr; others cost none."""
    for option in {one.name: one for one in (*GENERAL, *TARGET, *TARGET_GRPC)}.values():
        if option.name in ("help", "version", "json-version", "no-p4"):
            continue
        values = {"log-level": "info", "pcap": str(tmp_path), "notifications-addr": "ipc://n.ipc"}
        given = [f"--{option.name}", *([] if option.kind is bool else [values.get(option.name, "1")])]
        words = [*given, "prog.json"] if option in GENERAL else ["prog.json", "--", *given]
        target = TARGET_GRPC if option in TARGET_GRPC else TARGET
        if option.name in REFUSED:
            assert f"option '--{option.name}' is not supported by softswitch" in refusal(*words, grpc=target != TARGET)
            continue
        assert read(words, target) is not None
        assert (f"option '--{option.name}' has no effect here" in capsys.readouterr().err) == (option.name in IGNORED)


@pytest.mark.needs("bmv2", "simple_switch")
@pytest.mark.parametrize(("name", "target"), [("simple_switch", TARGET), ("simple_switch_grpc", TARGET_GRPC)])
def test_the_options_are_those_that_bmv2_lists(name: str, target: tuple[Option, ...]) -> None:
    """Each that --help names, short ones too; ours beyond those are of builds of BMv2 with more in them."""
    said = subprocess.run([name, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    listed = set(re.findall(r"^  (?:-\w \[ )?--([\w-]+)", said, re.MULTILINE))
    ours = {option.name for option in (*GENERAL, *target)}
    assert len(listed) > 20
    assert listed <= ours
    assert ours - listed <= {"debugger", "debugger-addr", "notifications-addr", "packet-in"}
    assert set(re.findall(r"^  -(\w) ", said, re.MULTILINE)) == {option.short for option in GENERAL} - {""}


@pytest.mark.parametrize(("words", "says"), [
    ("", "Error: please specify an input JSON configuration file\nUsage: "),
    ("--bogus", "Error while parsing command line arguments"), ("-L loud x.json", "Invalid value loud for --log-level"),
    ("--pcap=/no/such x.json", "Directory '/no/such' specified with '--pcap' does not exist."),
    ("--device-id 18446744073709551616 x.json", "--device-id 18446744073709551616: expected a number of 64 bits"),
    ("--notifications-addr tcp://*:1 x.json", "--notifications-addr tcp://*:1: expected ipc://PATH"),
    ("x.json -- --bogus", "unrecognised option '--bogus'\nTarget parser returned an error"),
    ("x.json -- --drop-port x", "the argument ('x') for option '--drop-port' is invalid"),
    ("x.json --cpu-port 5", "Error while parsing command line arguments"),
])
def test_wrong_command_lines_are_refused_in_bmv2s_words(words: str, says: str) -> None:
    """An option of the target before the two dashes is unknown there."""
    assert refusal(*words.split()).startswith(says)


@pytest.mark.parametrize(("words", "says"), [
    ("missing.json", "JSON input file missing.json cannot be opened"), ("THEIRS", "p4c made it for BMv2"),
    ("-i,1@lo,-i,511@lo,PROGRAM", "expected a port number within 0..510"), ("PROGRAM,--,--drop-port,5", "--drop-port"),
    ("PROGRAM,--,--cpu-port,511", "--cpu-port 511"), ("-i,lo,PROGRAM", "expected <port-num>@<interface-name>"),
    ("PROGRAM,--,--grpc-server-ssl", "needs --grpc-server-cert and --grpc-server-key"),
    ("PROGRAM,--log-file,/no/such/file", "cannot open /no/such/file.txt"), ("PROGRAM,--thrift-port,70000", "0..65535"),
])
def test_what_cannot_start_says_why(
    words: str, says: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stdout, with exit status 1, as BMv2; nothing is left behind."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    logger = logging.Logger("test")  # that of all tests keeps its handlers
    monkeypatch.setattr(logging, "getLogger", lambda _=None: logger)
    (tmp_path / "theirs.json").write_text('{"pipelines": []}')
    words = words.replace("PROGRAM", str(program)).replace("THEIRS", str(tmp_path / "theirs.json"))
    before = signal.set_wakeup_fd(-1)
    assert simple_switch.main("simple_switch_grpc", TARGET_GRPC, words.split(",")) == 1
    assert signal.set_wakeup_fd(before) == -1, "it left the interpreter with a descriptor for signals"
    assert says in capsys.readouterr().out


def test_versions_are_printed() -> None:
    """BMv2's version first, for those who parse it."""
    assert read(["--version"], TARGET) is None
    assert read(["--json-version", "--bogus-free"][:1], TARGET) is None


@pytest.mark.parametrize(("address", "tls", "served"), [
    ("0.0.0.0:50051", False, "127.0.0.1:50051"), ("[::]:50051", False, "[::1]:50051"),
    ("0.0.0.0:50051", True, "0.0.0.0:50051"), ("127.0.0.1:1", False, "127.0.0.1:1"),
    ("10.0.0.1:1", False, "10.0.0.1:1"), ("unix:/tmp/x", False, "unix:/tmp/x"),
])
def test_all_addresses_without_mutual_tls_become_loopback(
    address: str, tls: bool, served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line says so; other addresses stay, and are refused where others reach them; SOFTSWITCH_OPEN opens all."""
    monkeypatch.delenv(OPEN, raising=False)
    mutual = Tls(Path("cert"), Path("key"), Path("ca")) if tls else None
    assert simple_switch.narrowed(address, mutual) == (served, False)
    assert ("SOFTSWITCH_OPEN=1" in capsys.readouterr().err) == (address != served)
    monkeypatch.setenv(OPEN, "1")
    assert simple_switch.narrowed(address, None) == (address, True)


def test_a_missing_interface_is_logged_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As with BMv2, the others serve; a port that is given twice has the first interface."""
    logged: list[str] = []
    ports = simple_switch.ports_of(["1@lo", "2@no-such-if", "1@other", "3@lo"], logged.append)
    assert [(port.number, port.interface) for port in ports] == [(1, "lo")]
    assert [line.partition(":")[0] for line in logged] == ["Add port operation failed"] * 2
    assert "Adding interface lo as port 1\nAdding interface no-such-if as port 2\n" in capsys.readouterr().out


def test_packets_are_logged_in_bmv2s_words_by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a console or a file and a level of debug or trace; lines without a letter belong to the one before."""
    root, packets = logging.Logger("root"), logging.Logger(switch_output.PACKETS)
    monkeypatch.setattr(logging, "getLogger", lambda name=None: packets if name == switch_output.PACKETS else root)
    assert switch_output.trace_to_log({"log-console": True, "log-level": "info"}) is None
    assert switch_output.trace_to_log({}) is None
    text = ("[12:00:00.000] [bmv2] [T] [thread 1] [0.0] [cxt 0] Applying table 't'\n* key: 1\n"
            "[12:00:00.000] [bmv2] [D] [thread 1] [0.0] [cxt 0] Egress port is 2\n* more\n")
    for level, lines in (("trace", [0, 1, 2, 3]), ("debug", [2, 3])):
        found: list[str] = []
        handler = logging.Handler()
        handler.setFormatter(switch_output.Words())
        monkeypatch.setattr(handler, "emit", lambda record, h=handler, found=found: found.append(h.format(record)))
        packets.handlers = [handler]
        live = switch_output.trace_to_log({"log-console": True, "log-level": level})
        assert live is not None
        switch_output.PacketLines(switch_output.LEVELS[level]).write(text)
        assert found == [text.splitlines()[i] for i in lines]


@pytest.mark.parametrize(("name", "goes_on"), [("simple_switch", False), ("simple_switch_grpc", True)])
def test_without_the_package_thrift_the_one_with_p4runtime_goes_on(
    name: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what is missing and how to get it; simple_switch, which nobody could control, ends with that."""
    monkeypatch.delitem(sys.modules, "softswitch.thrift.serving", raising=False)
    for module in [module for module in sys.modules if module.partition(".")[0] == "thrift"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "thrift", None)
    for module in [module for module in sys.modules if module.startswith("softswitch.thrift.")]:
        if module != "softswitch.thrift.errors":  # whose class this test knows
            monkeypatch.delitem(sys.modules, module)
    switch = simple_switch.StandIn(name, simple_switch.Arguments({"thrift-port": 0}, {}, None))
    with contextlib.ExitStack() as serving, contextlib.nullcontext() if goes_on else pytest.raises(
        StartError, match="pip install thrift"
    ):
        switch.serve_thrift(Server(device_id=0, settings=Settings(), builder=Compiler()), serving)
    assert ("no Thrift server on port 0, P4Runtime alone" in capsys.readouterr().err) == goes_on


def test_simple_switch_grpc_serves_p4runtime_and_a_p4_device_config_of_json(program: Path, tmp_path: Path) -> None:
    """A controller pushes the JSON that p4c's stand-in wrote, in the message that the tutorials wrap it in."""
    address = f"unix:{tmp_path}/p4rt"
    log = tmp_path / "log"
    with (
        running("simple_switch_grpc", "--no-p4", "--thrift-port", "0", "--log-file", log, "--",
                "--grpc-server-addr", address, ready="Server listening on") as lines,
        Client(address, device=0) as client,
    ):
        data = program.read_bytes()
        size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80, len(data) >> 14])
        info = compile_source(basic(), "prog.p4").p4info
        stream = client.stream()
        stream.arbitrate(1, device=0)  # BMv2's default
        assert stream.status() == (0, 1)
        client.election = 1
        client.push(p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=b"\x08\x01\x1a" + size + data))
        assert lines[0] == "Calling target program-options parser\n"
    assert re.search(r"^\[\d\d:\d\d:\d\d\.\d{3}\] \[bmv2\] \[I\] \[thread \d+\] Starting Thrift server on port 0$",
                     (tmp_path / "log.txt").read_text(), re.MULTILINE)
