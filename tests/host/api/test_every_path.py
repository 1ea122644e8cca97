# SPDX-License-Identifier: Apache-2.0
"""The path of a reduction does not affect its result: switches, meshes, shared memory, several rails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.errors import RankMismatch
from netfold.host.operation.half_precision import narrow, widen
from netfold.host.operation.reduction import REDUCE_OPS, ReduceOp
from netfold.host.selection.peers import KNOWN
from netfold.testing import loopback_job, on_every_rank
from support.hosts.loopback_rails import loopback_rails

WORLD = 4
ALGORITHMS = [name for name in KNOWN if name != "auto"]
Ways = dict[str, tuple[list[Communicator], dict[str, Any]]]
"""Name -> the job, and what its calls are given besides."""
NASTY = {
    "float16": [0.0, -0.0, 1.0, -1.0, 60000.0, -60000.0, 65504.0, 2.0**-24, 2.0**-14, 0.1, 300.0, 2048.0],
    "bfloat16": [0.0, -0.0, 1.0, -1.0, 8e37, -8e37, 2.0**-133, 2.0**-126, 0.1, 300.0, 257.0],
}
FUNCTIONS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "sum": np.add.reduce, "average": np.mean, "max": np.maximum.reduce, "min": np.minimum.reduce,
    "product": np.multiply.reduce,
}


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    """Everything that carries reductions, each with its own ranks."""
    with ExitStack() as stack:
        made = {rail: stack.enter_context(loopback_job(WORLD, rail=rail)) for rail in ("innet", "tcp", "roce")}
        machines = stack.enter_context(loopback_job(WORLD, members=2, rail="tcp"))
        parallel = stack.enter_context(loopback_job(WORLD, members=2, rail="innet"))
        several = stack.enter_context(loopback_rails(("innet", "tcp"), WORLD))
        yield {
            "switches": (made["innet"], {}), "parallel switches": (parallel, {}), "several rails": (several, {}),
            "queue pairs": (made["roce"], {}), "shared memory": (machines, {"algorithm": "hierarchical"}),
            **{f"TCP, {name}": (made["tcp"], {"algorithm": name}) for name in ALGORITHMS},
            "exact": (made["tcp"], {"reproducible": True}),
        }


def called(
    ways: Ways, method: str, arrays: list[NDArray[Any]], element: str = "", **asked: Any
) -> Iterator[tuple[str, list[Any]]]:
    """For each way: its name, and what each rank's call returned or raised."""
    if element == "bfloat16":
        asked["dtype"] = element

    def call(comm: Communicator, more: dict[str, Any]) -> Any:
        return getattr(comm, method)(arrays[comm.rank], **more)

    for name, (comms, more) in ways.items():
        if asked.get("op") == "product" and more.get("reproducible"):
            continue  # refused by name
        given = {**asked, **({} if method != "allreduce" and "algorithm" in more else more)}
        yield name, on_every_rank(comms, partial(call, more=given))


def halves(values: Any, element: str) -> NDArray[Any]:
    """The values as float16, or as the bits of bfloat16."""
    wide = np.asarray(values, np.float32)
    out = np.empty(wide.shape, np.float16 if element == "float16" else np.uint16)
    narrow(wide, element, out)
    return out


def check(got: NDArray[Any], arrays: list[NDArray[Any]], op: str, element: str, what: str) -> None:
    """One rounding of the exact result, and one of float32: infinite and NaN where that is."""
    with np.errstate(all="ignore"):
        wide = np.array([widen(array, element) for array in arrays], np.float64)
        exact = FUNCTIONS[op](wide, axis=0)
        # halves of a block share an exponent where they fold (native/quantise.h)
        shared = np.abs(wide[np.isfinite(wide)]).max(initial=0) * 2.0**-24 if op in ("sum", "average") else 0.0
        expected = widen(halves(exact, element), element)
        value = widen(got, element)
        assert (np.isnan(value) == np.isnan(expected)).all(), (what, value, expected)
        assert (np.isinf(value) == np.isinf(expected)).all(), (what, value, expected)
        finite = np.isfinite(expected)
        step = 2.0**-10 if element == "float16" else 2.0**-7
        least = 2.0**-24 if element == "float16" else 2.0**-133
        bound = step * np.abs(expected[finite]) + least + shared
        assert (np.abs(value[finite].astype(np.float64) - expected[finite]) <= bound).all(), (what, value, expected)


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.slow
def test_a_reduction_of_halves_is_rounded_once_whatever_carries_it(ways: Ways, op: ReduceOp, element: str) -> None:
    """Averages and sums whose partial sums leave the range, products and extremes of the largest and the least values:
    all paths, as an allreduce, a reduce and a reduce_scatter, are the exact result, rounded."""
    rng = np.random.default_rng(7)
    arrays = [halves(rng.choice(NASTY[element], 96), element) for _ in range(WORLD)]
    large = NASTY[element][4]
    for array, sign in zip(arrays, (1, 1, -1, -1), strict=True):
        array[:8] = halves([large] * 8, element)
        array[8:16] = halves([sign * large] * 8, element)
    if op == "product" and element == "bfloat16":
        arrays = [halves(np.clip(widen(a, element), -1e9, 1e9), element) for a in arrays]  # float32 has no more range
    for name, got in called(ways, "allreduce", arrays, element, op=op):
        for result in got:
            check(result, arrays, op, element, f"{name}: allreduce")
    for name, got in called(ways, "reduce", arrays, element, op=op, root=1):
        check(got[1], arrays, op, element, f"{name}: reduce")
    for name, got in called(ways, "reduce_scatter", arrays, element, op=op):
        for rank, result in enumerate(got):
            row = slice(24 * rank, 24 * rank + 24)
            check(result, [array[row] for array in arrays], op, element, f"{name}: reduce_scatter")


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", ["sum", "average", "max", "min"])
@pytest.mark.parametrize("mine", [
    (np.inf, 1, 1, 1), (np.inf, -np.inf, 1, 1), (1, 1, 1, np.nan), (-np.inf, -np.inf, 2, 2),
], ids=str)
def test_infinities_and_nans_reach_everybody_on_every_path(
    ways: Ways, op: ReduceOp, element: str, mine: tuple[float, ...]
) -> None:
    """A NaN, Infs of one sign and of both: the same of them on all paths.  Beside them in their block switches say NaN
    (docs/host.md), so here is nothing beside."""
    wide = [np.full(1, value, np.float32) for value in mine]
    arrays = wide if element == "float32" else [halves(array, element) for array in wide]
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[op](np.array(mine, np.float64)).astype(np.float32)
    for name, got in called(ways, "allreduce", arrays, element, op=op):
        for result in got:
            value = result if element == "float32" else widen(result, element)
            np.testing.assert_array_equal(value, [expected], name)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (3, 2)], ids=str)
def test_shapes_and_integers_are_the_same_on_every_path(ways: Ways, dtype: str, shape: tuple[int, ...]) -> None:
    """Empty arrays and single numbers, too; integers wrap, and have no average anywhere."""
    top = np.iinfo(dtype).max if "int" in dtype else 3
    arrays: list[NDArray[Any]] = [np.full(shape, top, dtype) for _ in range(WORLD)]
    expected = np.add.reduce(np.array(arrays), axis=0, dtype=dtype)
    for name, got in called(ways, "allreduce", arrays):
        for result in got:
            assert (result.shape, result.dtype) == (shape, np.dtype(dtype)), name
            np.testing.assert_array_equal(result, expected, name)
    if "int" in dtype:
        for name, got in called(ways, "allreduce", arrays, op="average"):
            assert all(isinstance(error, TypeError) for error in got), name


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_strided_halves_in_place_are_the_same_on_every_path(ways: Ways, element: str) -> None:
    """The elements between them are unchanged."""
    for name, (comms, more) in ways.items():
        whole = [halves(np.full((6, 8), rank + 1), element) for rank in range(WORLD)]
        asked = {"dtype": element, **more} if element == "bfloat16" else more

        def call(comm: Communicator, whole: Any = whole, asked: Any = asked) -> None:
            view = whole[comm.rank][::2, ::-2]
            comm.allreduce(view, view, **asked)

        assert on_every_rank(comms, call) == [None] * WORLD
        for rank, array in enumerate(whole):
            values = widen(array, element)
            assert (values[::2, ::-2] == 10).all(), name
            assert np.count_nonzero(values == 10) == 12, name
            assert np.count_nonzero(values == rank + 1) == 36, name


@pytest.mark.parametrize("rail", ["tcp", "innet"])
@pytest.mark.parametrize("size", [5, 5000])
@pytest.mark.parametrize(("ours", "its"), [("float16", "float32"), ("bfloat16", "float32"), ("bfloat16", "float16")])
def test_ranks_with_halves_and_ranks_with_floats_learn_that_they_differ(
    ours: str, its: str, size: int, rail: Any
) -> None:
    """Both go as float32, and are no less two operations."""
    with loopback_job(2, rail=rail) as comms:
        ones = np.ones(size, np.float32)
        arrays = [ones if name == "float32" else halves(ones, name) for name in (ours, its)]

        def call(comm: Communicator) -> Any:
            name = (ours, its)[comm.rank]
            return comm.allreduce(arrays[comm.rank], **({"dtype": name} if name == "bfloat16" else {}))

        for error in on_every_rank(comms, call):
            assert isinstance(error, RankMismatch)
            assert all(name in str(error) for name in (ours, its)), error


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_ranks_that_have_widened_other_dtypes_learn_it(rail: Any) -> None:
    """int16 on one rank and int32 on the other, which a caller has widened, are no sum."""
    with loopback_job(2, rail=rail) as comms:
        named: list[Any] = ["int16", None]
        for error in on_every_rank(comms, lambda comm: comm.allreduce(np.ones(5, np.int32), dtype=named[comm.rank])):
            assert isinstance(error, RankMismatch)
            assert "int16" in str(error)
        with pytest.raises(TypeError, match="expected one of"):
            comms[0].allreduce(np.ones(5, np.int64), dtype="int16")
