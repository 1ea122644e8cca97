# SPDX-License-Identifier: Apache-2.0
"""Rates of callers, and answers that many share."""

from __future__ import annotations

import asyncio

import pytest

from netfold.rpc.limits import RateLimit, Shared


def test_a_caller_has_a_burst_and_then_its_rate() -> None:
    """The answer to a request too many is how long to wait; time without requests fills the burst, and no more."""
    now = 0.0
    limit = RateLimit(10, 3, clock=lambda: now)
    assert [limit.wait() for _ in range(3)] == [0, 0, 0]
    assert limit.wait() == pytest.approx(0.1)
    now = 0.05
    assert limit.wait() == pytest.approx(0.05)
    now = 0.1
    assert limit.wait() == 0
    now = 1000.0
    assert [limit.wait() == 0 for _ in range(4)] == [True, True, True, False]


async def test_who_asks_while_an_answer_is_made_gets_the_next_one() -> None:
    """A hundred requests cost two answers; none is older than its question."""
    gates = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    async def make() -> int:
        number = len(begun)
        begun.append(number)
        await gates[number].wait()
        return number

    shared = Shared(make)
    first = asyncio.create_task(shared())
    while not begun:
        await asyncio.sleep(0)
    later = [asyncio.create_task(shared()) for _ in range(100)]
    for gate in gates:
        gate.set()
    assert await first == 0
    assert set(await asyncio.gather(*later)) == {1}
    assert begun == [0, 1]
    assert await shared() == 2


async def test_an_answer_that_fails_fails_for_those_who_wait_for_it_alone() -> None:
    """The next one is made anew; who gives up waiting takes nothing from the others."""
    outcomes = iter([RuntimeError("broken"), "fine", "still fine"])

    async def make() -> str:
        outcome = next(outcomes)
        await asyncio.sleep(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    shared = Shared(make)
    with pytest.raises(RuntimeError, match="broken"):
        await shared()
    impatient, patient = asyncio.create_task(shared()), asyncio.create_task(shared())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == "fine"
    assert await shared() == "still fine"
