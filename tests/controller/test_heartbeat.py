# SPDX-License-Identifier: Apache-2.0
"""A standby's knowledge of the first controller, by an injected clock and injected answers; and how addresses greet."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from netfold.controller import heartbeat
from netfold.controller.heartbeat import HELD, SILENCE, Greeting, Health, Heartbeat, greeting, proof
from netfold.controller.jobs.standstill import RECENT
from netfold.controller.switch import reach
from netfold.rpc import channel, rpc
from netfold.rpc.certificates import Certificates
from netfold.wire.operator import Beat
from support.control.controller import BOUND, run
from switch_support.certificates import Authority


class Watched:
    """A heartbeat whose controller greets and answers as a test says, one turn of both loops at a time."""

    def __init__(self, *, claimed: bool = False) -> None:
        self.now, self.greets, self.answers = 100.0, "greeted", True
        self._turns: list[asyncio.Future[None]] = []
        self.heart = Heartbeat("unix:/none", b"k" * 32, "", lambda: None, claimed=lambda: claimed, greet=self._greet,
                               ask=self._ask, clock=lambda: self.now, sleep=self._sleep)

    async def _greet(self) -> Greeting:
        return self.greets  # type: ignore[return-value]  # one of the words

    async def _ask(self) -> bool:
        return self.answers

    async def _sleep(self, _: float) -> None:
        self._turns.append(asyncio.get_running_loop().create_future())
        await self._turns[-1]

    async def after(self, seconds: float) -> Health:
        """The state known when all loops have turned, at least once a second, for so many seconds."""
        end = self.now + seconds
        while self.now < end:
            await self.turn(min(1.0, end - self.now))
        return self.heart.health

    async def turn(self, seconds: float) -> None:
        """Let all loops turn once after so many seconds."""
        self.now += seconds
        turns, self._turns = self._turns, []
        for turn in turns:
            turn.set_result(None)
        await self.wait()

    async def wait(self) -> None:
        """Wait until all loops sleep: greetings, questions, and ticks."""
        while len(self._turns) < 3:
            await asyncio.sleep(0)


async def seen(*steps: tuple[Greeting, bool, float, Health], claimed: bool = False) -> None:
    """Follow a controller that greets and answers, or not, for so many seconds; each step ends with what is known."""
    watched = Watched(claimed=claimed)
    watched.greets, watched.answers = steps[0][:2]
    task = asyncio.create_task(watched.heart.run())
    await watched.wait()
    for watched.greets, watched.answers, seconds, health in steps:
        assert await watched.after(seconds) == health, (watched.greets, watched.answers, seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_process_that_stands_still_hangs_after_some_seconds() -> None:
    """It greets nobody, though its address takes connections; when it greets again, it is alive."""
    run(seen(("greeted", True, 1, "alive"), ("silent", False, SILENCE - 1, "alive"), ("silent", False, 2, "hung"),
             ("greeted", True, 1, "alive")))


def test_a_controller_that_hung_before_the_standby_began_is_known_by_its_election_ids() -> None:
    """It never proves itself.  Without ids of this fabric on the switches, a silent address says nothing."""
    run(seen(("silent", False, SILENCE - 1, "unknown"), ("silent", False, 2, "hung"), claimed=True))
    run(seen(("greeted", False, 60, "unknown"), claimed=True))
    run(seen(("silent", False, 60, "unknown")))


def test_a_controller_that_plans_for_a_minute_is_alive() -> None:
    """It greets and does not answer; after two minutes its loop counts as hung."""
    run(seen(("greeted", True, 1, "alive"), ("greeted", False, 60, "alive"), ("greeted", False, HELD - 61, "alive"),
             ("greeted", False, 62, "hung")))


def test_a_controller_that_answers_does_not_hang_though_greetings_are_late() -> None:
    """A flood of connections may delay them, each answer comes over one of its own."""
    run(seen(("greeted", True, 1, "alive"), ("silent", True, 60, "alive"), ("silent", False, SILENCE + 1, "hung")))


async def test_a_standstill_of_the_standby_itself_is_no_sign_of_a_hang() -> None:
    """Answers that come before the first greeting afterwards, and greetings that are late, are waited for."""
    watched = Watched()
    task = asyncio.create_task(watched.heart.run())
    await watched.wait()
    watched.greets, watched.answers = "silent", False
    watched.now += 60
    assert watched.heart.health == "alive"  # before any loop has turned
    await watched.turn(0)
    assert await watched.after(1) == "alive"
    assert await watched.after(RECENT) == "hung"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_controller_that_cannot_prove_itself_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that refuses the question, or has another key; not one that does not answer."""
    failures: list[Exception] = [rpc.Unreachable("none"), rpc.CallRefused("no token"), rpc.CallRefused("no token")]
    failures[0].__cause__ = grpc.RpcError()
    limits: list[float] = []

    async def call(*args: object, token: str) -> Beat:
        limits.append(args[4])  # type: ignore[arg-type]  # seconds
        if failures:
            raise failures.pop(0)
        return Beat("proof")

    monkeypatch.setattr(rpc, "call", call)
    heart = Heartbeat("unix:/none", b"k" * 32, "", lambda: None)
    assert [run(heart.ask()) for _ in range(4)] == [False] * 4
    assert [record.args for record in caplog.records] == [("no token",)]
    heart.begin()
    assert not run(heart.ask())
    assert "another fabric key" in caplog.text
    assert max(limits) <= HELD / 4, "one lost question is no hang"


def test_a_process_that_answers_without_a_greeting_does_not_hang(caplog: pytest.LogCaptureFixture) -> None:
    """It says something, if only that it does not understand, and the log has that once; silence after it counts from
    then on."""
    run(seen(("greeted", True, 1, "alive"), ("answered", False, 2 * HELD, "unknown"),
             ("silent", False, SILENCE - 1, "alive"), ("silent", False, 2, "hung"), claimed=True))
    run(seen(("answered", False, 60, "unknown"), claimed=True))
    assert [record.args for record in caplog.records] == [("unix:/none answers, but does not greet this process.",)] * 2


@contextlib.asynccontextmanager
async def tls_server(certificates: Certificates) -> AsyncIterator[str]:
    """The address of a gRPC server, as a controller's is."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    port = server.add_secure_port("127.0.0.1:0", certificates.server())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("lacks", ["no NETFOLD_CA", "another CA", "no file", "no NETFOLD_CERT"])
async def test_a_controller_whose_tls_this_process_does_not_speak_is_not_hung(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers each connection, by an alert or an end: that this process is no client of it is not its fault."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = map(str, authority.issue("controller"))
    for name in (channel.CA_VARIABLE, channel.CERTIFICATE_VARIABLE, channel.KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    ours = {"another CA": other.certificate, "no file": tmp_path / "none", "no NETFOLD_CERT": authority.certificate}
    if lacks in ours:
        monkeypatch.setenv(channel.CA_VARIABLE, str(ours[lacks]))
    monkeypatch.setattr(heartbeat, "GREETING", 0.1)  # which never comes; the answer may take long
    monkeypatch.setattr(reach, "PATIENCE", BOUND)
    answers = reach.answers
    monkeypatch.setattr(reach, "answers", lambda address, said, _: answers(address, said, BOUND))
    client_ca = str(authority.certificate) if lacks == "no NETFOLD_CERT" else None
    async with tls_server(Certificates("fabric.certificate", client_ca, certificate, key)) as address:
        assert await greeting(address) == "answered"


def test_an_address_that_refuses_has_nobody_and_one_that_is_cut_off_says_nothing() -> None:
    """So a standby that loses its network does not take over for that."""
    run(seen(("greeted", True, 1, "alive"), ("unreachable", False, 300, "unknown"), ("refused", False, 1, "gone")))


async def test_a_controller_that_starts_at_a_dead_ones_address_is_not_gone() -> None:
    """It may prove itself before the next greeting: the refusal before it says nothing of this controller."""
    healths: list[Health] = []
    greets: list[Greeting] = ["refused"]
    answers = [True, False]

    async def greet() -> Greeting:
        return greets.pop() if greets else await asyncio.Future()

    async def ask() -> bool:
        return answers.pop() if answers else await asyncio.Future()

    heart = Heartbeat("unix:/none", b"k" * 32, "", lambda: healths.append(heart.health), greet=greet, ask=ask,
                      clock=lambda: 100.0, sleep=lambda _: asyncio.sleep(0))
    task = asyncio.create_task(heart.run())
    while len(healths) < 2:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert healths == ["unknown", "alive"]


async def test_who_has_never_proven_itself_is_unknown() -> None:
    """A stranger that greets at the address, and one that nobody can reach from the start, do not hang."""
    watched = Watched()
    assert watched.heart.health == "unknown"
    stranger = Watched()
    stranger.answers = False
    task = asyncio.create_task(stranger.heart.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert await stranger.after(500) == "unknown"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_only_the_fabric_key_answers_and_each_nonce_has_its_own() -> None:
    """A recorded answer is of no use."""
    answers = {proof(b"k" * 32, "a"), proof(b"k" * 32, "b"), proof(b"x" * 32, "a")}
    assert len(answers) == 3


async def test_addresses_greet_refuse_or_are_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gRPC server greets, a process that stands still leaves connections to the kernel, and nobody is refused."""
    with socket.socket(socket.AF_UNIX) as still, monkeypatch.context() as short:
        short.setattr(heartbeat, "GREETING", 0.3)
        still.bind(f"{tmp_path}/still.sock")
        still.listen()
        assert await greeting(f"unix:{tmp_path}/still.sock") == "silent"
    assert await greeting(f"unix:{tmp_path}/still.sock") == "refused"
    monkeypatch.setattr(heartbeat, "GREETING", 30.0)
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{tmp_path}/s.sock")
    await server.start()
    try:
        assert await greeting(f"unix:{tmp_path}/s.sock") == "greeted"
    finally:
        await server.stop(None)


async def test_an_address_whose_queue_of_connections_is_full_is_silent(tmp_path: Path) -> None:
    """A process that stands still takes none of them."""
    with socket.socket(socket.AF_UNIX) as still, socket.socket(socket.AF_UNIX) as first:
        still.bind(f"{tmp_path}/still.sock")
        still.listen(0)
        first.connect(f"{tmp_path}/still.sock")
        assert await reach.takes(f"unix:{tmp_path}/still.sock") == "silent"
        assert await reach.answers(f"unix:{tmp_path}/still.sock", b"hello", 0.1) == "silent"
