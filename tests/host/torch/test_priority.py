# SPDX-License-Identifier: Apache-2.0
"""Gradients by priority: the order in which they travel, training equal to that without it, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from support import needs
from support.hosts.host import impatient

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from torch import nn  # noqa: E402

from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.errors import Closed, CollectiveTimeout  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from netfold.torch import PriorityOptimizer, broadcast_optimizer_state, broadcast_parameters  # noqa: E402

SMALL = 1100 / (1 << 20)
"""Bucket size in MiB that gives each layer a bucket of its own here."""


def network(seed: int) -> nn.Sequential:
    """A model of four layers."""
    torch.manual_seed(seed)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())))


def batch(step: int) -> torch.Tensor:
    return torch.randn(12, 16, generator=torch.Generator().manual_seed(step))


class Alone:
    """A communicator of one rank whose first operation waits, and which records the names of the others."""

    size, rank, repeats_losses = 1, 0, False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.names: list[str] = []

    def broadcast(self, array: Any, *, root: int) -> None: ...

    def lanes(self, lane_bits: Any) -> int:
        return 32

    def allreduce(self, array: Any, out: Any = None, op: str = "sum", *, name: str, **_: Any) -> Any:
        assert self.go.wait(20)
        if name != "which bucket":
            self.names.append(name)
        return array


@pytest.mark.parametrize(("order", "expected"), [("priority", [3, 0, 1, 2]), ("arrival", [3, 2, 1, 0])])
def test_what_the_next_forward_needs_first_goes_first(order: Any, expected: list[int]) -> None:
    """The last layer's gradients are ready first and are sent at once; of the rest, made meanwhile, the first layer's
    go first."""
    comm, model = Alone(), network(0)
    optimizer = PriorityOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model, comm, bucket_mb=SMALL, order=order  # type: ignore[arg-type]
    )
    offered = threading.Event()
    # the thread takes what is there when it looks: let it look after the last layer's, before the others'
    model[4].register_full_backward_pre_hook(lambda *_: None if offered.wait(20) else pytest.fail("nothing offered"))
    original = comm.allreduce

    def watched(*args: Any, **kwargs: Any) -> Any:
        offered.set()
        return original(*args, **kwargs)

    comm.allreduce = watched  # type: ignore[method-assign]
    model(batch(0)).sum().backward()
    comm.go.set()
    optimizer.step()
    optimizer.synchronize()
    optimizer.close()
    assert comm.names == [f"bucket {index}" for index in expected]


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_training_is_that_of_one_process(rail: Any) -> None:
    """Three ranks with parts of each batch, a changing learning rate, weight decay and momentum end with the weights of
    one process with the whole batches, and all ranks have the same bits."""
    steps = 6

    def train(model: nn.Module, part: slice, wrap: Any) -> None:
        inner = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.7)
        optimizer = wrap(inner, model)
        for step in range(steps):
            optimizer.zero_grad()
            (model(batch(step)[part]) ** 2).mean().backward()
            optimizer.step()
            schedule.step()
        if hasattr(optimizer, "close"):
            optimizer.close()

    def one(comm: Communicator) -> list[Any]:
        model = models[comm.rank]
        part = slice(comm.rank, None, 3)
        train(model, part, lambda inner, model: PriorityOptimizer(inner, model, comm, bucket_mb=SMALL))
        return [p.detach().numpy() for p in model.parameters()]

    models = [network(rank) for rank in range(3)]  # here: ranks are threads, and torch's generator is one for all
    with loopback_job(3, rail=rail) as comms:  # each starts elsewhere, but rank 0's start counts
        results = on_every_rank(comms, one)
    alone = network(0)
    train(alone, slice(None), lambda inner, _: inner)
    for result in results:
        assert not isinstance(result, BaseException), result
        for mine, first, reference in zip(result, results[0], alone.parameters(), strict=True):
            assert mine.tobytes() == first.tobytes()
            np.testing.assert_allclose(mine, reference.detach().numpy(), atol=2e-6)


class Branches(nn.Module):
    """Two layers whose gradients come in an order that differs between ranks."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.unused = nn.Linear(3, 3)
        self._order = np.random.default_rng(rank).permutation(6).tolist()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self._order:
            x = x + 0 * self.layers[index](x) + self.layers[index](torch.ones(16)) / (index + 1)
        return x.sum()


def test_ranks_agree_whatever_comes_first() -> None:
    """With gradients in different orders on each rank and an unused layer, all reduce the same buckets in the same
    order."""

    def one(comm: Communicator) -> tuple[list[str], bytes]:
        model = Branches(comm.rank)
        optimizer = PriorityOptimizer(torch.optim.Adam(model.parameters()), model, comm, bucket_mb=SMALL)
        for step in range(5):
            model(batch(step)[0]).backward()
            optimizer.step()
        optimizer.close()
        names = [o.name for o in comm.flight() if o.name.startswith("bucket")]
        return names, b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    with loopback_job(3, rail="tcp") as comms:
        results = on_every_rank(comms, one)
    assert not any(isinstance(result, BaseException) for result in results), results
    assert results[0] == results[1] == results[2]
    names = results[0][0]
    assert len(names) == 5 * 7
    for step in range(5):
        assert sorted(names[7 * step : 7 * step + 7]) == [f"bucket {i}" for i in range(7)]


def test_reading_parameters_sees_all_updates() -> None:
    """state_dict() and evaluation wait for every update, and so does attention's projection, which is read without
    being called."""
    with loopback_job(1, rail="tcp") as (comm,):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        reference = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        reference.load_state_dict(model.state_dict())
        plain = torch.optim.SGD(reference.parameters(), 0.1)
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, comm, bucket_mb=SMALL / 10)
        x = torch.randn(2, 3, 8)
        for _ in range(3):
            plain.zero_grad()
            for one in (model, reference):
                (one(x) ** 2).sum().backward()
            optimizer.step()
            plain.step()
        for mine, theirs in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, theirs)
        with torch.no_grad():
            torch.testing.assert_close(model(x), reference(x))
        optimizer.close()


def test_accumulated_gradients_travel_once() -> None:
    """no_sync() adds up gradients; a second backward outside of it is an error that says so."""
    with loopback_job(1, rail="tcp") as (comm,):
        model, reference = network(0), network(0)
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, comm)
        plain = torch.optim.SGD(reference.parameters(), 0.1)
        with optimizer.no_sync():
            model(batch(0)).sum().backward()
        model(batch(1)).sum().backward()
        for step in (0, 1):
            reference(batch(step)).sum().backward()
        optimizer.step()
        plain.step()
        optimizer.synchronize()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
        model(batch(0)).sum().backward()
        with pytest.raises(RuntimeError, match="second gradient in one step"):
            model(batch(0)).sum().backward()
        optimizer.close()
        with pytest.raises(Closed):
            optimizer.step()


def test_a_lost_rank_comes_out_of_the_next_use() -> None:
    """forward or step raises the communicator's own error with the rank's name, and nothing hangs."""

    def one(comm: Communicator) -> str:
        model = network(0)
        optimizer = PriorityOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, comm)
        if comm.rank == 1:
            optimizer.close()
            return ""
        impatient([comm], 0.3)
        model(batch(0)).sum().backward()
        optimizer.step()
        try:
            model(batch(1))
        except CollectiveTimeout as error:
            return str(error)
        finally:
            with pytest.raises(CollectiveTimeout):
                optimizer.close()
        return "no error"

    with loopback_job(2, rail="tcp") as comms:
        said = on_every_rank(comms, one)
    assert "rank 1 gone, stopped, or never called" in str(said[0]), said
    assert said[1] == ""


def test_models_that_cannot_be_are_refused() -> None:
    """A model without parameters to reduce, and an unknown order, are refused."""
    with loopback_job(1, rail="tcp") as (comm,):
        inner = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
        with pytest.raises(ValueError, match="without parameters"):
            PriorityOptimizer(inner, nn.Tanh(), comm)
        with pytest.raises(ValueError, match="order='random'"):
            PriorityOptimizer(inner, network(0), comm, order="random")  # type: ignore[arg-type]


def test_horovods_verbs_give_all_ranks_one_start() -> None:
    """All ranks get the root's parameters, and the optimizer's moments and learning rate."""

    def one(comm: Communicator) -> tuple[bytes, Any]:
        model = network(comm.rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (comm.rank + 1))
        if comm.rank == 1:  # as if it had loaded a checkpoint
            model(batch(0)).sum().backward()
            optimizer.step()
        broadcast_parameters(model.named_parameters(), root_rank=1, communicator=comm)
        broadcast_optimizer_state(optimizer, root_rank=1, communicator=comm)
        state = optimizer.state_dict()
        moments = [float(entry["exp_avg"].sum()) for entry in state["state"].values()]
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters()), (state["param_groups"], moments)

    with loopback_job(3, rail="tcp") as comms:
        results = on_every_rank(comms, one)
    assert results[0] == results[1] == results[2], results
    groups, moments = results[0][1]
    assert groups[0]["lr"] == pytest.approx(0.2)
    assert any(moments)
