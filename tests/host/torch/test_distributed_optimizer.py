# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer against training in a single process, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from support import needs

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from torch import nn  # noqa: E402

import netfold  # noqa: E402
from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from netfold.torch import Compression, DistributedOptimizer, broadcast_parameters  # noqa: E402

RANKS, STEPS, ROWS = 3, 6, 12
"""Each step's batch has ``ROWS`` rows, of which each rank takes its share."""


def model(seed: int = 1) -> nn.Module:
    """Three layers, made of this seed although other threads use torch's own generator."""
    net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(0, 0.2, generator=made)
    return net


def batch(step: int) -> tuple[Any, Any]:
    """A step's rows and what they should give."""
    made = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, 6, generator=made)
    return x, x.sum(dim=1, keepdim=True)


def weights(net: nn.Module) -> Any:
    """All parameters in one tensor."""
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def alone(passes: int = 1, scale: float = 1.0) -> Any:
    """The weights after training in a single process, with gradients of ``passes`` batches added up and scaled."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for turn in range(passes):
            x, y = batch(step * passes + turn)
            (nn.functional.mse_loss(net(x), y) * scale).backward()
        optimizer.step()
    return weights(net)


def together(comm: Communicator, passes: int = 1, **how: Any) -> Any:
    """The same by this rank on its share of the rows; ranks begin with different weights but for rank 0's."""
    net = model(seed=1 + comm.rank)
    broadcast_parameters(net.state_dict(), communicator=comm)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), named_parameters=net.named_parameters(),
        backward_passes_per_step=passes, communicator=comm, **how,
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        for turn in range(passes):
            x, y = (part[comm.rank :: comm.size] for part in batch(step * passes + turn))
            nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return weights(net)


def on_ranks(run: Callable[[Communicator], Any], **settings: Any) -> list[Any]:
    """The value of each rank; raises the first error."""
    with pytest.MonkeyPatch.context() as patch, loopback_job(RANKS, **{"rail": "tcp", **settings}) as comms:
        patch.setenv("NETFOLD_ALGO", "ring")
        results = on_every_rank(comms, run)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize(
    ("how", "passes", "scale"),
    [({}, 1, 1), ({"op": netfold.Sum}, 1, RANKS), ({"gradient_predivide_factor": 2.0, "groups": 2}, 1, 1), ({}, 2, 1)],
)
def test_ranks_learn_what_one_process_does(how: dict[str, Any], passes: int, scale: float) -> None:
    """Averages, sums, split averages and accumulated passes end with the weights of a single process on all rows."""
    results = on_ranks(lambda comm: together(comm, passes, **how))
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], alone(passes, scale), rtol=1e-5, atol=1e-6)


def test_compression_takes_half_the_packets_and_learns_the_same() -> None:
    """fp16 means lanes of 16 bits where the switches fold, and float64 stays whole."""
    results = on_ranks(lambda comm: together(comm, compression=Compression.fp16), rail="innet")
    torch.testing.assert_close(results[0], alone(), rtol=0.01, atol=0.01)

    def double(comm: Communicator) -> Any:
        net = nn.Linear(2, 1).double()
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), compression=Compression.fp16,
                                         communicator=comm)
        net(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.step()
        return net.weight.grad

    assert all(torch.equal(result, torch.ones(1, 2, dtype=torch.float64)) for result in on_ranks(double))


def test_reproducible_weights_do_not_depend_on_ranks_or_groups() -> None:
    """Bit for bit the same weights, however gradients are grouped and whichever rank has which rows."""

    def turned(comm: Communicator, by: int, groups: int) -> Any:
        net = model()
        optimizer = DistributedOptimizer(torch.optim.Adam(net.parameters()), groups=groups, communicator=comm)
        for step in range(STEPS):
            x, y = (part[(comm.rank + by) % comm.size :: comm.size] for part in batch(step))
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        return weights(net)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NETFOLD_REPRODUCIBLE", "1")
        first = on_ranks(lambda comm: turned(comm, 0, 1))
        second = on_ranks(lambda comm: turned(comm, 1, 4), rail="innet", loss=0.01)
    assert all(torch.equal(result, first[0]) for result in [*first, *second])


def test_gradients_can_be_clipped_between_synchronize_and_step() -> None:
    """synchronize() gives the reduced gradients, skip_synchronize() takes them as they are, and a step that reduces
    them once more warns."""

    def run(comm: Communicator) -> Any:
        net = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(net.weight)
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), communicator=comm)
        (net(torch.ones(1, 4)) * (comm.rank + 1)).sum().backward()
        optimizer.synchronize()
        assert torch.equal(net.weight.grad, torch.full((1, 4), 2.0))
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        operations = comm.stats().operations
        torch.testing.assert_close(net.weight.detach(), torch.full((1, 4), -0.5))
        optimizer.zero_grad()
        net(torch.ones(1, 4)).sum().backward()
        optimizer.synchronize()
        with pytest.warns(RuntimeWarning, match="skip_synchronize"):
            optimizer.step()
        return comm.stats().operations - operations

    assert on_ranks(run) == [2] * RANKS


def test_parameters_without_gradients_count_as_zeros() -> None:
    """Where some ranks' losses do not reach a parameter, it gets the others' part; schedulers see the same groups."""

    def run(comm: Communicator) -> Any:
        one, two = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        plain = torch.optim.SGD([{"params": one.parameters()}, {"params": two.parameters(), "lr": 0.5}], lr=1.0)
        optimizer = DistributedOptimizer(plain, communicator=comm)
        assert isinstance(optimizer, torch.optim.SGD)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        before = two.weight.detach().clone()
        x = torch.ones(1, 1)
        (one(x) if comm.rank else one(x) + 3 * two(x)).sum().backward()
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[1]["lr"] == pytest.approx(0.05)
        assert optimizer.state_dict()["param_groups"][0]["lr"] == pytest.approx(0.1)
        return float((before - two.weight).detach())

    assert on_ranks(run) == [pytest.approx(0.5)] * RANKS


def test_mistakes_are_refused() -> None:
    """Unsupported arguments of Horovod, wrong names, and calls in the wrong order get an error."""
    net = model()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    named = list(net.named_parameters())
    with loopback_job(1, rail="tcp") as [comm]:
        for how, said in [
            ({"op": "adasum"}, "Adasum"), ({"process_set": object()}, "process_set"), ({"num_groups": 3}, "groups=3"),
            ({"op": netfold.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor=2.0"),
            ({"compression": "fp16"}, "Compression.none"), ({"backward_passes_per_step": 0}, "expected 1 or more"),
            ({"named_parameters": named[1:]}, "have no name"), ({"groups": [named[0][1:], named[0][1:]]}, "one group"),
            ({"named_parameters": [*named, named[0]]}, "0.weight stand there more than once"),
            ({"named_parameters": net.parameters()}, "pairs of name and parameter"), ({"groups": 0}, "groups=0"),
        ]:
            with pytest.raises(ValueError, match=said):
                DistributedOptimizer(plain, communicator=comm, **how)  # type: ignore[arg-type]
        optimizer = DistributedOptimizer(plain, communicator=comm)
        net(torch.ones(1, 6)).sum().backward()
        with pytest.raises(RuntimeError, match="call step"):
            optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="more than 1 times before step"):
            net(torch.ones(1, 6)).sum().backward()
        optimizer.step()


def test_sparse_gradients_are_refused_or_made_dense() -> None:
    """A sparse gradient is a ValueError of backward, unless it may become dense."""
    with loopback_job(1, rail="tcp") as [comm]:
        for dense in (False, True):
            table = nn.Embedding(5, 2, sparse=True)
            optimizer = DistributedOptimizer(
                torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=dense, communicator=comm
            )
            loss = table(torch.tensor([1, 1])).sum()
            if not dense:
                with pytest.raises(ValueError, match="sparse_as_dense=True"):
                    loss.backward()
                continue
            loss.backward()
            optimizer.step()
            assert table.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0], [0, 0]]  # type: ignore[union-attr]


class Told:
    """A lock that says when a second thread wants it."""

    def __init__(self, wanted: threading.Event) -> None:
        self._lock, self._wanted, self._entered = threading.Lock(), wanted, 0

    def __enter__(self) -> None:
        self._entered += 1
        if self._entered == 2:
            self._wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_gradients_of_two_devices_are_begun_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one of autograd's threads begins a bucket, another one's gradient completes the next."""
    first, second = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    begun: list[str] = []
    inside, other = threading.Event(), threading.Event()
    with loopback_job(1) as (comm,):
        optimizer = DistributedOptimizer(torch.optim.SGD([second, first], 1.0), groups=2, communicator=comm)
        gradients = optimizer._gradients
        monkeypatch.setattr(gradients, "_lock", Told(other), raising=False)
        allreduce = gradients.reducer.allreduce

        def slow(flat: Any, op: Any, name: str, **how: Any) -> Any:
            begun.append(name)
            (other if inside.is_set() else inside).set()
            assert other.wait(20)
            return allreduce(flat, op, name, **how)

        monkeypatch.setattr(gradients.reducer, "allreduce", slow)

        def backward(parameter: nn.Parameter) -> None:
            (2 * parameter).sum().backward()

        threads = [threading.Thread(target=backward, args=(parameter,)) for parameter in (first, second)]
        threads[0].start()
        assert inside.wait(20)
        threads[1].start()
        for thread in threads:
            thread.join(20)
        optimizer.step()
    assert begun == ["gradients 0", "gradients 1"]
    assert first.tolist() == second.tolist() == [-2.0] * 3
