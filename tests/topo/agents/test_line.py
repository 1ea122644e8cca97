# SPDX-License-Identifier: Apache-2.0
"""Commands in a guest and its connections, with the agent in a process of this machine instead of a guest."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from netfold.topo.agents import attach
from netfold.topo.agents.frames import MOST, MOST_WAITING, Kind, Splitter, pack
from netfold.topo.agents.line import DOOR_CONNECTIONS, Line
from switch_support.ports import wait_for

SECONDS = 60
AGENT = "import sys; from netfold.topo.agents.agent import Agent; Agent(int(sys.argv[1]), sys.argv[2:]).serve()"


class Guest:
    """An agent and the line to it.

    inside, outside  path of a socket as the agent's side sees it, and where its connections go
    """

    def __init__(self, folder: Path) -> None:
        self.inside, self.outside, self.socket = folder / "in.sock", folder / "out.sock", folder / "h1.vm"
        ours, theirs = socket.socketpair()
        with theirs:
            self.agent = subprocess.Popen([sys.executable, "-c", AGENT, str(theirs.fileno()), str(self.inside)],
                                          pass_fds=[theirs.fileno()])
        self.line = Line(ours, self.socket, [self.outside])
        assert self.line.ready.wait(SECONDS)

    def start(self, *argv: str, **options: object) -> subprocess.Popen[bytes]:
        """Start a command in the guest."""
        return subprocess.Popen(attach.command(str(self.socket), argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                **options)  # type: ignore[call-overload, no-any-return]

    def run(self, *argv: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        """The status, output and errors of a command in the guest."""
        process = self.start(*argv, stdin=subprocess.PIPE)
        output, errors = process.communicate(data, timeout=SECONDS)
        return process.returncode, output, errors


@pytest.fixture
def guest() -> Iterator[Guest]:
    """A guest whose line and agent are ended after the test."""
    with tempfile.TemporaryDirectory() as folder:  # short: the path of a socket has at most 107 bytes
        guest = Guest(Path(folder))
        try:
            yield guest
        finally:
            guest.agent.kill()
            guest.agent.wait()
            guest.line.close()


@pytest.fixture
def no_input() -> Iterator[None]:
    """Standard input is /dev/null."""
    before = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    yield
    os.dup2(before, 0)
    os.close(before)


def test_a_command_has_this_ones_environment_folder_and_streams(guest: Guest, tmp_path: Path) -> None:
    """What it reads, writes and returns is as if it ran here."""
    script = "cd . && pwd && echo $WORD >&2 && cat && exit 7"
    process = guest.start("sh", "-c", script, stdin=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "WORD": "hello"})
    output, errors = process.communicate(b"input\n", timeout=SECONDS)
    assert (process.returncode, output.decode(), errors) == (7, f"{tmp_path}\ninput\n", b"hello\n")


@pytest.mark.parametrize("name", attach.PROCESSORS)
def test_what_names_this_machines_processor_stays_here(guest: Guest, name: str) -> None:
    """The guest has another one, on which code for this one ends by SIGILL."""
    process = guest.start("env", env={**os.environ, name: "Haswell"})
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert "PATH" in (names := [line.partition("=")[0] for line in output.decode().splitlines()])
    assert name not in names


def test_much_output_arrives_whole(guest: Guest) -> None:
    """More than any buffer between holds, from several commands at once."""
    script = "import sys; sys.stdout.buffer.write(bytes([int(sys.argv[1])]) * 3_000_000)"
    processes = [guest.start(sys.executable, "-c", script, str(number)) for number in range(3)]
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, output) == (0, bytes([number]) * 3_000_000)


def test_a_reader_that_stands_still_stops_the_writer(guest: Guest) -> None:
    """What waits for it is bounded, the other commands go on, and it gets all of it once it reads."""
    script = "import os\nfor _ in range(400): os.write(1, b'x' * 65536)\n"
    still = guest.start(sys.executable, "-c", script)
    wait_for(lambda: any(peer.waiting.full for peer in list(guest.line.peers.values())))
    assert guest.run("echo", "on")[:2] == (0, b"on\n")
    assert max(peer.waiting.size for peer in list(guest.line.peers.values())) < 4 * MOST_WAITING
    output, _ = still.communicate(timeout=SECONDS)
    assert (still.returncode, len(output)) == (0, 400 * 65536)


def test_a_connection_that_stands_still_stops_who_sends(guest: Guest) -> None:
    """Both ways: what is sent to a program that reads nothing waits at the sender."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(guest.outside))
        listener.listen()
        client.connect(str(guest.inside))
        served, _ = listener.accept()
        with served:
            for sender, reader in ((client, served), (served, client)):
                thread = threading.Thread(target=sender.sendall, args=(bytes(MOST_WAITING * 16),), daemon=True)
                thread.start()
                wait_for(lambda: any(peer.waiting.full or peer.held for peer in list(guest.line.peers.values())))
                assert guest.run("echo", "on")[:2] == (0, b"on\n")
                assert max(peer.waiting.size for peer in list(guest.line.peers.values())) < 4 * MOST_WAITING
                reader.settimeout(SECONDS)
                left = MOST_WAITING * 16
                while left:
                    left -= len(reader.recv(1 << 20))
                thread.join(SECONDS)
                wait_for(lambda: not any(peer.waiting.full or peer.held for peer in list(guest.line.peers.values())))


def test_a_command_that_does_not_read_its_input_keeps_nobody_waiting(guest: Guest) -> None:
    """Other commands run and signals reach it; once it reads, it gets all of it."""
    script = ("import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
              "print('ready', flush=True); signal.sigwait([signal.SIGUSR1]); print(len(sys.stdin.buffer.read()))")
    process = guest.start(sys.executable, "-c", script, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    written: list[int] = []

    def write(file: IO[bytes]) -> None:
        with file:
            for _ in range(256):
                written.append(file.write(bytes(MOST)))

    thread = threading.Thread(target=write, args=(process.stdin,), daemon=True)
    thread.start()
    wait_for(lambda: sum(written) > MOST_WAITING)
    assert guest.run("echo", "on")[:2] == (0, b"on\n")
    assert max(peer.waiting.size for peer in list(guest.line.peers.values())) < 4 * MOST_WAITING
    process.send_signal(signal.SIGUSR1)
    thread.join(SECONDS)
    assert process.stdout.read() == b"%d\n" % (256 * MOST)
    assert process.wait(SECONDS) == 0


def test_a_signal_to_attach_reaches_the_command(guest: Guest) -> None:
    """It ends by it, and so does `attach`."""
    process = guest.start("sh", "-c", "echo ready; sleep 100")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_a_signal_that_ended_the_command_ends_attach(guest: Guest, number: int) -> None:
    """Its status is that of the command, whichever signal it is, and it says nothing of its own."""
    assert guest.run("sh", "-c", f"kill -{number:d} $$") == (-number, b"", b"")


def test_a_command_ends_with_attach_when_that_is_killed(guest: Guest, tmp_path: Path) -> None:
    """Nothing goes on in a guest for nobody: the pipe that the command holds is closed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = guest.start("sh", "-c", f"exec 9>{pipe}; echo ready >&9; sleep 100")
    with pipe.open("rb") as reader:
        assert reader.readline() == b"ready\n"
        process.kill()
        process.communicate(timeout=SECONDS)
        assert reader.read() == b""


def test_a_command_that_cannot_be_run_says_so(guest: Guest) -> None:
    """Like a shell's status 127."""
    status, _, errors = guest.run("no-such-program")
    assert status == 127
    assert b"cannot run no-such-program" in errors


@pytest.mark.parametrize(("answer", "status", "output"), [
    (pack(0, Kind.OUTPUT, b"said") + pack(0, Kind.EXIT, struct.pack("!i", 7)), 7, "said"),
    (b"", attach.GUEST_LOST, "")],
    ids=["its status", "its guest's end"])
def test_a_command_that_ends_before_its_input_is_sent_has_its_status(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], no_input: None, answer: bytes, status: int,
    output: str,
) -> None:
    """So has one whose guest ends meanwhile: the other end of the line is closed before `attach` sends the input."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as line:
        line.bind(f"{folder}/line")
        line.listen()
        closed = threading.Event()

        def serve() -> None:
            connection, _ = line.accept()
            connection.recv(1)
            connection.sendall(answer)
            connection.close()
            closed.set()

        # between the command and its input `attach` sets its signals
        monkeypatch.setattr(signal, "signal", lambda *_: closed.wait(SECONDS))
        thread = threading.Thread(target=serve)
        thread.start()
        assert attach.run(f"{folder}/line", ["true"]) == status
        thread.join()
    said = capfd.readouterr()
    assert said.out == output
    assert said.err == ("" if output else f"the guest of {folder}/line has ended, and true with it\n")


def test_a_signal_in_the_middle_of_a_frame_is_sent_after_it(monkeypatch: pytest.MonkeyPatch, no_input: None) -> None:
    """The line is that of all commands of a guest, and a broken frame would end it."""
    class Interrupted(socket.socket):
        """Gets SIGUSR1 when half of the input's frame is sent."""

        def sendall(self, data: bytes, *_: int) -> None:  # type: ignore[override]
            super().sendall(data[:2])
            if data == pack(0, Kind.INPUT):
                signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            super().sendall(data[2:])

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as line:
        line.bind(f"{folder}/line")
        line.listen()
        kinds: list[Kind] = []

        def serve() -> None:
            connection, _ = line.accept()
            connection.settimeout(SECONDS)
            splitter = Splitter()
            with connection:
                while Kind.SIGNAL not in kinds:
                    kinds.extend(kind for _, kind, _ in splitter.feed(connection.recv(1 << 16)))
                connection.sendall(pack(0, Kind.EXIT, bytes(4)))

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setattr(socket, "socket", Interrupted)
        handlers = {number: signal.getsignal(number) for number in attach.HANDED_ON}
        try:
            assert attach.run(f"{folder}/line", ["true"]) == 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        thread.join()
    assert kinds == [Kind.RUN, Kind.INPUT, Kind.SIGNAL]


def test_what_sends_no_frames_ends_no_command_but_its_own(guest: Guest) -> None:
    """The line goes on for all others."""
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(SECONDS)
        other.connect(str(guest.socket))
        other.sendall(b"\xff" * 64)
        assert other.recv(1) == b""
    assert guest.run("echo", "on")[:2] == (0, b"on\n")


def test_the_end_of_the_guest_ends_its_commands_by_name(guest: Guest) -> None:
    """Whoever waits is told, and whoever comes later too."""
    process = guest.start("sh", "-c", "echo ready; sleep 100")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    guest.agent.kill()
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == attach.GUEST_LOST
    assert b"has ended, and sh with it" in errors
    guest.line.join(SECONDS)
    status, _, errors = guest.run("true")
    assert status == attach.GUEST_LOST
    assert b"it has ended, or was not started" in errors


def test_connections_to_a_guests_socket_reach_this_machine(guest: Guest) -> None:
    """Bytes go both ways on each of several connections; an end is an end on the other side."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(guest.outside))
        listener.listen()

        def echo() -> None:
            for _ in range(3):
                served, _ = listener.accept()
                with served:
                    while data := served.recv(65536):
                        served.sendall(data.upper())

        server = threading.Thread(target=echo, daemon=True)
        server.start()
        for number in range(3):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(SECONDS)
                client.connect(str(guest.inside))
                word = f"word{number}".encode() * 50_000
                sender = threading.Thread(target=client.sendall, args=(word,))
                sender.start()
                got = b""
                while len(got) < len(word):
                    got += client.recv(65536)
                sender.join()
                assert got == word.upper()
        server.join(SECONDS)
        assert not server.is_alive()


def test_a_connection_to_nobody_is_closed(guest: Guest) -> None:
    """As if it had been refused."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(ConnectionResetError):
        client.settimeout(SECONDS)
        client.connect(str(guest.inside))
        assert client.recv(1) == b""


def test_many_connections_of_a_program_end_neither_agent_nor_line(guest: Guest) -> None:
    """Without a free descriptor the line refuses a connection, and the agent lets it wait; both serve the next ones."""
    with socket.socket(socket.AF_UNIX) as outside, contextlib.ExitStack() as opened:
        outside.bind(str(guest.outside))
        outside.listen(64)
        outside.settimeout(SECONDS)
        refused, *others, last = [opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(42)]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        try:
            refused.settimeout(SECONDS)
            refused.connect(str(guest.inside))
            assert refused.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        resource.prlimit(guest.agent.pid, resource.RLIMIT_NOFILE, (30, 30))
        for client in (*others, last):
            client.connect(str(guest.inside))
        files = Path(f"/proc/{guest.agent.pid}/fd")
        below = {str(number) for number in range(30)}  # its end of the line may have a greater one
        wait_for(lambda: guest.agent.poll() is not None or below <= {*os.listdir(files)})
        for client in others:
            client.close()
        last.sendall(b"x")
        said = b""
        while not said:
            served, _ = outside.accept()
            served.settimeout(SECONDS)
            with served:
                said = served.recv(1)
    assert guest.run("echo", "on")[:2] == (0, b"on\n")


REUSED = """
import os, socket
from netfold.topo.agents.agent import Agent

line, outside = socket.socketpair()
agent = Agent(line.fileno(), [])
closing, to_closing = socket.socketpair()
closed, to_closed = socket.socketpair()
fresh, to_fresh = socket.socketpair()

def close():
    number = closed.fileno()
    for file in (closing, closed):
        agent._selector.unregister(file)
    closed.close()
    agent._watch(socket.socket(fileno=os.dup2(fresh.fileno(), number)), lambda: print("the new one"))
    outside.shutdown(socket.SHUT_WR)

agent._watch(closing, close)
agent._watch(closed, lambda: print("the closed one"))
to_closing.send(b"first")
to_closed.send(b"second")
agent.serve()
"""


def test_an_event_of_a_closed_file_reaches_nobody_who_has_its_number_now() -> None:
    """Of two that are ready at once the first closes the second, whose number another one gets."""
    run = subprocess.run([sys.executable, "-c", REUSED], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.stdout == ""
    assert "Error" not in run.stderr


class Doors:
    """A line with a door for ranks and one for the page, and the frames that its guest gets."""

    def __init__(self, folder: Path) -> None:
        ours, self.guest = socket.socketpair()
        self.guest.settimeout(SECONDS)
        ranks, page = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)
        ranks.bind(str(folder / "ranks"))
        page.bind(("127.0.0.1", 0))
        for door in (ranks, page):
            door.listen(64)
        self.ranks, self.page = ranks.getsockname(), page.getsockname()
        self.line = Line(ours, folder / "h1.vm", [], {"ranks": ranks, "page": page})
        self.frames: list[tuple[int, Kind]] = []
        self._splitter = Splitter()
        self._visitors: list[socket.socket] = []

    def visit(self, address: str | tuple[str, int]) -> socket.socket:
        """A connection to a door, once the guest knows of it."""
        visitor = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        visitor.settimeout(SECONDS)
        visitor.connect(address)
        self._visitors.append(visitor)
        while (len(self._visitors), Kind.CONNECT) not in self.frames:
            self.frames += [(channel, kind) for channel, kind, _ in self._splitter.feed(self.guest.recv(4096))]
        return visitor

    @property
    def closed(self) -> list[int]:
        """The channels that the guest was told to close."""
        return [channel for channel, kind in self.frames if kind is Kind.CLOSE]

    def close(self) -> None:
        """End the line and all connections."""
        self.line.close()
        for each in (self.guest, *self._visitors):
            each.close()


@pytest.fixture
def doors() -> Iterator[Doors]:
    """Doors that are closed after the test."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Doors(Path(folder))) as doors:
        yield doors


def test_connections_that_stay_at_a_door_make_room_for_who_comes(doors: Doors) -> None:
    """The door's oldest is closed, here and by a frame to the other side; one that came to another door stays."""
    doors.visit(doors.ranks)
    visitors = [doors.visit(doors.page) for _ in range(DOOR_CONNECTIONS + 2)]
    assert doors.closed == [2, 3]
    assert [visitor.recv(1) for visitor in visitors[:2]] == [b"", b""]


def test_ranks_close_no_connections_of_each_other(doors: Doors) -> None:
    """A door that only this user reaches takes many more than one that everybody reaches."""
    for _ in range(DOOR_CONNECTIONS + 2):
        doors.visit(doors.ranks)
    assert doors.closed == []


class Exhausted(socket.socket):
    """A listener whose first connection finds no free descriptor."""

    def __init__(self, family: int) -> None:
        super().__init__(family)
        self.refusals = [errno.EMFILE, errno.ECONNABORTED]

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            raise OSError(self.refusals.pop(), "no connection")
        return super().accept()


def test_a_connection_that_cannot_be_taken_at_once_ends_no_line(tmp_path: Path) -> None:
    """It waits until a descriptor is free; the line serves others meanwhile and afterwards."""
    ours, theirs = socket.socketpair()
    with theirs, Exhausted(socket.AF_UNIX) as door, tempfile.TemporaryDirectory() as folder:
        door.bind(f"{folder}/door")
        door.listen()
        line = Line(ours, Path(folder) / "h1.vm", [], {"page": door})
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.connect(f"{folder}/door")
            theirs.settimeout(SECONDS)
            splitter, kinds = Splitter(), [Kind.CLOSE][:0]
            while Kind.CONNECT not in kinds:
                kinds += [kind for _, kind, _ in splitter.feed(theirs.recv(4096))]
            assert not door.refusals
            line.close()
