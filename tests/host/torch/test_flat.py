# SPDX-License-Identifier: Apache-2.0
"""Tensors that backend "netfold" reduces through flat copies: factors, narrow dtypes, negated views, and many small
tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402

from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch import flat  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.host.torch.tensors import as_array  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from support.devices.late_device import LateDevice  # noqa: E402
from support.hosts.insides import reducer_of  # noqa: E402

RANKS = 2
OPS = dist.ReduceOp
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
Groups = list[NetfoldGroup]


@pytest.fixture(scope="module", params=["cpu", "device"])
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    """Groups of two ranks of this process, which fold nothing; of tensors on the CPU, or all on a device."""
    store = dist.HashStore()
    with loopback_job(RANKS, rail="tcp") as comms:
        made = on_every_rank(comms, lambda comm: NetfoldGroup(store, comm, timedelta(seconds=20)))
        if request.param == "device":
            for group in made:
                reducer_of(group).staging = Staging(LateDevice(seed=group.rank()).of)
        yield made
        for group in made:
            group.shutdown()


def everywhere(groups: Groups, call: Callable[[NetfoldGroup, int], Any]) -> list[Any]:
    """The value of a call on each rank; all ranks call at once.  Raises its error."""
    found = on_every_rank(groups, lambda group: call(group, group.rank()))
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def options(kind: Any, op: Any, root: int = 0) -> Any:
    made = kind()
    made.reduceOp = op
    if hasattr(made, "rootRank"):
        made.rootRank = root
    return made


@pytest.mark.parametrize("factor", [0.25, torch.tensor([0.25])], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_multiplies_each_part_before_the_sum(groups: Groups, dtype: torch.dtype, factor: Any) -> None:
    """PREMUL_SUM, FSDP's gradient divide factor, works in all reductions, and leaves inputs as they are."""
    op = dist._make_nccl_premul_sum(factor)

    def call(group: NetfoldGroup, rank: int) -> None:
        mine = torch.full((3,), 4.0 * (rank + 1), dtype=dtype)
        group.allreduce([mine], options(dist.AllreduceOptions, op)).wait()
        assert mine.tolist() == [3.0] * 3
        mine = torch.full((3,), 4.0 * (rank + 1), dtype=dtype)
        group.reduce([mine], options(dist.ReduceOptions, op, 1)).wait()
        assert mine.tolist() == ([3.0] * 3 if rank == 1 else [4.0] * 3)
        whole, piece = torch.arange(8, dtype=dtype), torch.empty(4, dtype=dtype)
        group._reduce_scatter_base(piece, whole, options(dist.ReduceScatterOptions, op)).wait()
        assert piece.tolist() == [0.5 * place for place in range(rank * 4, rank * 4 + 4)]
        assert whole.tolist() == list(range(8))
        parts, piece = [torch.ones(1, dtype=dtype), torch.ones(2, dtype=dtype)], torch.empty(rank + 1, dtype=dtype)
        group.reduce_scatter([piece], [parts], options(dist.ReduceScatterOptions, op)).wait()
        assert piece.tolist() == [0.5] * (rank + 1)

    everywhere(groups, call)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.uint32, *FLOAT8], ids=str)
@pytest.mark.parametrize("op", ["SUM", "MAX", "MIN", "PRODUCT"])
def test_narrow_dtypes_are_reduced_in_wider_ones(groups: Groups, dtype: torch.dtype, op: str) -> None:
    """Dtypes that neither the communicator nor gloo knows have the exact result, rounded once."""

    def of(*values: float) -> Any:
        return torch.tensor(values).to(dtype)

    one, two = {
        "SUM": ((3.0, 5.0, 15.0), (2.0, 4.0, 6.0, 8.0)), "MAX": ((2.0, 3.0, 8.0), (1.0, 2.0, 3.0, 4.0)),
        "MIN": ((1.0, 2.0, 7.0), (1.0, 2.0, 3.0, 4.0)), "PRODUCT": ((2.0, 6.0, 56.0), (1.0, 4.0, 9.0, 16.0)),
    }[op]

    def call(group: NetfoldGroup, rank: int) -> None:
        mine, piece, whole = of(1.0 + rank, 2.0 + rank, 7.0 + rank), of(0.0, 0.0), of(1.0, 2.0, 3.0, 4.0)
        group.allreduce([mine], options(dist.AllreduceOptions, getattr(OPS, op))).wait()
        assert mine.tolist() == of(*one).tolist()
        group._reduce_scatter_base(piece, whole, options(dist.ReduceScatterOptions, getattr(OPS, op))).wait()
        assert piece.tolist() == of(*two)[2 * rank : 2 * rank + 2].tolist()
        group.reduce([whole], options(dist.ReduceOptions, getattr(OPS, op), 1)).wait()
        assert whole.tolist() == (of(*two) if rank == 1 else of(1.0, 2.0, 3.0, 4.0)).tolist()

    everywhere(groups, call)


def test_sums_of_narrow_integers_wrap_as_torchs_own(groups: Groups) -> None:
    """A sum of int16 or uint16 that does not fit wraps around, as additions of torch do."""
    for dtype, value, expected in ((torch.int16, 30000, -5536), (torch.uint16, 40000, 14464)):

        def call(group: NetfoldGroup, rank: int, dtype: Any = dtype, value: int = value) -> int:
            mine = torch.full((1,), value, dtype=dtype)
            group.allreduce([mine]).wait()
            return int(mine.item())

        assert everywhere(groups, call) == [expected] * RANKS


@pytest.mark.parametrize(
    ("dtype", "op", "remedy"),
    [(dtype, "AVG", "take the sum, and divide") for dtype in (torch.int16, torch.int32, torch.int64, torch.uint8)]
    + [(torch.bool, "AVG", "take the sum, and divide"), (torch.uint64, "SUM", "convert it"),
       (torch.float32, "BAND", "bitwise operations are for integers"), (torch.int16, "BOR", "convert it"),
       (torch.int32, "PREMUL_SUM", "multiply, and take"), (torch.complex64, "MAX", "sums and averages alone")],
    ids=str,
)
def test_what_nobody_reduces_is_refused_by_name(groups: Groups, dtype: torch.dtype, op: str, remedy: str) -> None:
    """The error names the call, the reduction and the dtype, and what to do, before anything is handed to gloo."""
    asked = dist._make_nccl_premul_sum(2.0) if op == "PREMUL_SUM" else getattr(OPS, op)
    mine, whole, group = torch.ones(2).to(dtype), torch.ones(4).to(dtype), groups[0]
    calls = {
        "allreduce": lambda: group.allreduce([mine], options(dist.AllreduceOptions, asked)),
        "allreduce_coalesced": lambda: group.allreduce_coalesced(
            [mine], options(dist.AllreduceCoalescedOptions, asked)),
        "reduce": lambda: group.reduce([mine], options(dist.ReduceOptions, asked)),
        "_reduce_scatter_base": lambda: group._reduce_scatter_base(
            mine, whole, options(dist.ReduceScatterOptions, asked)),
    }
    name = str(dtype).removeprefix("torch.")
    for kind, call in calls.items():
        with pytest.raises(ValueError, match=f"^{kind}: no {op.lower()} of {name}, .*{remedy}") as told:
            call()
        assert "gloo" not in str(told.value).lower()


@pytest.mark.parametrize("op", ["SUM", "BOR"])
def test_what_gloo_reduces_may_have_any_strides(groups: Groups, op: str) -> None:
    """gloo reads and writes as many elements as there are, one after another: each rank's strides are its own, and what
    is between the elements stays."""
    asked, numbers = getattr(OPS, op), [0, 1, 2, 4, 8, 16]
    expected = [number << 1 if op == "SUM" else number for number in numbers]

    def call(group: NetfoldGroup, rank: int) -> None:
        def of(*, strided: bool) -> Any:
            mine = torch.tensor(numbers, dtype=torch.int8).view(2, 3)
            return torch.full((6, 4), 77, dtype=torch.int8)[::2, ::2].T.copy_(mine) if strided else mine

        for mine in (of(strided=True), of(strided=rank == 1)):
            group.allreduce([mine], options(dist.AllreduceOptions, asked)).wait()
            assert mine.flatten().tolist() == expected
            assert mine.is_contiguous() or mine._base[1::2].eq(77).all()
        several = [of(strided=rank == 0), of(strided=False)]
        group.allreduce_coalesced(several, options(dist.AllreduceCoalescedOptions, asked)).wait()
        assert [one.flatten().tolist() for one in several] == [expected] * 2
        mine = of(strided=rank == 1)
        group.reduce([mine], options(dist.ReduceOptions, asked, 1)).wait()
        assert rank == 0 or mine.flatten().tolist() == expected
        piece, whole = torch.zeros(3, 2, dtype=torch.int8).T[:1], of(strided=rank == 1)
        group._reduce_scatter_base(piece, whole, options(dist.ReduceScatterOptions, asked)).wait()
        assert piece.tolist() == [expected[3 * rank : 3 * rank + 3]]
        piece, parts = of(strided=True), [of(strided=rank == 1), of(strided=False)]
        group.reduce_scatter([piece], [parts], options(dist.ReduceScatterOptions, asked)).wait()
        assert piece.flatten().tolist() == expected
        image = torch.zeros(1, 2, 3, 3, dtype=torch.bool).to(memory_format=torch.channels_last)
        image[0, rank, rank] = True
        group.allreduce([image], options(dist.AllreduceOptions, OPS.MAX)).wait()
        assert image.nonzero()[:, 1:3].tolist() == [[0, 0]] * 3 + [[1, 1]] * 3

    everywhere(groups, call)


@pytest.mark.parametrize("op", ["SUM", "BOR"])
def test_a_tensor_that_gloo_cannot_fill_is_refused(groups: Groups, op: str) -> None:
    """Where elements share memory, as in an expanded tensor, the error names the call, and nothing is sent."""
    group, mine, asked = groups[0], torch.zeros(1, dtype=torch.int8).expand(4), getattr(OPS, op)
    calls = {
        "allreduce": lambda: group.allreduce([mine], options(dist.AllreduceOptions, asked)),
        "reduce": lambda: group.reduce([mine], options(dist.ReduceOptions, asked)),
        "_reduce_scatter_base": lambda: group._reduce_scatter_base(
            mine, torch.zeros(8, dtype=torch.int8), options(dist.ReduceScatterOptions, asked)),
    }
    for kind, call in calls.items():
        with pytest.raises(ValueError, match=rf"^{kind} into a tensor of \(4,\) .*elements share memory"):
            call()


def test_sparse_tensors_are_refused_what_is_no_sum(groups: Groups) -> None:
    """Averages, factors and maxima of sparse tensors are refused by name, not in gloo's words."""
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (3,), check_invariants=True)
    for asked, name in ((OPS.AVG, "avg"), (OPS.MAX, "max"), (dist._make_nccl_premul_sum(2.0), "premul_sum")):
        with pytest.raises(ValueError, match=f"^allreduce: no {name} of float32, .*of sparse tensors there are"):
            groups[0].allreduce([sparse], options(dist.AllreduceOptions, asked))


def test_negated_views_are_reduced_as_torch_reads_them(groups: Groups) -> None:
    """A view whose elements torch negates as it reads them is reduced, and filled, as any other tensor."""

    def call(group: NetfoldGroup, rank: int) -> None:
        def view() -> Any:
            return torch.tensor([1 - 2j, 3 - 4j]).conj().imag  # of 2 and 4

        mine = view()
        assert mine.is_neg()
        group.allreduce([mine]).wait()
        assert mine.tolist() == [4, 8]
        mine = view()
        group.allreduce_coalesced([mine, torch.ones(1)]).wait()
        assert mine.tolist() == [4, 8]
        mine = view()
        group.reduce([mine], options(dist.ReduceOptions, OPS.SUM)).wait()
        assert mine.tolist() == ([4, 8] if rank == 0 else [2, 4])
        into, piece = view(), view()[:1]
        group._reduce_scatter_base(piece, into, options(dist.ReduceScatterOptions, OPS.SUM)).wait()
        assert piece.tolist() == [4 + 4 * rank]
        mine = view().add_(rank) if rank else view()
        group.broadcast([mine], 1).wait()
        assert mine.tolist() == [3, 5]

    everywhere(groups, call)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_complex_numbers_are_added(groups: Groups, dtype: torch.dtype, op: str) -> None:
    """Every reduction adds or averages them, of any strides, as the real and imaginary parts that they are."""
    asked, share = getattr(OPS, op), 1 if op == "SUM" else RANKS

    def call(group: NetfoldGroup, rank: int) -> None:
        def of(*numbers: complex) -> Any:
            return torch.tensor(numbers, dtype=dtype) * (1 + rank)

        def sums(*numbers: complex) -> list[complex]:
            return [3 * number / share for number in numbers]

        whole, strided, other = of(1 + 2j, 3j, -4, 5 - 6j), of(7 + 1j, 0, 9j, 0)[::2], torch.ones(2)
        group.allreduce_coalesced([whole, strided, other], options(dist.AllreduceCoalescedOptions, asked)).wait()
        assert (whole.tolist(), strided.tolist()) == (sums(1 + 2j, 3j, -4, 5 - 6j), sums(7 + 1j, 9j))
        assert other.tolist() == [RANKS / share] * 2
        mine = of(2 - 1j)
        group.reduce([mine], options(dist.ReduceOptions, asked, 1)).wait()
        assert mine.tolist() == (sums(2 - 1j) if rank == 1 else [2 - 1j])
        piece, whole = torch.zeros((), dtype=dtype), of(1 + 2j, 3 - 4j)
        group._reduce_scatter_base(piece, whole, options(dist.ReduceScatterOptions, asked)).wait()
        assert [piece.item()] == sums((1 + 2j, 3 - 4j)[rank])
        piece, parts = torch.zeros(1 + rank, dtype=dtype), [of(1j), of(2, 3 + 1j)]
        group.reduce_scatter([piece], [parts], options(dist.ReduceScatterOptions, asked)).wait()
        assert piece.tolist() == (sums(2, 3 + 1j) if rank else sums(1j))

    everywhere(groups, call)


@pytest.mark.parametrize("groups", ["cpu"], indirect=True)
def test_complex_numbers_whose_memory_holds_others_are_refused(groups: Groups) -> None:
    """A conjugated view is refused by name, as is a complex tensor beside a real one that would have as many floats."""
    one, asked = torch.ones(2, dtype=torch.complex64), options(dist.ReduceScatterOptions, OPS.SUM)
    for call in (lambda: groups[0].allreduce_coalesced([one.conj()]), lambda: groups[0].reduce([one.conj()])):
        with pytest.raises(ValueError, match=r"reduce.* of complex64, .* conjugated view: .*resolve_conj"):
            call()
    with pytest.raises(ValueError, match=r"^_reduce_scatter_base of float32, here of \(8,\): expected one dtype"):
        groups[0]._reduce_scatter_base(one, torch.ones(8), asked)


def test_many_small_tensors_are_a_few_operations(groups: Groups) -> None:
    """Coalesced calls copy small tensors of a dtype together, and leave large ones where they are."""

    def call(group: NetfoldGroup, rank: int) -> None:
        dtypes = [torch.float32, torch.float64, torch.int16]
        small = [torch.full((place % 5,), float(place)).to(dtypes[place % 3]) for place in range(300)]
        tensors = [*small, torch.ones(flat.SMALL), torch.ones(3, 4).T, torch.ones(2, requires_grad=True)]
        before = group.communicator.stats().operations
        group.allreduce_coalesced(tensors, options(dist.AllreduceCoalescedOptions, OPS.SUM)).wait()
        assert group.communicator.stats().operations - before == len(dtypes) + 1
        for place, tensor in enumerate(small):
            assert tensor.tolist() == [2.0 * place] * (place % 5)
        assert all(bool((tensor == 2).all()) for tensor in tensors[300:])

        parts = [torch.full((place % 5,), place + rank).to(dtypes[place % 3]) for place in range(300)]
        wholes = [torch.empty(RANKS * part.numel(), dtype=part.dtype) for part in parts]
        parts.append(torch.full((2, 3), rank))
        wholes.append(torch.empty(3, 4, dtype=torch.int64).T)
        before = group.communicator.stats().operations
        group.allgather_into_tensor_coalesced(wholes, parts).wait()
        assert group.communicator.stats().operations - before == len(dtypes) + 1
        for place, whole in enumerate(wholes[:300]):
            assert whole.tolist() == [place] * (place % 5) + [place + 1] * (place % 5)
        assert wholes[300].reshape(-1).tolist() == [0] * 6 + [1] * 6

        before = group.communicator.stats().operations
        group.reduce_scatter_tensor_coalesced(parts[:300], wholes[:300]).wait()
        assert group.communicator.stats().operations - before == len(dtypes)
        for place, part in enumerate(parts[:300]):
            assert part.tolist() == [2 * (place + rank)] * (place % 5)

    everywhere(groups, call)


def test_copies_are_bounded() -> None:
    """Tensors share a copy by dtype, up to its bound in bytes; a large tensor, or one that is to go alone, has none."""
    tensors = [torch.empty(1000), torch.empty(2, dtype=torch.int32), torch.empty(flat.SMALL), torch.empty(1000)]
    assert flat.bunches(tensors) == [[0, 3], [1], [2]]
    assert flat.bunches(tensors, alone=[0]) == [[0], [1], [2], [3]]
    assert flat.bunches([torch.empty(0), torch.empty(0)]) == [[0, 1]]
    many = [torch.empty(flat.SMALL // 8)] * 100
    bunches = flat.bunches(many)
    assert [place for bunch in bunches for place in bunch] == list(range(100))
    assert max(len(bunch) for bunch in bunches) * flat.SMALL // 2 == flat.MOST


@pytest.mark.parametrize("wrong", [
    torch.ones(2, dtype=torch.complex64).conj().imag, torch.ones(2, dtype=torch.complex64).conj(),
    torch.ones(2, dtype=torch.float8_e5m2),
], ids=["negated", "conjugated", "float8"])
def test_memory_that_is_not_the_tensors_numbers_is_refused(wrong: Any) -> None:
    """Where an array of the tensor's own memory is needed, the error says why there is none, and what to do."""
    with pytest.raises(ValueError, match=r"tensor of \(2,\) is .*: (expected a plain one; give|convert)"):
        as_array(wrong)
