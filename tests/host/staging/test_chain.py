# SPDX-License-Identifier: Apache-2.0
"""Copies back that the device begins by itself: each behind its part's result, or NaN."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from netfold.host.errors import Closed
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.staging import chain, copies  # noqa: E402
from netfold.host.staging import pool as pools  # noqa: E402
from netfold.host.staging.bundles import Lane  # noqa: E402
from netfold.host.staging.chain import spoil  # noqa: E402
from netfold.host.staging.copies import Copies, TensorParts  # noqa: E402
from netfold.host.staging.device import Cpu  # noqa: E402
from netfold.host.staging.device_step import InsideParts  # noqa: E402
from netfold.host.staging.pool import LEAST  # noqa: E402
from support.devices.late_device import LateDevice, LateEvent  # noqa: E402

SECONDS = 20.0
"""More than anything here takes."""
PART = 40
"""Bytes of a part."""


def parts_of(device: LateDevice, tensor: torch.Tensor) -> TensorParts:
    """A tensor in parts of ten floats, with a chain that the device was given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "PART", PART)
        parts = TensorParts(Lane(device), tensor)
    assert parts.chain_up() == ""
    assert parts.chain is not None
    parts.chain.give()
    return parts


def emptied(device: LateDevice) -> int:
    """Bytes of pinned memory in use once the device has done everything."""
    for stream in device.streams:
        device.run(stream)
    assert not device.pool.full  # which also looks for what has come back
    return device.pool.taken


@pytest.mark.parametrize("queued", [False, True])
def test_each_part_comes_back_behind_its_result(queued: bool) -> None:
    """A stream that waits for all of a tensor has it as soon as the host has reduced it, in whatever order a driver
    carries out its streams.  The thread that reduces it asks the driver for nothing, and all memory is given back."""
    device = LateDevice(queued=queued)
    tensor, seen = torch.arange(25.0), []
    caller = device.stream()
    with device.on(caller):
        parts = parts_of(device, tensor)
        parts.order()
        device.enqueue(caller, lambda: seen.append(tensor.tolist()))
    waiting = threading.Thread(target=device.run, args=(caller,))
    waiting.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("synchronize", "query", "record"):
            patch.delattr(LateEvent, name)
        parts.run(lambda part, place: part.mul_(2))
    waiting.join()
    assert seen == [[2.0 * value for value in range(25)]]
    assert emptied(device) == 0


@pytest.mark.parametrize("queued", [False, True])
def test_what_a_failed_call_has_not_reduced_becomes_nan(queued: bool) -> None:
    """No stream hangs, and nothing that comes behind the call reads what looks like a sum, be it the former values."""
    device = LateDevice(queued=queued)
    tensor = torch.arange(25.0)

    def reduce(part: torch.Tensor, place: slice) -> None:
        part.mul_(2)
        if place.start:
            raise Closed("the second one")

    parts = parts_of(device, tensor)
    with pytest.raises(Closed, match="the second one"):
        parts.run(reduce)
    parts.drop()
    parts.order()
    assert tensor[:10].tolist() == [2.0 * value for value in range(10)]
    assert tensor[10:].isnan().all()
    assert emptied(device) == 0
    untouched, device = torch.arange(25.0), LateDevice(queued=queued)
    with torch.inference_mode():  # in which it makes its buffers
        parts = parts_of(device, untouched)
    parts.drop()  # it never began to run
    parts.order()
    assert untouched.isnan().all()
    assert emptied(device) == 0


def test_buffers_are_used_again_once_both_sides_are_through() -> None:
    """If the host has done its part before the device was given the last of the copies, their memory is not free."""
    device, tensor = LateDevice(), torch.ones(10)
    parts = TensorParts(Lane(device), tensor)
    assert parts.chain_up() == ""
    assert parts.chain is not None
    last, held = parts.chain.end, device.pool.taken

    def end() -> None:
        parts.run(lambda part, place: part.mul_(3))
        assert emptied(device) == held
        last()

    parts.chain.end = end  # type: ignore[method-assign]
    parts.chain.give()
    parts.order()
    assert tensor.tolist() == [3.0] * 10
    assert emptied(device) == 0


@pytest.mark.parametrize("refused", [False, True])
def test_the_host_waits_for_no_word_that_never_comes(refused: bool) -> None:
    """It goes on as soon as a call is left to the host after all, and hears that the device has taken nothing."""
    device, asked, heard = LateDevice(), threading.Event(), []
    parts = TensorParts(Lane(device), torch.ones(10))
    assert parts.chain_up() == ""
    words: Any = parts.chain
    stops = words.stops

    def asks() -> bool:
        asked.set()
        return bool(stops())

    def arrive() -> None:
        try:
            words.arrive(1)
        except RuntimeError as error:
            heard.append(str(error))

    def tell(stream: Any, word: Any, value: int) -> None:
        raise RuntimeError("the device is gone")

    words.stops = asks
    waiting = threading.Thread(target=arrive, daemon=True)
    waiting.start()
    assert asked.wait(SECONDS)
    if refused:
        device.flags.tell = tell  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="the device is gone"):
            words.give()
        assert words in device.pool.lost, "its memory is never used again"
    else:
        parts.withdraw()
        again = device.pool.take(1)
        assert again is not None
        assert again.data_ptr() != words.buffer.data_ptr(), "the host still reads its words"
        device.pool.give(again, device.event())
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert heard == (["the device is gone"] if refused else [])


def test_filled_tensors_alone_are_spoiled() -> None:
    """An input of a call that fails keeps its values; its outputs are NaN, of each dtype."""
    device = LateDevice()
    source, out = torch.arange(4.0), [torch.zeros(3, dtype=torch.complex64), torch.zeros(5, dtype=torch.bfloat16)]
    call = Copies(Lane(device), [source], out)
    assert call.chain_up() == ""
    assert call.chain is not None
    call.chain.give()
    call.drop()
    call.order()
    assert source.tolist() == [0, 1, 2, 3]
    assert all(tensor.isnan().all() for tensor in out)
    assert emptied(device) == 0
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu", "float64"):
        tensor = torch.zeros(3, dtype=getattr(torch, name))
        spoil(tensor)
        assert tensor.to(torch.float32).isnan().all(), name
    without = torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    spoil(without)
    assert without.view(torch.uint8).tolist() == [0xFF] * 3


def test_each_tensor_is_spoiled_whatever_another_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does it matter what the device raises."""
    device, tensor = LateDevice(), torch.arange(25.0)

    def spoil_some(copy: torch.Tensor) -> None:
        if copy[0] == 10:
            raise TypeError("not this one")
        spoil(copy)

    def told(*how: Any) -> None:
        raise OSError("the device is gone")

    parts = parts_of(device, tensor)
    for bundle in parts.bundles:
        bundle.arrive()
    monkeypatch.setattr(chain, "spoil", spoil_some)
    device.flags.told = told  # type: ignore[method-assign]
    parts.drop()
    parts.order()
    assert tensor[10:20].tolist() == list(range(10, 20))
    assert tensor[:10].isnan().all()
    assert tensor[20:].isnan().all()
    assert "cannot be filled with NaN" in caplog.text


def test_a_lost_device_is_waited_for_once() -> None:
    """Its calls end when the time limit is over, and all later ones at once."""
    device = LateDevice()
    lane, limits = Lane(device), []
    told = device.flags.told

    def noted(word: Any, value: int, stops: Any, seconds: float) -> None:
        limits.append(seconds)
        told(word, value, stops, seconds)

    device.flags.told = noted  # type: ignore[method-assign]
    device.failure = RuntimeError("the device is gone")
    for _ in range(2):
        call = TensorParts(lane, torch.ones(3))
        assert call.chain_up(0.01) == ""
        assert call.chain is not None
        call.chain.give()
        with pytest.raises(TimeoutError, match="has not copied out within"):
            call.run(lambda part, place: None)
        call.drop()
    assert limits == [0.01, 0.0, 0.0, 0.0]


def test_a_device_that_copies_out_too_late_writes_no_word_into_memory_of_another_call() -> None:
    """The host has given it up; the words' memory is free only once the device has told of its copies out."""
    device, tensor = LateDevice(), torch.ones(3)
    call = TensorParts(Lane(device), tensor)
    assert call.chain_up(0.01) == ""
    assert call.chain is not None
    words = call.chain.buffer
    call.chain.give()
    device.failure = RuntimeError("it is late")
    with pytest.raises(TimeoutError):
        call.run(lambda part, place: None)
    call.drop()
    device.failure = None
    device.run(call.lane.back)
    taken = [device.pool.take(1) for _ in range(2)]
    other = next(buffer for buffer in taken if buffer is not None and buffer.data_ptr() == words.data_ptr())
    other.fill_(7)
    for stream in device.streams:
        device.run(stream)
    assert (other == 7).all()


def test_what_the_device_cannot_begin_is_left_to_the_host() -> None:
    """Without room for all copies, beside calls that the host copies, of sparse tensors, and where ranks reduce on
    their devices, be that the CPU; the reason says so."""
    device = LateDevice()
    lane = Lane(device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "AHEAD", 2 * LEAST)
        patch.setattr(copies, "PART", PART)
        many = TensorParts(lane, torch.zeros(100))
        assert many.chain_up() == copies.FULL
        many.run(lambda part, place: None)
        for stream in device.streams:
            device.run(stream)
        full = [Copies(lane, [], [torch.zeros(1)]) for _ in range(2)]
        assert full[1].chain_up() == "the host copies other operations that are under way"
        full[0].fill()
        assert full[1].chain_up() == copies.FULL
        full[1].drop()
    sparse = Copies(lane, [torch.zeros(2).to_sparse()], [])
    assert sparse.chain_up() == "its size is known at the end alone"
    sparse.drop()
    inside = InsideParts(Lane(Cpu()), torch.zeros(3))
    assert inside.chain_up() == "the ranks of the machine reduce it on their devices"
    last = Copies(lane, [], [torch.zeros(1)])
    assert last.chain_up() == ""
    last.withdraw()
    other: Any = Copies(lane, [], [torch.zeros(1)])
    assert other.chain_up() == "the host copies other operations that are under way"
    last.fill()
    assert other.chain_up() == ""
    other.withdraw()
    other.fill()
    assert emptied(device) == 0
