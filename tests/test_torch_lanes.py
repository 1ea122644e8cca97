# SPDX-License-Identifier: Apache-2.0
"""Gradients in narrow lanes by torch's hook and optimizer: what is left out of one step comes with the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from helpers_host import everyone, loopback_job

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'netfold[torch]'")

from torch import nn  # noqa: E402

from netfold.host.communicator import Communicator  # noqa: E402
from netfold.host.torch.hook import Feedback  # noqa: E402
from netfold.torch import NetfoldState, PriorityOptimizer, netfold_hook  # noqa: E402

RANKS = 2
STEPS = 20
LARGE, SMALL = 1.0, 1e-3
"""Gradients of two parameters in one block; 8 bits hold the small one only together with what they left out before."""


@dataclass
class Bucket:
    """What DistributedDataParallel hands to a hook."""

    number: int
    members: list[torch.Tensor]
    flat: torch.Tensor

    def index(self) -> int:
        return self.number

    def parameters(self) -> list[torch.Tensor]:
        return self.members

    def buffer(self) -> torch.Tensor:
        return self.flat


def reduced(state: NetfoldState, members: list[torch.Tensor], gradients: dict[int, float], number: int = 0) -> Any:
    """One step of a bucket whose parameters have these gradients throughout, by identity: their averages."""
    flat = torch.cat([torch.full((p.numel(),), gradients[id(p)]) for p in members])
    netfold_hook(state, Bucket(number, members, flat)).wait()  # type: ignore[arg-type]
    return {id(p): piece.clone() for p, piece in zip(members, flat.split([p.numel() for p in members]), strict=True)}


@pytest.mark.parametrize("error_feedback", [True, False])
def test_small_gradients_beside_large_ones_arrive_over_time(error_feedback: bool) -> None:
    """The hook keeps what 8 bits leave out for each parameter, also where buckets are laid out anew after a step."""

    def train(comm: Communicator) -> tuple[float, float]:
        large, small = torch.zeros(5), torch.zeros(7)
        gradients = {id(large): LARGE, id(small): SMALL}
        state = NetfoldState(comm, lane_bits=8, error_feedback=error_feedback)
        total = torch.zeros(7)
        for step in range(STEPS):
            members = [large, small] if step < STEPS // 2 else [small, large]
            total += reduced(state, members, gradients)[id(small)]
        state.close()
        return float(total.min()), float(total.max())

    with loopback_job(RANKS) as comms:
        results = everyone(comms, train)
    level = LARGE / 63
    for low, high in results:
        if error_feedback:
            assert abs(low - STEPS * SMALL) <= level / 2 + 1e-6
            assert abs(high - STEPS * SMALL) <= level / 2 + 1e-6
        else:  # rounded stochastically: right on average alone
            assert high - low > level / 2, "nothing was rounded"
    assert results[0] == results[1]


def test_reset_forgets_what_is_owed() -> None:
    """After a reset the first step is that of a new state."""

    def train(comm: Communicator) -> list[list[float]]:
        large, small = torch.zeros(1), torch.zeros(1)
        state = NetfoldState(comm, lane_bits=8)
        gradients = {id(large): LARGE, id(small): 0.4 * LARGE / 63}
        said = []
        for _ in range(2):
            said.append([float(reduced(state, [large, small], gradients)[id(small)]) for _ in range(2)])
            state.reset()
        state.close()
        return said

    with loopback_job(RANKS) as comms:
        first, second = everyone(comms, train)
    assert first == second
    assert first[0] == first[1], "the second round met what the first had left"
    assert first[0][0] == 0
    assert first[0][1] > 0


def test_what_is_owed_follows_its_parameter() -> None:
    """From bucket to bucket; a bucket that stays as it was keeps its array, new parameters start from zero."""
    a, b, c = torch.zeros(2), torch.zeros(3), torch.zeros(1)
    feedback = Feedback()
    first = feedback.of(0, [a, b])
    first[:] = [1, 1, 2, 2, 2]
    assert feedback.of(0, [a, b]) is first
    assert feedback.of(0, [b, a]).tolist() == [2, 2, 2, 1, 1]
    assert feedback.of(1, [c, b]).tolist() == [0, 2, 2, 2]
    assert feedback.of(0, [a]).tolist() == [1, 1]
    feedback.of(0, [a])[:] = 9
    assert feedback.of(2, [a, b, c]).tolist() == [9, 9, 2, 2, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_lanes_cannot_narrow_goes_as_it_is(dtype: torch.dtype) -> None:
    """float64 gradients stay whole under a state of 8 bits; bfloat16 ones are narrowed."""

    def train(comm: Communicator) -> Any:
        state = NetfoldState(comm, average=False, lane_bits=8)
        values = torch.linspace(-1, 1, 300).to(dtype)
        netfold_hook(state, Bucket(0, [torch.zeros(300)], values)).wait()  # type: ignore[arg-type]
        state.close()
        return values

    with loopback_job(RANKS) as comms:
        first, second = everyone(comms, train)
    assert torch.equal(first, second)
    error = (first.double() - 2 * torch.linspace(-1, 1, 300).to(dtype).double()).abs().max()
    assert (error == 0) == (dtype == torch.float64)
    assert error <= RANKS / 63 / 2 + 2**-7


def test_the_optimizer_learns_in_8_bits() -> None:
    """PriorityOptimizer's lane_bits: weights like those of whole lanes, the same on all ranks."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

    def train(comm: Communicator, model: nn.Module, bits: Any) -> tuple[float, bytes]:
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.2), model, comm, lane_bits=bits)
        for step in range(STEPS):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(RANKS * step + comm.rank))
            loss = ((model(x) - x) ** 2).mean()
            loss.backward()
            optimizer.step()
        optimizer.close()
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        return float(loss.detach()), weights

    found = {}
    for bits in (32, 8):
        models = [network() for _ in range(RANKS)]
        with loopback_job(RANKS) as comms:
            results = everyone(comms, lambda comm: train(comm, models[comm.rank], bits))  # noqa: B023
        assert results[0][1] == results[1][1]
        found[bits] = results[0]
    assert found[8][1] != found[32][1]
    assert found[8][0] == pytest.approx(found[32][0], rel=0.02)


def test_more_ranks_than_a_lane_holds_are_refused_at_once() -> None:
    """By the state, before any step; where nothing folds all is whole."""
    with loopback_job(RANKS) as comms:
        with pytest.raises(ValueError, match="lane_bits=12: expected 32, 16 or 8"):
            NetfoldState(comms[0], lane_bits=12)  # type: ignore[arg-type]
        assert comms[0].lanes(8) == 8
        assert comms[0].lanes() == 32
    with loopback_job(RANKS, rail="tcp") as comms:
        assert comms[0].lanes(8) == 32
