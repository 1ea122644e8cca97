# SPDX-License-Identifier: Apache-2.0
"""Sums in narrow lanes that the device makes are those that the processor makes, whenever the device works."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.api.communicator import Communicator
from netfold.host.errors import Closed
from netfold.testing import loopback_job, on_every_rank
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.staging import copies  # noqa: E402
from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.staging.device import Cpu  # noqa: E402
from netfold.host.staging.lanes import NarrowLanes  # noqa: E402
from netfold.host.staging.narrow_parts import NarrowParts  # noqa: E402
from netfold.host.torch.reducer import Reducer  # noqa: E402
from support.devices.late_device import LateDevice  # noqa: E402

RANKS = 2


@pytest.fixture(scope="module")
def comms() -> Iterator[list[Communicator]]:
    """Two ranks of this process, which fold in a switch in Python."""
    with loopback_job(RANKS) as made:
        yield made


def bits_of(tensor: torch.Tensor) -> list[int]:
    """The bits of its values as float32."""
    found: list[int] = tensor.to(torch.float32).view(torch.int32).tolist()
    return found


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=3), st.sampled_from([8, 16]),
    st.sampled_from(["sum", "average"]), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans(),
    st.sampled_from([1024, 2048, 1 << 20]), st.sampled_from([None, 3]), st.randoms(use_true_random=False),
)
def test_sums_are_those_that_the_processor_makes(
    comms: list[Communicator], counts: list[int], bits: int, op: str, dtype: torch.dtype, wide: bool, part: int,
    seed: int | None, order: random.Random,
) -> None:
    """To the last bit, with residuals of error feedback, over two steps, several calls under way at once."""

    waits = [order.sample(range(len(counts)), len(counts)) for _ in range(2)]

    def values(rank: int, step: int, place: int, count: int) -> torch.Tensor:
        drawn = np.random.default_rng([rank, step, place]).standard_normal(count) * (1e30 if wide else 1)
        return torch.from_numpy(drawn).to(dtype)

    def rank(comm: Communicator) -> None:
        device = LateDevice(None if seed is None else seed + comm.rank)
        there, here = Reducer(comm, Staging(device.of)), Reducer(comm)
        stream = device.stream()
        left = [[torch.zeros(count) for count in counts] for _ in (there, here)]
        for step in range(2):
            inputs = [values(comm.rank, step, place, count) for place, count in enumerate(counts)]
            results, works = [torch.full_like(one, 7) for one in inputs], []
            with device.on(stream):
                for result, given, residual in zip(results, inputs, left[0], strict=True):
                    device.enqueue(stream, lambda result=result, given=given: result.copy_(given))
                    works.append(there.allreduce(result, op, lane_bits=bits, feedback=residual))  # type: ignore[arg-type]
            for place in waits[step]:
                works[place].wait()
            for given, residual in zip(inputs, left[1], strict=True):
                here.allreduce(given, op, lane_bits=bits, feedback=residual).wait()  # type: ignore[arg-type]
            for result, given, mine, other in zip(results, inputs, *left, strict=True):
                assert bits_of(result) == bits_of(given)
                assert mine.tolist() == other.tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "PART", part)
        assert on_every_rank(comms, rank) == [None] * RANKS


def test_stochastic_rounding_repeats_and_is_within_its_bound(comms: list[Communicator]) -> None:
    """Without feedback lanes are rounded stochastically: within two levels of the sum for two ranks, and alike on both
    of them; the switches have carried int32 alone."""

    def rank(comm: Communicator) -> list[float]:
        reducer = Reducer(comm, Staging(LateDevice(comm.rank).of))
        tensor = torch.linspace(-1, 1, 1000) + comm.rank
        reducer.allreduce(tensor, "sum", "gradients", lane_bits=8).wait()
        scales, sums = comm.flight()[-2:]
        assert (scales.name, scales.op, scales.dtype) == ("gradients, scales", "max", "int32")
        assert (sums.name, sums.op, sums.nbytes) == ("gradients", "sum", 1024)
        right = 2 * torch.linspace(-1, 1, 1000) + 1
        assert (tensor - right).abs().max() <= 2 * 2 / 63 + 1e-6
        assert (tensor - right).abs().max() > 0.25 / 63
        return tensor.tolist()

    one, other = on_every_rank(comms, rank)
    assert isinstance(one, list), one
    assert one == other


def test_a_failed_reduction_keeps_no_buffer() -> None:
    """Whatever a reduction raises is raised, and all buffers come back."""
    for failing in range(4):
        device = LateDevice()
        lane = Staging(device.of).lane("test", [torch.zeros(1)])
        assert lane is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copies, "PART", 1024)
            parts, calls = NarrowParts(lane, torch.ones(1000), None), []

            def reduce(words: torch.Tensor, how: str, failing: int = failing) -> None:
                calls.append(how)  # noqa: B023
                if len(calls) > failing:  # noqa: B023
                    raise Closed("enough")

            with pytest.raises(Closed, match="enough"):
                parts.run(lambda: NarrowLanes(8, 2), 1.0, reduce)  # type: ignore[arg-type]
        assert calls == ["max", "sum", "sum", "sum"][: failing + 1]
        for stream in device.streams:
            device.run(stream)
        assert device.pool.take(1) is not None
        assert device.pool.taken == 1 << 16


def test_a_call_that_cannot_begin_keeps_no_buffer() -> None:
    """A residual of another size is an error of the call, which leaves nothing behind."""
    device = Cpu()
    lane = Staging(lambda _: device).lane("test", [torch.zeros(1)])
    assert lane is not None
    with pytest.raises(RuntimeError, match="must match"):
        NarrowParts(lane, torch.ones(1000), torch.zeros(7))
    assert not device.pool.full
    assert (device.pool.taken, device.by_host.others(None)) == (0, 0)


def test_parts_round_as_the_whole_does() -> None:
    """The numbers that stochastic rounding draws go by the value's place in the tensor, not in its part."""
    found = []
    for part in (1024, 1 << 20):
        device, tensor = LateDevice(), torch.linspace(-1, 1, 5000)
        lane = Staging(device.of).lane("test", [tensor])
        assert lane is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copies, "PART", part)
            parts = NarrowParts(lane, tensor, None)
            parts.run(lambda: NarrowLanes(8, 1, 77), 1.0, lambda words, how: None)
        parts.finish()
        found.append(tensor.tolist())
    assert found[0] == found[1]
    assert found[0] != torch.linspace(-1, 1, 5000).tolist()
