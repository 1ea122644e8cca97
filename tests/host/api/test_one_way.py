# SPDX-License-Identifier: Apache-2.0
"""How far a gradient goes between the user's call and what sends it, and how often it is copied on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.innet.core import Core
from netfold.host.innet.packet_link import Io
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.coding import Coding
from netfold.host.operation.conversion import between_hosts, deliver, in_float32, in_lanes, round_to
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.testing.loopback import loopback_job, on_every_rank

MOST = 7
"""Largest number of Python frames between the user's call and what sends, both not counted."""


def user(comm: Communicator) -> Any:
    """A training step as users write it."""
    return comm.allreduce(np.ones(100, np.float32))


def frames_below(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[list[str]]:
    """Records the functions between ``user`` and each call of a method, the method's own included."""
    stacks: list[list[str]] = []
    real: Callable[..., Any] = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        names, frame = [f"{owner.__name__}.{method}"], sys._getframe(1)
        while frame.f_back is not None and frame.f_code is not user.__code__:
            names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        if frame.f_code is user.__code__:
            stacks.append(names[::-1])
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, method, counted)
    return stacks


def test_few_frames_lie_between_a_call_and_the_native_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the switches fold, they are the call, its kind, the choice, the rail, its loop and the binding."""
    stacks = frames_below(monkeypatch, Io, "run")
    with loopback_job(2, rail="innet") as comms:
        on_every_rank(comms, user)
    assert stacks
    assert all(len(stack) <= MOST for stack in stacks), stacks


def test_few_frames_lie_between_a_call_and_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the hosts, they are the call, its kind, the choice, the ranks' algorithm, and what drives it."""
    monkeypatch.setenv("NETFOLD_ALGO", "ring")
    stacks = frames_below(monkeypatch, TcpMesh, "wait")
    with loopback_job(2, rail="tcp") as comms:
        on_every_rank(comms, user)
    assert stacks
    assert all(len(stack) <= MOST for stack in stacks), stacks


@pytest.mark.parametrize("in_place", [True, False])
def test_the_engine_works_on_the_callers_own_arrays(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    """Plain float32 arrays are folded out of and into the caller's memory, without a copy."""
    given: list[tuple[int, int]] = []
    real = Core.start

    def start(core: Core, number: int, source: Any, out: Any, *args: Any, **kwargs: Any) -> None:
        given.append((source.ctypes.data, out.ctypes.data))
        real(core, number, source, out, *args, **kwargs)

    monkeypatch.setattr(Core, "start", start)
    sources = [np.ones((20, 30), np.float32) for _ in range(2)]
    outs = sources if in_place else [np.empty_like(source) for source in sources]
    with loopback_job(2, rail="innet") as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(sources[comm.rank], out=outs[comm.rank]))
    assert sorted(given) == sorted((a.ctypes.data, b.ctypes.data) for a, b in zip(sources, outs, strict=True))


def request(source: Any, out: Any, **options: Any) -> AllreduceRequest:
    """A request for the sum of float32, or as ``options`` say."""
    options.setdefault("reduction", Reduction("sum", source.dtype.name))
    return AllreduceRequest(source, out, **options)


def same(first: Any, second: Any) -> bool:
    """True if two arrays begin at one address."""
    return bool(first.ctypes.data == second.ctypes.data)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_plain_arrays_are_not_copied(dtype: str) -> None:
    """They are copied neither between the hosts nor in lanes, and the result needs no delivery."""
    asked = request(np.ones((3, 4), dtype), np.zeros((3, 4), dtype))
    for carried in (between_hosts(asked, None), in_lanes(asked, narrows=True)):
        assert same(carried.source, asked.source)
        assert same(carried.out, asked.out)
        carried.out[:] = 7
        assert deliver(carried, asked) == 0
        assert (asked.out == 7).all()


def test_halves_are_widened_once_and_rounded_from_the_same_memory() -> None:
    """float16 is carried as float32, in place."""
    asked = request(np.full((3, 4), 1.5, np.float16), np.zeros((3, 4), np.float16))
    carried = in_float32(asked)
    assert same(carried.source, carried.out)
    assert (carried.reduction.element, carried.reduction.said) == ("float32", "float16")
    carried.out[:] = 3
    round_to(asked, carried.out)
    assert (asked.out == 3).all()


def test_a_result_that_is_not_plain_is_delivered() -> None:
    """A transposed array gets its result by one copy, whatever carried it."""
    for carry in (lambda asked: between_hosts(asked, None), lambda asked: in_lanes(asked, narrows=False)):
        asked = request(np.arange(6, dtype=np.int32).reshape(2, 3).T, np.zeros((2, 3), np.int32).T)
        carried = carry(asked)
        assert carried.source.flags.c_contiguous
        carried.out[:] = carried.source
        assert deliver(carried, asked) == 0
        assert (asked.out == asked.source).all()


def test_arrays_that_overlap_in_part_are_kept_apart_in_lanes() -> None:
    """Results arrive while contributions are still sent, and must not overwrite them."""
    memory = np.zeros(12, np.int32)
    asked = request(memory[:8], memory[4:])
    assert not np.may_share_memory(in_lanes(asked, narrows=True).out, memory)


def test_feedback_is_left_to_narrow_lanes_alone() -> None:
    """A rail that carries floats at full width sends the residual too, so that none is left."""
    for narrows, bits, left in ((True, 16, True), (True, 32, False), (False, 16, False)):
        feedback = np.full(5, 0.5, np.float32)
        asked = request(np.ones(5, np.float32), np.zeros(5, np.float32), feedback=feedback, coding=Coding(bits))
        carried = in_lanes(asked, narrows=narrows)
        assert (carried.feedback is not None) == left
        assert (carried.source == (1 if left else 1.5)).all()
        assert (feedback == (0.5 if left else 0)).all()


def test_saturating_sums_between_hosts_are_exact_and_counted() -> None:
    """They are carried as int64, and clipped to int32's range where the result is delivered."""
    asked = request(np.array([5, -5, 1], np.int32), np.zeros(3, np.int32), coding=Coding(saturate=True))
    carried = between_hosts(asked, "ring")
    assert (carried.reduction.element, carried.algorithm) == ("int64", "ring")
    carried.out[:] = [2**40, -(2**31), 7]
    assert deliver(carried, asked) == 2
    assert asked.out.tolist() == [2**31 - 1, -(2**31), 7]
