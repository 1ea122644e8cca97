# SPDX-License-Identifier: Apache-2.0
"""What a standby knows of the first controller, by an injected clock and injected answers; and how addresses greet."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from netfold.controller import heartbeat
from netfold.controller.heartbeat import HELD, SILENCE, Greeting, Health, Heartbeat, greeting, proof
from support.controller import run


class Watched:
    """A heartbeat whose controller greets and answers as a test says, one turn of both loops at a time."""

    def __init__(self) -> None:
        self.now, self.greets, self.answers = 100.0, "greeted", True
        self._turns: list[asyncio.Future[None]] = []
        self.heart = Heartbeat("unix:/none", b"k" * 32, "", lambda: None, greet=self._greet, ask=self._ask,
                               clock=lambda: self.now, sleep=self._sleep)

    async def _greet(self) -> Greeting:
        return self.greets  # type: ignore[return-value]  # one of the words

    async def _ask(self) -> bool:
        return self.answers

    async def _sleep(self, _: float) -> None:
        self._turns.append(asyncio.get_running_loop().create_future())
        await self._turns[-1]

    async def after(self, seconds: float) -> Health:
        """What is known when both loops have turned after so many seconds."""
        self.now += seconds
        turns, self._turns = self._turns, []
        for turn in turns:
            turn.set_result(None)
        while len(self._turns) < 2:
            await asyncio.sleep(0)
        return self.heart.health


async def seen(*steps: tuple[Greeting, bool, float, Health]) -> None:
    """Follow a controller that greets and answers, or not, for so many seconds; each step ends with what is known."""
    watched = Watched()
    task = asyncio.create_task(watched.heart.run())
    while len(watched._turns) < 2:
        await asyncio.sleep(0)
    for watched.greets, watched.answers, seconds, health in steps:
        assert await watched.after(seconds) == health, (watched.greets, watched.answers, seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_process_that_stands_still_hangs_after_some_seconds() -> None:
    """It greets nobody, though its address takes connections; when it greets again, it is alive."""
    run(seen(("greeted", True, 1, "alive"), ("silent", False, SILENCE - 1, "alive"), ("silent", False, 2, "hung"),
             ("greeted", True, 1, "alive")))


def test_a_controller_that_plans_for_a_minute_is_alive() -> None:
    """It greets and does not answer; after two minutes its loop counts as hung."""
    run(seen(("greeted", True, 1, "alive"), ("greeted", False, 60, "alive"), ("greeted", False, HELD - 61, "alive"),
             ("greeted", False, 62, "hung")))


def test_an_address_that_refuses_has_nobody_and_one_that_is_cut_off_says_nothing() -> None:
    """So a standby that loses its network does not take over for that."""
    run(seen(("greeted", True, 1, "alive"), ("unreachable", False, 300, "unknown"), ("refused", False, 1, "gone")))


def test_who_has_never_proven_itself_is_unknown() -> None:
    """A stranger that greets at the address, and one that nobody can reach from the start, do not hang."""
    watched = Watched()
    assert watched.heart.health == "unknown"

    async def story() -> None:
        stranger = Watched()
        stranger.answers = False
        task = asyncio.create_task(stranger.heart.run())
        for _ in range(10):
            await asyncio.sleep(0)
        assert await stranger.after(500) == "unknown"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(story())


def test_only_the_fabric_key_answers_and_each_nonce_has_its_own() -> None:
    """A recorded answer is of no use."""
    answers = {proof(b"k" * 32, "a"), proof(b"k" * 32, "b"), proof(b"x" * 32, "a")}
    assert len(answers) == 3


def test_addresses_greet_refuse_or_are_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gRPC server greets, a process that stands still leaves connections to the kernel, and nobody is refused."""
    monkeypatch.setattr(heartbeat, "GREETING", 0.3)

    async def story() -> None:
        server = grpc.aio.server()
        server.add_insecure_port(f"unix:{tmp_path}/s.sock")
        await server.start()
        with socket.socket(socket.AF_UNIX) as still:
            still.bind(f"{tmp_path}/still.sock")
            still.listen()
            assert await greeting(f"unix:{tmp_path}/still.sock") == "silent"
        assert await greeting(f"unix:{tmp_path}/still.sock") == "refused"
        assert await greeting(f"unix:{tmp_path}/s.sock") == "greeted"
        await server.stop(None)

    run(story())
