# SPDX-License-Identifier: Apache-2.0
"""A parameter server's steps are those of a single process, bit for bit, whoever serves, whatever the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from netfold import testing
from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.operation.arrays import Array
from netfold.host.parameters.exchange import GRADIENTS, PARAMETERS, PULL, Held, Roles, await_notice, pull, step
from netfold.host.parameters.optimizers import Adam, Optimizer, Sgd
from netfold.host.parameters.shards import Shards
from support import needs

UNEVEN: dict[str, tuple[int, ...]] = {"embedding": (997, 7), "bias": (3,), "none": (0,), "scale": (), "head": (31, 5)}
OPTIMIZERS = [Sgd(0.1), Sgd(0.1, 0.9, True, 1e-3), Sgd(0.05, 0.8), Adam(0.01), Adam(0.02, 0.8, 0.95, 1e-6, 1e-2)]
STEPS = 3


def tensors(seed: int, dtype: str = "float32") -> dict[str, Array]:
    """Tensors of the shapes in UNEVEN, drawn by a seed."""
    random = np.random.default_rng(seed)
    return {name: np.asarray(random.standard_normal(shape), dtype) for name, shape in UNEVEN.items()}


def gradients(rank: int, number: int, dtype: str = "float32") -> dict[str, Array]:
    """A worker's gradients of a step."""
    return tensors(1000 * rank + number, dtype)


def single(optimizer: Optimizer, workers: Sequence[int], dtype: str = "float32") -> dict[str, Array]:
    """The parameters after all steps of one process, tensor after tensor."""
    found = tensors(7, dtype)
    states = {name: optimizer.start(value.reshape(-1)) for name, value in found.items()}
    for number in range(STEPS):
        for name, value in found.items():
            total = gradients(workers[0], number, dtype)[name].copy()
            for worker in workers[1:]:
                total = np.asarray(total + gradients(worker, number, dtype)[name])
            mean = np.asarray(total / value.dtype.type(len(workers))).reshape(-1)
            states[name].begin()
            states[name].update(value.reshape(-1), mean, slice(0, value.size))
    return found


def train(
    optimizer: Optimizer, size: int, servers: Sequence[int] | None, workers: Sequence[int] | None,
    dtype: str = "float32", **job: Any,
) -> list[Any]:
    """The state of each rank after all steps: its parameters and number of steps, or the exception that it raised."""

    def rank(comm: Any) -> tuple[dict[str, Array], int]:
        mine = tensors(7 if comm.rank == min(workers or [0]) else 99, dtype)
        server = comm.parameter_server(mine, optimizer, servers=servers, workers=workers)
        if workers is not None and comm.rank not in workers:
            return mine, server.serve()
        for number in range(STEPS):
            server.step(gradients(comm.rank, number, dtype))
        stepped = {name: value.copy() for name, value in mine.items()}
        for value in mine.values():
            value[...] = 0
        server.pull()
        assert all(np.array_equal(stepped[name], value) for name, value in mine.items()), "a pull brings the same"
        server.finish()
        return mine, server.steps

    with testing.loopback_job(size, rail="tcp", **job) as comms:
        return testing.on_every_rank(comms, rank)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize(("size", "servers", "workers"), [
    (3, None, None), (4, [2], None), (4, [0, 3], [1, 2]), (5, [4, 1], [0, 1, 2, 3]), (1, None, None),
], ids=["all serve", "one serves", "servers apart", "one of both", "alone"])
def test_steps_are_those_of_a_single_process_bit_for_bit(
    optimizer: Optimizer, size: int, servers: list[int] | None, workers: list[int] | None
) -> None:
    """Any servers, workers or not, give all workers the parameters of one process with the same gradients."""
    results = train(optimizer, size, servers, workers)
    working = list(range(size)) if workers is None else workers
    expected = single(optimizer, working)
    assert all(not isinstance(result, Exception) and result[1] == STEPS for result in results), results
    for rank in working:
        for name, value in expected.items():
            assert results[rank][0][name].tobytes() == value.tobytes(), (rank, name)


def test_float64_is_kept() -> None:
    """Parameters of float64 are added and updated in float64."""
    for result in train(Adam(0.01), 2, None, None, "float64"):
        assert result[0]["head"].tobytes() == single(Adam(0.01), [0, 1], "float64")["head"].tobytes()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_optimizers_are_torchs(optimizer: Optimizer) -> None:
    """After ten steps parameters differ from torch.optim's by less than 2e-6 of their size."""
    torch = pytest.importorskip("torch", reason=needs.reason("torch"))
    values = np.random.default_rng(3).standard_normal(500).astype(np.float32)
    ours, theirs = values.copy(), torch.nn.Parameter(torch.from_numpy(values.copy()))
    if isinstance(optimizer, Sgd):
        other = torch.optim.SGD([theirs], optimizer.learning_rate, optimizer.momentum, nesterov=optimizer.nesterov,
                                weight_decay=optimizer.weight_decay)
    else:
        other = torch.optim.Adam([theirs], optimizer.learning_rate, (optimizer.beta1, optimizer.beta2),
                                 optimizer.epsilon, optimizer.weight_decay)
    state = optimizer.start(ours)
    for number in range(10):
        gradient = np.random.default_rng(number).standard_normal(500).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient.copy())
        other.step()
        state.begin()
        for piece in (slice(0, 123), slice(123, 500)):
            state.update(ours[piece], gradient[piece].copy(), piece)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-6, atol=2e-6)


def test_shards_are_even_whatever_the_tensors() -> None:
    """One huge tensor among small ones is cut like all others: parts differ by one element at most."""
    shards = Shards({"huge": np.zeros(10_001, np.float32), "small": np.zeros((3, 2), np.float32)}, [5, 1, 3])
    sizes = [part.stop - part.start for part in shards.held.values()]
    assert list(shards.held) == [5, 1, 3]
    assert sum(sizes) == 10_007
    assert max(sizes) - min(sizes) <= 1


def memory(size: int, roles: Roles, count: int, work: Callable[[Any, Held | None, Any, Any], Any],
           fabric: testing.MemoryFabric) -> list[Any]:
    """Runs ``work`` on every rank of a mesh in memory, with its part, its gradient of ones, and its row."""

    def rank(mesh: Any) -> Any:
        part = roles.held.get(mesh.rank)
        values = None if part is None else np.zeros(part.stop - part.start, np.float32)
        held = None if values is None else Held(values, Sgd(1.0).start(values))
        working = mesh.rank in roles.workers
        return work(mesh, held, np.ones(count, np.float32) if working else None,
                    np.full(count, 5, np.float32) if working else None)

    return fabric.run(rank)


def test_bytes_are_those_of_an_allreduce_between_workers_and_servers() -> None:
    """Two servers apart: each worker sends M, each server gets half of it from each worker, and gives it back; messages
    that arrive late, in any order, change nothing."""
    from netfold.host.collectives.flow import run
    from netfold.host.mesh.mesh import Call

    count, seed = 200_000, 11
    fabric = testing.MemoryFabric(4, seed=seed)
    roles = Roles([1, 2], {0: slice(0, count // 2), 3: slice(count // 2, count)})

    def work(mesh: Any, held: Held | None, gradient: Any, row: Any) -> Any:
        with mesh.operation(Call(1, "a step")):
            run(mesh, step(mesh, roles, gradient, row, held))
        with mesh.operation(Call(2, "a pull")):
            run(mesh, pull(mesh, roles, row, held))
        return row

    rows = memory(4, roles, count, work, fabric)
    assert all(np.array_equal(rows[worker], np.full(count, -1, np.float32)) for worker in (1, 2)), f"seed {seed}"
    assert fabric.bytes[1, 0] == fabric.bytes[2, 3] == 2 * count
    assert fabric.bytes[0, 1] == fabric.bytes[3, 2] == 2 * 2 * count, "after the step, and once more pulled"
    assert GRADIENTS != PARAMETERS


def test_a_worker_that_dies_in_a_step_is_named_on_all_others() -> None:
    """Servers and workers raise, and the message has its rank."""
    from netfold.host.collectives.flow import run
    from netfold.host.mesh.mesh import Call

    count = 100_000
    fabric = testing.MemoryFabric(3, seed=5)
    fabric.kill(2, after=2)
    roles = Roles([0, 1, 2], {0: slice(0, 50_000), 1: slice(50_000, count)})

    def work(mesh: Any, held: Held | None, gradient: Any, row: Any) -> None:
        with mesh.operation(Call(1, "a step")):
            run(mesh, step(mesh, roles, gradient, row, held))

    errors = memory(3, roles, count, work, fabric)
    assert isinstance(errors[2], testing.Killed)
    assert all(isinstance(error, NetFoldError) and "rank 2" in str(error) for error in errors[:2]), errors


def test_a_strange_notice_is_refused_with_the_rank_that_sent_it() -> None:
    """A server that is told something unknown says so, and by whom."""
    fabric = testing.MemoryFabric(2)
    roles = Roles([0], {1: slice(0, 4)})

    def work(mesh: Any) -> Any:
        from netfold.host.mesh.mesh import Call
        from netfold.host.parameters.exchange import NOTICES

        with mesh.operation(Call(1, "notices")):
            if mesh.rank == 0:
                mesh.send(1, np.array([PULL], np.int64), tag=NOTICES)
                mesh.send(1, np.array([77], np.int64), tag=NOTICES)
                return None
            assert await_notice(mesh, roles) == PULL
            return await_notice(mesh, roles)

    assert "rank 0 sent notice 77" in str(fabric.run(work)[1])


def refused(call: Callable[[Any], Any], size: int = 2) -> list[Any]:
    """The error of a call on each rank of a job."""
    with testing.loopback_job(size, rail="tcp", timeout=5) as comms:
        return testing.on_every_rank(comms, call)


@pytest.mark.parametrize(("arguments", "says"), [
    ({"servers": [2]}, "servers=[2]: expected some of the ranks 0 .. 1"),
    ({"servers": [0, 0]}, "servers=[0, 0]"),
    ({"workers": []}, "workers=[]"),
    ({"servers": [0], "workers": [0]}, "ranks [1] are neither servers nor workers"),
])
def test_roles_that_cannot_be_are_refused(arguments: Mapping[str, Any], says: str) -> None:
    """Each mistake is named, on every rank, before anything is sent."""
    for error in refused(lambda comm: comm.parameter_server(tensors(1), Sgd(0.1), **arguments)):
        assert isinstance(error, ValueError)
        assert says in str(error)


def test_tensors_that_cannot_be_are_refused() -> None:
    """None at all, none with an element, unlike dtypes, integers, and arrays that are read-only."""
    fixed = np.zeros(2, np.float32)
    fixed.flags.writeable = False
    for bad, says in (
        ({}, "expected one tensor"), ({"a": np.zeros(0, np.float32)}, "one element at least"),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(2)}, "b: float64"), ({"a": np.zeros(2, np.int32)}, "a: int32"),
        ({"fixed": fixed}, "fixed"),
    ):
        for error in refused(lambda comm, bad=bad: comm.parameter_server(bad, Sgd(0.1)), 1):  # type: ignore[misc]
            assert isinstance(error, ValueError), error
            assert says in str(error)


def test_gradients_that_are_not_the_parameters_are_refused_with_rank_and_name() -> None:
    """Another shape, another dtype, a missing name; and what a role must not call."""

    def call(comm: Any) -> list[str]:
        server = comm.parameter_server(tensors(1), Sgd(0.1), servers=[0], workers=[1])
        if comm.rank == 0:
            return [said(lambda: server.step(tensors(2))), str(server.serve())]
        wrong = [tensors(2) | {"bias": np.zeros(4, np.float32)}, tensors(2) | {"head": np.zeros((31, 5))},
                 {name: value for name, value in tensors(2).items() if name != "scale"}]
        found = [said(lambda one=one: server.step(one)) for one in wrong]  # type: ignore[misc]
        found.append(said(server.serve))
        server.finish()
        return [*found, said(lambda: server.step(tensors(2)))]

    def said(make: Callable[[], object]) -> str:
        with pytest.raises(ValueError, match="expected") as caught:
            make()
        return str(caught.value)

    alone, worker = refused(call)
    assert "step on rank 0, which is a server alone" in alone[0]
    assert alone[1] == "0"
    assert "rank 1, gradients, bias: is float32[4]: expected float32[3]" in worker[0]
    assert "head: is float64" in worker[1]
    assert "differs in scale" in worker[2]
    assert "rank 1 is a worker" in worker[3]
    assert "after finish()" in worker[4]


def test_ranks_that_disagree_on_the_optimizer_learn_it_at_once() -> None:
    """Unlike learning rates would make unlike parameters: no rank gets a server."""
    errors = refused(lambda comm: comm.parameter_server(tensors(1), Sgd(0.1 * (comm.rank + 1))))
    assert any(isinstance(error, RankMismatch) and "learning_rate" in str(error) for error in errors), errors
    assert all(isinstance(error, NetFoldError) for error in errors)


@pytest.mark.parametrize(("make", "says"), [
    (lambda: Sgd(-1.0), "Sgd: learning_rate=-1.0"), (lambda: Sgd(float("nan")), "learning_rate=nan"),
    (lambda: Sgd(0.1, nesterov=True), "nesterov needs a momentum"), (lambda: Adam(beta2=1.0), "below 1"),
])
def test_optimizers_refuse_values_that_make_no_sense(make: Callable[[], Optimizer], says: str) -> None:
    """Each mistake is named with its value."""
    with pytest.raises(ValueError, match=says):
        make()
