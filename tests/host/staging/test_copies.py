# SPDX-License-Identifier: Apache-2.0
"""Copies between a device and the host: whatever happens as late as it may, or any time before, sums are right."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.api.communicator import Communicator
from netfold.host.errors import Closed, NetFoldError
from netfold.testing import loopback_job, on_every_rank
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.staging import copies  # noqa: E402
from netfold.host.staging import pool as pools  # noqa: E402
from netfold.host.staging.copies import Copies, Staging, TensorParts  # noqa: E402
from netfold.host.staging.device import Accelerator, Cpu  # noqa: E402
from netfold.host.staging.pool import LEAST, Pool  # noqa: E402
from netfold.host.torch.reducer import Reducer  # noqa: E402
from support.devices.late_device import LateDevice, LateEvent  # noqa: E402

RANKS = 2
STREAMS = 2


@pytest.fixture(scope="module")
def comms() -> Iterator[list[Communicator]]:
    """Two ranks of this process, which fold nothing."""
    with loopback_job(RANKS, rail="tcp") as made:
        yield made


@dataclass(frozen=True)
class Call:
    """An allreduce of so many elements: called on one stream of the program's, and waited for on another."""

    count: int
    dtype: torch.dtype
    called: int
    waited: int


CALLS = st.lists(
    st.builds(
        Call, st.integers(0, 700), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
        st.integers(0, STREAMS - 1), st.integers(0, STREAMS - 1),
    ),
    min_size=1, max_size=6,
)


@settings(max_examples=60)
@given(
    CALLS, st.randoms(use_true_random=False), st.sampled_from([64, 512, 1 << 20]),
    st.sampled_from([0, 2 * LEAST, 1 << 28]), st.sampled_from([None, 1, 2]), st.booleans(), st.booleans(),
)
@pytest.mark.slow
def test_sums_are_right_whenever_the_device_works(
    comms: list[Communicator], calls: list[Call], order: random.Random, part: int, ahead: int, seed: int | None,
    by_device: bool, queued: bool,
) -> None:
    """Several calls under way, in parts, on several streams that a driver may have put into one queue, waited for in
    any order, by the host or by the streams alone, with room for few buffers or many: each tensor holds the sum for
    what its waiter's stream does next, and nothing before the call is overtaken."""
    waits = order.sample(range(len(calls)), len(calls))

    def rank(comm: Communicator) -> None:
        device = LateDevice(None if seed is None else seed + comm.rank, queued=queued)
        reducer = Reducer(comm, Staging(device.of), ahead=by_device)
        streams = [device.stream() for _ in range(STREAMS)]
        tensors = [torch.full((call.count,), -1).to(call.dtype) for call in calls]
        works, seen = [], {}
        for place, (call, tensor) in enumerate(zip(calls, tensors, strict=True)):
            with device.on(streams[call.called]):
                values = (torch.arange(call.count) % 50 + place + comm.rank).to(call.dtype)
                device.enqueue(device.current(), lambda tensor=tensor, values=values: tensor.copy_(values))
                works.append(reducer.allreduce(tensor, "sum"))
        for place in waits:
            with device.on(streams[calls[place].waited]):
                works[place].wait()
                device.enqueue(
                    device.current(), lambda place=place: seen.update({place: tensors[place].to(torch.float64)})
                )
        for stream in streams:
            device.run(stream)
        for place, call in enumerate(calls):
            expected = 2 * (torch.arange(call.count) % 50 + place) + 1
            assert seen[place].tolist() == expected.tolist()
        for tensor in tensors:
            held = {stream for address, stream in device.held if address == tensor.untyped_storage().data_ptr()}
            assert len(held) > 1 or not len(tensor), "its memory may be given to others while it is copied out or back"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "PART", part)
        patch.setattr(pools, "AHEAD", ahead)
        assert on_every_rank(comms, rank) == [None] * RANKS


def test_the_device_works_while_other_parts_are_reduced() -> None:
    """Before the first part is reduced the next ones are on their way, and no more of them than have room."""
    device = LateDevice()
    lane = Staging(device.of).lane("test", [torch.zeros(1)])
    assert lane is not None
    tensor = torch.arange(100, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "AHEAD", 2 * LEAST)
        patch.setattr(copies, "PART", 40)
        parts = TensorParts(lane, tensor)
        assert [bundle.begun for bundle in parts.bundles] == [True] * 2 + [False] * 8
        begun = []

        def reduce(part: torch.Tensor, place: slice) -> None:
            assert part.tolist() == list(range(place.start, place.stop))
            begun.append(sum(bundle.begun for bundle in parts.bundles))
            part.mul_(2)

        parts.run(reduce)
        parts.finish()
    assert begun == [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert tensor.tolist() == list(range(0, 200, 2))


def test_a_failed_part_ends_the_call_and_keeps_no_buffer() -> None:
    """A part's error is raised, later parts are not reduced, and all buffers come back."""
    device = LateDevice()
    lane = Staging(device.of).lane("test", [torch.zeros(1)])
    assert lane is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "PART", 40)
        parts, places = TensorParts(lane, torch.zeros(100)), []

    def reduce(part: torch.Tensor, place: slice) -> None:
        places.append(place.start)
        if place.start:
            raise Closed("the second one")

    with pytest.raises(Closed, match="the second one"):
        parts.run(reduce)
    assert places == [0, 10]
    for stream in device.streams:
        device.run(stream)
    first = device.pool.take(1)
    assert first is not None
    assert device.pool.taken == LEAST


def test_what_cannot_be_copied_out_is_never_sent(comms: list[Communicator]) -> None:
    """A device that fails ends the call with its error on its rank; the other rank gets no sum."""
    with loopback_job(RANKS, rail="tcp", timeout=2) as lost:

        def rank(comm: Communicator) -> str:
            device = LateDevice()
            reducer = Reducer(comm, Staging(device.of))
            device.failure = RuntimeError("the device is gone") if comm.rank == 0 else None
            with pytest.raises((RuntimeError, NetFoldError)) as caught:
                reducer.allreduce(torch.ones(100), "sum").wait(10)
            comm.close("its device is gone")
            return str(caught.value)

        mine, other = on_every_rank(lost, rank)
    assert mine == "the device is gone"
    assert "rank" in other, other


def test_several_small_tensors_cross_in_one_copy() -> None:
    """Tensors of one dtype share a buffer; those that are filled alone are not copied out; shapes and strides stay."""
    device = LateDevice()
    lane = Staging(device.of).lane("test", [torch.zeros(1)])
    assert lane is not None
    reads = [torch.full((2, 3), float(place)).T for place in range(20)]
    fills = [torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), torch.zeros(2, 2).T]
    call = Copies(lane, [*reads, fills[2]], fills)
    assert [bundle.begun for bundle in call.bundles] == [True, False, False]
    call.arrive()
    mine, (one, two, (three,)) = call.swap(reads), call.swap((fills[0], fills[1], [fills[2]]))
    assert [copy.tolist() for copy in mine] == [tensor.tolist() for tensor in reads]
    assert three.tolist() == [[0, 0], [0, 0]]
    one.fill_(5), two.fill_(6), three.copy_(torch.tensor([[1, 2], [3, 4]]))
    call.fill()
    assert [fill.sum() for fill in fills] == [0, 0, 0], "nobody waits for it yet"
    call.order()
    assert [fill.tolist() for fill in fills] == [[[5, 5]] * 3, [6] * 4, [[1, 2], [3, 4]]]
    assert reads[3].tolist() == [[3, 3]] * 3


COPIED = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128)
"""Dtypes that CUDA's operations for several tensors copy, beside floats."""


@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e8m0fnu, torch.complex64, torch.complex128]
)
def test_dtypes_of_every_size_cross_by_operations_of_few(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Several tensors are put together and copied back in dtypes that every device has; strided ones, negated and
    conjugated views, single elements and none keep their values."""
    foreach, cat = torch._foreach_copy_, torch.cat

    def copied(into: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        assert {tensor.dtype for tensor in [*into, *parts]} <= set(COPIED)
        foreach(list(into), list(parts))

    def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        assert {tensor.dtype for tensor in parts} <= set(COPIED)
        return cat(list(parts))

    monkeypatch.setattr(torch, "_foreach_copy_", copied)
    monkeypatch.setattr(torch, "cat", joined)
    device = LateDevice()
    lane = Staging(device.of).lane("test", [torch.zeros(1)])
    assert lane is not None
    tensors = [torch.arange(1, 7).view(2, 3).to(dtype).T, torch.tensor(9).to(dtype), torch.empty(0, 3).to(dtype)]
    if dtype.is_complex:
        tensors += [(torch.arange(4) * (1 + 1j)).to(dtype).conj(), torch._neg_view(torch.arange(4).to(dtype))]
    wanted = [tensor.to(torch.complex128 if dtype.is_complex else torch.float64).tolist() for tensor in tensors]
    call = Copies(lane, tensors, tensors)
    assert len(call.bundles) == 1
    call.arrive()
    copies_of = call.swap(tensors)
    for tensor in tensors:
        tensor.copy_(torch.zeros(()))
    assert [copy.to(torch.complex128 if dtype.is_complex else torch.float64).tolist() for copy in copies_of] == wanted
    call.fill()
    call.order()
    assert [tensor.to(torch.complex128 if dtype.is_complex else torch.float64).tolist() for tensor in tensors] == wanted


def test_a_capture_is_refused_by_name() -> None:
    """Operations recorded for a graph cannot be sent by the host again."""
    device = LateDevice()
    device.captures = True
    lane = Staging(device.of).lane("test", [torch.zeros(1)])
    assert lane is not None
    for begin in (lambda: TensorParts(lane, torch.zeros(1)), lambda: Copies(lane, [torch.zeros(1)], [])):
        with pytest.raises(ValueError, match=r"while a graph is captured: .* call it outside of the capture"):
            begin()


def test_buffers_are_used_again_once_their_copies_are_done() -> None:
    """A buffer that a copy still reads is not given to anybody; what nobody needs is kept up to a bound."""
    made: list[int] = []
    device = LateDevice()

    def make(nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    def event() -> LateEvent:
        recorded = device.event()
        recorded.record(stream)
        return recorded

    pool, stream = Pool(make), device.stream()
    first = pool.take(LEAST + 1)
    assert first is not None
    assert first.numel() == 2 * LEAST
    pool.give(first, event())
    second = pool.take(2 * LEAST)
    assert second is not first
    device.run(stream)
    assert pool.take(2 * LEAST) is first
    assert made == [2 * LEAST] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "AHEAD", 4 * LEAST)
        assert pool.take(1, if_room=True) is None
        assert pool.taken == 4 * LEAST
        large = pool.take(8 * LEAST)
        assert large is not None
        pool.give(large, event())
        device.run(stream)
        assert pool.take(8 * LEAST) is not large


def test_a_buffer_comes_back_while_another_thread_asks_for_events() -> None:
    """Which it does under a lock, and may take long where a driver waits."""
    device = LateDevice()
    buffer = device.pool.take(1)
    assert buffer is not None
    giving = threading.Thread(target=device.pool.give, args=(buffer, device.event()), daemon=True)
    with device.pool._lock:
        giving.start()
        giving.join(20.0)
        assert not giving.is_alive()


def test_tensors_on_the_cpu_beside_those_of_a_device_are_refused() -> None:
    """A stream cannot hold their memory."""
    one, device = torch.zeros(1), LateDevice(place="meta")
    staging = Staging(lambda tensor: None if tensor is one else device)
    for tensors in ([one, torch.zeros(1)], [torch.zeros(1), one]):
        with pytest.raises(ValueError, match=r"^alltoall of tensors on meta and cpu: expected one device"):
            staging.lane("alltoall", tensors)


def test_memory_of_the_host_is_the_hosts_whatever_device_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.set_default_device`` says where the program's tensors are, not where their copies are."""
    empty = torch.empty

    def unpinned(*size: int, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return empty(*size, **how)

    monkeypatch.setattr(torch, "get_device_module", lambda place: None)
    with torch.device("meta"):
        assert empty(0).is_meta
        monkeypatch.setattr(torch, "empty", unpinned)
        for device in (Cpu(), Accelerator(torch.device("cuda:0"))):
            buffer = device.pool.take(1)
            assert buffer is not None
            assert buffer.device.type == "cpu"


def test_what_is_only_filled_is_filled_after_what_reads_it() -> None:
    """Work that the caller's stream was given before the call finds what was there before."""
    device = LateDevice()
    lane = Staging(device.of).lane("test", [torch.zeros(1)])
    assert lane is not None
    into, stream, seen = torch.zeros(3), device.stream(), []
    with device.on(stream):
        device.enqueue(stream, lambda: seen.append(into.tolist()))
        call = Copies(lane, [], [into])
    call.arrive()
    call.swap(into).fill_(4)
    call.fill()
    call.finish()
    assert (seen, into.tolist()) == ([[0] * 3], [4] * 3)
