# SPDX-License-Identifier: Apache-2.0
"""Calls of backend "netfold" with tensors on a device do what they do with tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402

from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from support.late_device import LateDevice  # noqa: E402

RANKS = 3
OPS = dist.ReduceOp
Tensors = list[torch.Tensor]
Call = Callable[[NetfoldGroup], tuple[Any, Any]]


@pytest.fixture(scope="module")
def groups() -> Iterator[list[NetfoldGroup]]:
    """Groups of three ranks of this process, which fold."""
    store = dist.HashStore()
    with loopback_job(RANKS) as comms:
        made = on_every_rank(comms, lambda comm: NetfoldGroup(store, comm, timedelta(seconds=20)))
        yield made
        for group in made:
            group.shutdown()


def options(kind: Any, root: int = 0, op: Any = OPS.SUM) -> Any:
    made = kind()
    for name, value in (("rootRank", root), ("reduceOp", op)):
        if hasattr(made, name):
            setattr(made, name, value)
    return made


def mine(group: NetfoldGroup, *shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    """This rank's values, other ones in each element."""
    return (torch.arange(torch.Size(shape).numel()).view(shape) + 10 * group.rank()).to(dtype)


def row(*shape: int) -> torch.Tensor:
    """A tensor to be filled whose elements do not lie one after another."""
    return torch.zeros(*shape, 2)[..., 0]


def each(tensor: Callable[[int], torch.Tensor]) -> Tensors:
    return [tensor(rank) for rank in range(RANKS)]


def sparse(group: NetfoldGroup) -> torch.Tensor:
    places = torch.tensor([[0, group.rank() + 1]])
    return torch.sparse_coo_tensor(places, torch.ones(2), (5,), check_invariants=True)


def in_place(how: Callable[[NetfoldGroup, Any], Any], make: Callable[[NetfoldGroup], Any]) -> Call:
    """A call that fills what it gets."""

    def call(group: NetfoldGroup) -> tuple[Any, Any]:
        given = make(group)
        return how(group, given), given

    return call


def filling(how: Callable[[NetfoldGroup, Any, Any], Any], outputs: Callable[[NetfoldGroup], Any],
            inputs: Callable[[NetfoldGroup], Any]) -> Call:
    """A call that fills its outputs, and leaves its inputs as they are."""

    def call(group: NetfoldGroup) -> tuple[Any, Any]:
        out, given = outputs(group), inputs(group)
        return how(group, out, given), [out, given]

    return call


def on(root: int, group: NetfoldGroup, given: Any) -> Any:
    """What the root alone passes."""
    return given if group.rank() == root else []


GATHER, SCATTER, REDUCE = dist.GatherOptions, dist.ScatterOptions, dist.ReduceOptions
CALLS: dict[str, Call] = {
    "allreduce": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 4, 5)),
    "allreduce, strided": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 4, 5).T),
    "allreduce, wider": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 7, dtype=torch.int16)),
    "allreduce, gloo's": in_place(lambda g, t: g.allreduce([t]), lambda g: mine(g, 7, dtype=torch.int8)),
    "allreduce, bitwise": in_place(
        lambda g, t: g.allreduce([t], options(dist.AllreduceOptions, op=OPS.BOR)),
        lambda g: mine(g, 7, dtype=torch.int32),
    ),
    "allreduce, sparse": in_place(lambda g, t: g.allreduce([t]), sparse),
    "allreduce_coalesced": in_place(
        lambda g, t: g.allreduce_coalesced(t), lambda g: [mine(g, 3), mine(g, 4, dtype=torch.int64), mine(g, 2, 3).T]
    ),
    "broadcast": in_place(lambda g, t: g.broadcast([t], root=1), lambda g: mine(g, 5, dtype=torch.complex64)),
    "broadcast, strided": in_place(lambda g, t: g.broadcast([t], root=1), lambda g: row(4).add_(g.rank())),
    "reduce": in_place(lambda g, t: g.reduce([t], options(REDUCE, 2)), lambda g: mine(g, 5)),
    "reduce, gloo's": in_place(lambda g, t: g.reduce([t], options(REDUCE, 2)), lambda g: mine(g, 5, dtype=torch.int8)),
    "gather": filling(
        lambda g, out, t: g.gather(out, [t], options(GATHER, 1)), lambda g: on(1, g, [each(lambda _: row(4))]),
        lambda g: mine(g, 4),
    ),
    "scatter": filling(
        lambda g, out, t: g.scatter([out], t, options(SCATTER, 1)), lambda g: row(4),
        lambda g: on(1, g, [each(lambda r: mine(g, 4) + r)]),
    ),
    "alltoall": filling(
        lambda g, out, t: g.alltoall(out, t), lambda g: each(lambda r: torch.zeros(r + g.rank() + 1)),
        lambda g: each(lambda r: mine(g, r + g.rank() + 1)),
    ),
    "alltoall_base": filling(
        lambda g, out, t: g.alltoall_base(out, t, [], []), lambda g: row(RANKS, 2), lambda g: mine(g, RANKS, 2)
    ),
    "allgather": filling(
        lambda g, out, t: g.allgather([out], [t]), lambda g: each(lambda _: row(4)), lambda g: mine(g, 4)
    ),
    "_allgather_base": filling(
        lambda g, out, t: g._allgather_base(out, t), lambda g: torch.zeros(4 * RANKS), lambda g: mine(g, 4)
    ),
    "allgather_coalesced": filling(
        lambda g, out, t: g.allgather_coalesced(out, t), lambda g: [[row(4), row(2)] for _ in range(RANKS)],
        lambda g: [mine(g, 4), mine(g, 2)],
    ),
    "reduce_scatter": filling(
        lambda g, out, t: g.reduce_scatter([out], [t]), lambda g: row(g.rank() + 1),
        lambda g: each(lambda r: mine(g, r + 1)),
    ),
    "_reduce_scatter_base": filling(
        lambda g, out, t: g._reduce_scatter_base(out, t), lambda g: torch.zeros(4), lambda g: mine(g, 4 * RANKS)
    ),
    "reduce_scatter_tensor_coalesced": filling(
        lambda g, out, t: g.reduce_scatter_tensor_coalesced(out, t), lambda g: [torch.zeros(4), row(2)],
        lambda g: [mine(g, 4 * RANKS), mine(g, 2 * RANKS)],
    ),
    "barrier": in_place(lambda g, t: g.barrier(), lambda g: []),
    "message": in_place(
        lambda g, t: g.send([t], 2, 7) if g.rank() == 0 else g.recv([t], 0, 7) if g.rank() == 2 else None,
        lambda g: mine(g, 4),
    ),
}


def plain(given: Any) -> Any:
    """Nested lists of tensors as nested lists of numbers."""
    if isinstance(given, list | tuple):
        return [plain(one) for one in given]
    return given.to_dense().tolist() if given.layout != torch.strided else given.tolist()


def made_by(groups: list[NetfoldGroup], call: Call, device: bool) -> list[Any]:
    """What each rank's tensors hold after a call has been waited for."""

    def rank(comm: Any) -> Any:
        group = groups[comm]
        group._reducer.staging = Staging(LateDevice(comm or None).of) if device else Staging()
        work, given = call(group)
        if work is not None:
            work.get_future().wait()  # which orders no stream that torch does not know of
            work.wait()
        return plain(given)

    found = on_every_rank(list(range(RANKS)), rank)  # type: ignore[arg-type]
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


@pytest.mark.parametrize("name", CALLS)
def test_calls_do_the_same_on_a_device(groups: list[NetfoldGroup], name: str) -> None:
    """Every rank's outputs have the same values, and its inputs are what they were, wherever the tensors are."""
    wanted = made_by(groups, CALLS[name], False)
    assert made_by(groups, CALLS[name], True) == wanted
