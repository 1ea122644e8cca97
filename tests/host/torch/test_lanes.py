# SPDX-License-Identifier: Apache-2.0
"""Gradients in narrow lanes by torch's hook and optimizer: the residual of one step is added to the next."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from torch import nn  # noqa: E402

from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.torch.feedback import Feedback  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from netfold.torch import NetfoldState, PriorityOptimizer, netfold_hook  # noqa: E402
from support.hosts.insides import residuals_of  # noqa: E402

RANKS = 2
STEPS = 20
LARGE, SMALL = 1.0, 1e-3
"""Gradients of two parameters in one block; 8 bits represent the small one only together with its residuals."""


@dataclass
class Bucket:
    """Stands for the bucket that DistributedDataParallel passes to a hook."""

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
    """One step of a bucket whose parameters have these constant gradients, by identity; returns their averages."""
    flat = torch.cat([torch.full((p.numel(),), gradients[id(p)]) for p in members])
    netfold_hook(state, Bucket(number, members, flat)).wait()  # type: ignore[arg-type]
    return {id(p): piece.clone() for p, piece in zip(members, flat.split([p.numel() for p in members]), strict=True)}


@pytest.mark.parametrize("error_feedback", [True, False])
def test_small_gradients_beside_large_ones_arrive_over_time(error_feedback: bool) -> None:
    """The hook keeps each parameter's residual of 8 bits, also where buckets change after a step."""

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
        results = on_every_rank(comms, train)
    level = LARGE / 63
    for low, high in results:
        if error_feedback:
            assert abs(low - STEPS * SMALL) <= level / 2 + 1e-6
            assert abs(high - STEPS * SMALL) <= level / 2 + 1e-6
        else:  # rounded stochastically: right on average alone
            assert high - low > level / 2, "nothing was rounded"
    assert results[0] == results[1]


def test_reset_forgets_the_residuals() -> None:
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
        first, second = on_every_rank(comms, train)
    assert first == second
    assert first[0] == first[1], "the second round met what the first had left"
    assert first[0][0] == 0
    assert first[0][1] > 0


def test_residuals_follow_their_parameter() -> None:
    """A residual moves with its parameter from bucket to bucket; an unchanged bucket keeps its array, and new
    parameters start from zero."""
    a, b, c = torch.zeros(2), torch.zeros(3), torch.zeros(1)
    feedback = Feedback()
    first = feedback.of_bucket(0, [a, b])
    first[:] = torch.tensor([1, 1, 2, 2, 2])
    assert feedback.of_bucket(0, [a, b]) is first
    assert feedback.of_bucket(0, [b, a]).tolist() == [2, 2, 2, 1, 1]
    assert feedback.of_bucket(1, [c, b]).tolist() == [0, 2, 2, 2]
    assert feedback.of_bucket(0, [a]).tolist() == [1, 1]
    feedback.of_bucket(0, [a])[:] = 9
    assert feedback.of_bucket(2, [a, b, c]).tolist() == [9, 9, 2, 2, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_lanes_cannot_narrow_goes_as_it_is(dtype: torch.dtype) -> None:
    """float64 gradients are not narrowed under a state of 8 bits; bfloat16 ones are."""

    def train(comm: Communicator) -> Any:
        state = NetfoldState(comm, average=False, lane_bits=8)
        values = torch.linspace(-1, 1, 300).to(dtype)
        netfold_hook(state, Bucket(0, [torch.zeros(300)], values)).wait()  # type: ignore[arg-type]
        state.close()
        return values

    with loopback_job(RANKS) as comms:
        first, second = on_every_rank(comms, train)
    assert torch.equal(first, second)
    error = (first.double() - 2 * torch.linspace(-1, 1, 300).to(dtype).double()).abs().max()
    assert (error == 0) == (dtype == torch.float64)
    assert error <= RANKS / 63 / 2 + 2**-7


def test_the_optimizer_learns_in_8_bits() -> None:
    """PriorityOptimizer with lane_bits gives weights like those of 32-bit lanes, the same on all ranks."""

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
            results = on_every_rank(comms, lambda comm: train(comm, models[comm.rank], bits))  # noqa: B023
        assert results[0][1] == results[1][1]
        found[bits] = results[0]
    assert found[8][1] != found[32][1]
    assert found[8][0] == pytest.approx(found[32][0], rel=0.02)


def through_a_file(state: Any) -> Any:
    """A state as a checkpoint is written and read."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_resumed_optimizer_goes_on_bit_for_bit() -> None:
    """Residuals are part of the checkpoint, version 0.1's too: weights after it are those without a break, also where
    buckets change; without them they differ."""

    torch.manual_seed(0)
    untrained = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

    def train(comm: Communicator, stops: bool, forgets: bool, old: bool) -> bytes:
        def begin(bucket_mb: float) -> tuple[nn.Module, PriorityOptimizer]:
            model = copy.deepcopy(untrained)  # ranks are threads, which share torch's random numbers
            inner = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
            return model, PriorityOptimizer(inner, model, comm, lane_bits=8, bucket_mb=bucket_mb)

        model, optimizer = begin(1e-6)  # one parameter a bucket: blocks of lanes begin with it, whoever cuts
        for step in range(STEPS):
            if stops and step == STEPS // 2:
                saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                assert len(saved["optimizer"]["residual"]) == 4
                assert any(residual.any() for residual in saved["optimizer"]["residual"].values())
                optimizer.close()
                model, optimizer = begin(2e-6)
                model.load_state_dict(saved["model"])
                if forgets:
                    saved["optimizer"]["residual"] = {}
                if old:
                    saved["optimizer"]["owed"] = saved["optimizer"].pop("residual")
                optimizer.load_state_dict(saved["optimizer"])
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(RANKS * step + comm.rank))
            ((model(x) - x) ** 2).mean().backward()
            optimizer.step()
        optimizer.close()
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    weights = []
    cases = ((False, False, False), (True, False, False), (True, False, True), (True, True, False))
    for stops, forgets, old in cases:
        with loopback_job(RANKS) as comms:
            first, second = on_every_rank(comms, lambda comm: train(comm, stops, forgets, old))  # noqa: B023
        assert first == second
        weights.append(first)
    assert weights[0] == weights[1] == weights[2]
    assert weights[3] != weights[0]


def test_residuals_can_be_saved_and_loaded() -> None:
    """Residuals are loaded by name into whatever bucket holds the parameter; those of other models are refused."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[1].bias.requires_grad_(False)
    with loopback_job(RANKS) as comms:
        state = NetfoldState(comms[0], lane_bits=8)
        assert state.state_dict(model) == {}
        residuals_of(state).of_bucket(0, [model[1].weight, model[0].weight])[:] = torch.arange(9.0)
        saved = through_a_file(state.state_dict(model))
        assert set(saved) == {"0.weight", "1.weight"}
        assert saved["0.weight"].tolist() == [[3, 4], [5, 6], [7, 8]]
        other = NetfoldState(comms[0], lane_bits=8)
        other.load_state_dict(model, saved)
        loaded = residuals_of(other).of_bucket(0, [model[0].bias, model[0].weight])
        assert loaded.tolist() == [0, 0, 0, 3, 4, 5, 6, 7, 8]
        with pytest.raises(ValueError, match=r"residual of '1.bias': no parameter of this model that wants gradients"):
            other.load_state_dict(model, {"1.bias": torch.zeros(1)})
        with pytest.raises(ValueError, match=r"'0.bias' is torch.float32 of \(2,\): expected float32 of \(3,\)"):
            other.load_state_dict(model, {"0.bias": torch.zeros(2)})
        state.close()
        other.close()


def test_residuals_that_cannot_be_used_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Where lanes are not narrow, a checkpoint's residuals cannot be used, which is logged."""
    model = nn.Linear(2, 1, bias=False)
    with loopback_job(RANKS) as comms:
        state = NetfoldState(comms[0])
        state.load_state_dict(model, {"weight": torch.ones(1, 2)})
        state.close()
    assert "what narrow ones left out of 1 gradients is forgotten" in caplog.text


def test_more_ranks_than_a_lane_holds_are_refused_at_once() -> None:
    """The state refuses them before any step; where nothing folds, lanes are not narrow."""
    with loopback_job(RANKS) as comms:
        with pytest.raises(ValueError, match="lane_bits=12: expected 32, 16 or 8"):
            NetfoldState(comms[0], lane_bits=12)  # type: ignore[arg-type]
        assert comms[0].lanes(8) == 8
        assert comms[0].lanes() == 32
    with loopback_job(RANKS, rail="tcp") as comms:
        assert comms[0].lanes(8) == 32
