# SPDX-License-Identifier: Apache-2.0
"""Every allreduce algorithm against numpy, over the mesh in memory, which is stricter than a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netfold.fabric.placement.ring import ring_order
from netfold.host.collectives import ALLREDUCE, double_binary_tree, flow, hierarchical, mesh2d, parameter_server, ring
from netfold.host.collectives.byteps import byteps_shares
from netfold.host.collectives.byteps import shares as byteps_layout
from netfold.host.collectives.flow import Strand, run
from netfold.host.collectives.machines import find as machines
from netfold.host.collectives.shared_memory import SharedRows
from netfold.host.errors import TransportError
from netfold.host.mesh.mesh import Call, Mesh, Subset
from netfold.host.operation.arrays import Flat, by_counts
from netfold.host.operation.half_precision import narrow, storage, widen
from netfold.host.operation.reduction import CARRIED, ReduceOp, Reduction, element_name
from netfold.testing import MemoryFabric
from support.hosts.collectives import expected, inputs, values

CALL = Call(1, "allreduce")
SUM = Reduction("sum", "float32")
Algorithm = Callable[[Mesh, Flat, Reduction], Strand]


def allreduce(fabric: MemoryFabric, algorithm: Algorithm, arrays: list[Flat], reduction: Reduction) -> list[Flat]:
    """The result of every rank."""

    def work(mesh: Mesh) -> Flat:
        data = arrays[mesh.rank].copy()
        with mesh.operation(CALL):
            run(mesh, algorithm(mesh, data, reduction))
        reduction.finish(data, len(arrays))
        return data

    return values(fabric.run(work))


def short_segments(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Makes small arrays travel in many segments."""
    patch.setattr(flow, "SEGMENT", nbytes)
    patch.setattr(double_binary_tree, "TREE_SEGMENT", nbytes)


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 9),
    size=st.integers(0, 70),
    seed=st.integers(0, 2**32),
    segment=st.sampled_from([8, 64, 1 << 18]),
    merged=st.integers(1, 3),
)
@example(ranks=9, size=0, seed=0, segment=64, merged=1)
@example(ranks=7, size=5, seed=1, segment=8, merged=1)
@example(ranks=2, size=69, seed=1, segment=8, merged=2)
def test_every_algorithm_sums_like_numpy(
    name: str, ranks: int, size: int, seed: int, segment: int, merged: int
) -> None:
    """Sums are exact on every rank for any number of ranks and any size, also fewer elements than ranks, with long and
    short segments, of which some may go as one message."""
    arrays = inputs(ranks, size, "float32", seed)
    with pytest.MonkeyPatch.context() as patch:
        short_segments(patch, segment)
        patch.setattr(Mesh, "merged_segments", merged)
        results = allreduce(MemoryFabric(ranks, seed=seed), ALLREDUCE[name], arrays, SUM)

    for result in results:
        np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@pytest.mark.parametrize("op", get_args(ReduceOp))
@pytest.mark.parametrize("element", CARRIED)
def test_every_operation_on_every_element(name: str, op: ReduceOp, element: str) -> None:
    """All reductions that make sense on all dtypes equal numpy's; averages of integers are refused."""
    if op == "average" and "int" in element:
        with pytest.raises(TypeError, match="average of integers is no integer"):
            Reduction(op, element)
        return
    arrays = inputs(5, 33, element, seed=3)
    results = allreduce(MemoryFabric(5, seed=3), ALLREDUCE[name], arrays, Reduction(op, element))

    for result in results:
        np.testing.assert_array_equal(result, expected(arrays, op, element))


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@settings(max_examples=15, deadline=None)
@given(ranks=st.integers(2, 9), seed=st.integers(0, 2**32), op=st.sampled_from(["sum", "max", "min", "product"]))
def test_all_ranks_get_the_same_bits(name: str, ranks: int, seed: int, op: ReduceOp) -> None:
    """With values that round, NaNs with different payloads, infinities and both zeros, no bit differs between ranks."""
    rng = np.random.default_rng(seed)
    odd = np.array([0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 0x80000000, 0], np.uint32).view(np.float32)
    arrays = []
    for _ in range(ranks):
        array = rng.standard_normal(40).astype(np.float32)
        array[rng.random(40) < 0.3] = rng.choice(odd)
        arrays.append(array)
    results = allreduce(MemoryFabric(ranks, seed=seed), ALLREDUCE[name], arrays, Reduction(op, "float32"))

    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@pytest.mark.long
@pytest.mark.slow
def test_sixty_four_megabytes_are_exact(name: str) -> None:
    """The largest size of the survey on a number of ranks that is no power of two, with int32, so that any mistake
    shows."""
    size = 16 << 20
    arrays = [np.arange(size, dtype=np.int32) * (rank + 1) for rank in range(3)]
    results = allreduce(MemoryFabric(3, seed=1), ALLREDUCE[name], arrays, Reduction("sum", "int32"))

    for result in results:
        np.testing.assert_array_equal(result, np.arange(size, dtype=np.int32) * 6)


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
def test_large_arrays_are_reduced_in_segments(name: str) -> None:
    """8 MB of float64 on 3 ranks, many times a segment, are reduced exactly."""
    arrays = inputs(3, (1 << 20) + 7, "float64", seed=5)
    results = allreduce(MemoryFabric(3), ALLREDUCE[name], arrays, Reduction("sum", "float64"))

    for result in results:
        np.testing.assert_array_equal(result, expected(arrays, "sum", "float64"))


# ---- bytes and messages as the modules state them -------------------------------------------------------------------
def load(fabric: MemoryFabric) -> tuple[list[int], list[int]]:
    """Bytes sent and received by each rank."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for (sender, receiver), nbytes in fabric.bytes.items():
        sent[sender] += nbytes
        received[receiver] += nbytes
    return [sent[r] for r in range(fabric.size)], [received[r] for r in range(fabric.size)]


@pytest.mark.parametrize("name", ["ring", "parameter_server", "byteps", "halving_doubling"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bandwidth_optimal_algorithms_move_the_least(name: str, ranks: int) -> None:
    """Every rank sends and receives 2 (N-1)/N M bytes, no more."""
    fabric = MemoryFabric(ranks)
    nbytes = 4 * 840
    allreduce(fabric, ALLREDUCE[name], inputs(ranks, 840, "float32", 0), SUM)

    assert load(fabric) == ([2 * (ranks - 1) * nbytes // ranks] * ranks,) * 2


def test_recursive_doubling_takes_log2_steps_of_all_bytes() -> None:
    """Each of 8 ranks sends everything three times."""
    fabric = MemoryFabric(8)
    allreduce(fabric, ALLREDUCE["recursive_doubling"], inputs(8, 100, "float32", 0), SUM)

    assert load(fabric) == ([1200] * 8,) * 2
    assert set(fabric.messages.values()) == {1}


@settings(max_examples=60)
@given(size=st.integers(1, 64))
def test_double_tree_ranks_are_inside_one_tree_only(size: int) -> None:
    """Both trees span all ranks and are about log2 deep, and no rank has children in both."""
    trees = [double_binary_tree.places(size, shift) for shift in (0, 1)]
    for tree in trees:
        graph = nx.DiGraph((place.parent, rank) for rank, place in tree.items() if place.parent is not None)
        graph.add_nodes_from(tree)
        assert set(tree) == set(range(size))
        assert nx.is_arborescence(graph)
        assert nx.dag_longest_path_length(graph) <= size.bit_length()
        assert all(len(place.children) <= 2 for place in tree.values())
    assert not any(trees[0][rank].children and trees[1][rank].children for rank in range(size))


@settings(max_examples=30, deadline=None)
@given(workers=st.integers(1, 5), helpers=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_byteps_helpers_balance_all_links(workers: int, helpers: int, seed: int) -> None:
    """Every link carries 2n(n-1)/D M bytes each way, up to rounding; helpers' own data is not counted."""
    ranks, count = workers + helpers, 20_000
    arrays = inputs(ranks, count, "float32", seed)
    order = np.random.default_rng(seed).permutation(ranks).tolist()
    helping = sorted(order[workers:])
    fabric = MemoryFabric(ranks, seed=seed)
    results = allreduce(fabric, lambda m, d, r: ALLREDUCE["byteps"](m, d, r, helpers=helping), arrays, SUM)  # type: ignore[call-arg]

    for rank in order[:workers]:
        np.testing.assert_array_equal(
            results[rank], expected([arrays[r] for r in sorted(order[:workers])], "sum", "float32")
        )
    busy = byteps_shares(workers, helpers).link_bytes * count * 4
    for direction in load(fabric):
        assert max(direction) <= busy + 4 * 3 * ranks
        if helpers <= workers > 1:
            assert min(direction) >= busy - 4 * 3 * ranks


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(2, 7), servers=st.integers(1, 6), size=st.integers(0, 50), seed=st.integers(0, 2**32))
def test_dedicated_servers_only_serve(ranks: int, servers: int, size: int, seed: int) -> None:
    """Where some ranks serve and the others work, the workers get the workers' sum."""
    servers = min(servers, ranks - 1)
    arrays = inputs(ranks, size, "int32", seed)
    workers = list(range(servers, ranks))
    layout = parameter_server.shares(size, workers, list(range(servers)))
    results = allreduce(
        MemoryFabric(ranks, seed=seed),
        lambda m, d, r: parameter_server.allreduce(m, d, r, layout=layout),
        arrays,
        Reduction("sum", "int32"),
    )

    for rank in workers:
        np.testing.assert_array_equal(results[rank], expected([arrays[w] for w in workers], "sum", "int32"))


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (2, 4), (3, 3), (2, 2)])
def test_the_grid_talks_to_neighbours_only(shape: tuple[int, int]) -> None:
    """Messages travel between neighbours in a row or column, with at most M (C-1)/C (1 + 1/R) bytes on such a link."""
    rows, columns = shape
    ranks, count = rows * columns, 5040
    fabric = MemoryFabric(ranks)
    arrays = inputs(ranks, count, "float32", 1)
    results = allreduce(fabric, lambda m, d, r: mesh2d.allreduce(m, d, r, shape=shape), arrays, SUM)

    np.testing.assert_array_equal(results[-1], expected(arrays, "sum", "float32"))
    for (a, b), nbytes in fabric.bytes.items():
        (ra, ca), (rb, cb) = divmod(a, columns), divmod(b, columns)
        assert abs(ra - rb) + abs(ca - cb) == 1
        line, other = (columns, rows) if ra == rb else (rows, columns)
        assert nbytes <= 4 * count * (line - 1) / line * (1 + 1 / other) + 4 * line


# ---- ring order -----------------------------------------------------------------------------------------------------
@settings(max_examples=60)
@given(switches=st.integers(1, 8), ranks=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_a_ring_in_depth_first_order_uses_each_cable_once(switches: int, ranks: int, seed: int) -> None:
    """On any tree of switches no cable is crossed more than once each way, so that no two steps contend."""
    rng = np.random.default_rng(seed)
    links = [(f"s{i}", f"s{rng.integers(i)}") for i in range(1, switches)]
    hosts = [f"h{r}" for r in range(ranks)]
    links += [(host, f"s{rng.integers(switches)}") for host in hosts]
    rng.shuffle(links)
    order = ring_order([(str(a), str(b)) for a, b in links], hosts)

    tree = nx.Graph(links)
    crossed: Counter[tuple[str, str]] = Counter()
    for rank, after in zip(order, order[1:] + order[:1], strict=True):
        crossed.update(nx.utils.pairwise(nx.shortest_path(tree, hosts[rank], hosts[after])))
    assert sorted(order) == list(range(ranks))
    assert order[0] == 0
    assert max(crossed.values(), default=1) == 1


def test_a_ring_of_any_order_sums() -> None:
    """The order changes which ranks talk to each other, not the result."""
    arrays = inputs(5, 23, "float32", 2)
    fabric = MemoryFabric(5)
    results = allreduce(fabric, lambda m, d, r: ring.allreduce(m, d, r, order=[0, 3, 1, 4, 2]), arrays, SUM)

    np.testing.assert_array_equal(results[4], expected(arrays, "sum", "float32"))
    assert set(fabric.bytes) == {(0, 3), (3, 1), (1, 4), (4, 2), (2, 0)}


def test_a_rank_without_a_path_is_named() -> None:
    """A fabric in two parts has no ring, and the error names a rank."""
    with pytest.raises(ValueError, match=r"no path from 'h0' to rank 1 on 'h1'"):
        ring_order([("h0", "s0")], ["h0", "h1"])


# ---- groups ---------------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), count=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_groups_of_unlike_sizes_reduce(sizes: list[int], count: int, seed: int) -> None:
    """Hierarchical sums are exact for any split of the ranks into groups, in any order."""
    ranks = sum(sizes)
    shuffled = np.random.default_rng(seed).permutation(ranks).tolist()
    groups = [shuffled[piece] for piece in by_counts(sizes)]
    arrays = inputs(ranks, count, "float32", seed)
    results = allreduce(
        MemoryFabric(ranks, seed=seed), lambda m, d, r: hierarchical.allreduce(m, d, r, groups=groups), arrays, SUM
    )

    for result in results:
        np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_ranks_of_one_machine_reduce_over_shared_memory(count: int) -> None:
    """Only the pieces between machines travel; data longer than a row is processed in windows."""
    groups = [[0, 1, 2], [3, 4, 5]]
    arrays = inputs(6, count, "float32", 9)
    fabric = MemoryFabric(6)

    def work(mesh: Mesh) -> Flat:
        data = arrays[mesh.rank].copy()
        with mesh.operation(Call(1, "open")):
            rows = SharedRows(Subset(mesh, next(g for g in groups if mesh.rank in g)), row=64)
        try:
            with mesh.operation(CALL):
                run(mesh, hierarchical.allreduce(mesh, data, SUM, groups=groups, rows=rows))
        finally:
            rows.close()
        return data

    for result in values(fabric.run(work)):
        np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))
    local = [nbytes for (a, b), nbytes in fabric.bytes.items() if a // 3 == b // 3]
    assert max(local) <= 16 + 1 + 4 * 2 * (1 + count // 16)  # a nonce, and barriers of a byte
    across = sum(nbytes for (a, b), nbytes in fabric.bytes.items() if a // 3 != b // 3)
    assert across == 2 * 4 * count  # 2 machines: 2 (H-1)/H M each way


def test_a_full_dev_shm_is_an_error_on_every_rank(shared_folder: Path) -> None:
    """A machine without room for the rows raises on all its ranks, and leaves no file behind."""

    def work(mesh: Mesh) -> None:
        with mesh.operation(CALL):
            SharedRows(mesh, row=1 << 45)

    for error in MemoryFabric(3).run(work):
        assert isinstance(error, TransportError)
        assert "larger /dev/shm" in str(error)
    assert list(shared_folder.iterdir()) == []


def test_ranks_are_grouped_by_machine() -> None:
    """Ranks with the same machine key form one group, in order of rank; in reality here all are on one machine."""
    keys = [b"a" * 16, b"b" * 16, b"a" * 16, b"c" * 16]

    def work(mesh: Mesh) -> Any:
        with mesh.operation(CALL):
            return machines(mesh, keys[mesh.rank]), machines(mesh)

    assert values(MemoryFabric(4).run(work)) == [([[0, 2], [1], [3]], [[0, 1, 2, 3]])] * 4


# ---- what is refused ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, d: ring.allreduce(m, d, SUM, order=[0, 0]), "expected each of the ranks"),
        (lambda m, d: mesh2d.allreduce(m, d, SUM, shape=(3, 1)), "expected as many places as ranks"),
        (lambda m, d: hierarchical.allreduce(m, d, SUM, groups=[[0]]), "expected each rank"),
        (lambda m, d: hierarchical.allreduce(m, d, SUM, groups=[[0, 1], []]), "expected each rank"),
        (lambda m, d: parameter_server.allreduce(m, d, SUM, layout=parameter_server.shares(9, [0], [1])), "the same"),
        (lambda m, d: parameter_server.allreduce(m, d, SUM, layout=parameter_server.shares(8, [0], [7])), "some of"),
        (lambda m, d: byteps_layout(8, [0], [0, 1]), "one or the other"),
        (lambda m, d: parameter_server.shares(8, [], [0]), "no workers"),
        (lambda m, d: parameter_server.shares(8, [0], []), "expected at least one rank"),
    ],
)
def test_impossible_layouts_are_refused(call: Callable[[Mesh, Flat], Any], message: str) -> None:
    """Each error says what was expected, before anything is sent."""
    fabric = MemoryFabric(2)
    with pytest.raises(ValueError, match=message):
        next(call(fabric.meshes[0], np.zeros(8, np.float32)))

    assert not fabric.messages


def test_elements_are_named_or_refused() -> None:
    """bfloat16 is passed as uint16 with its name; other dtypes are refused with the list of those that work."""
    assert element_name(np.zeros(1, np.float16)) == "float16"
    assert element_name(np.zeros(1, np.uint16), "bfloat16") == "bfloat16"
    assert storage(np.zeros(2, np.int32)).dtype == np.int32
    for array, dtype in ((np.zeros(1, np.uint16), None), (np.zeros(1, bool), None), (np.zeros(1, np.int32), "float32")):
        with pytest.raises(TypeError, match="expected one of float32"):
            element_name(array, dtype)
    with pytest.raises(ValueError, match="expected one of sum"):
        Reduction("xor", "int32")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected one of float32"):
        Reduction("sum", "int16")


def test_bfloat16_rounds_to_nearest_even_and_keeps_nans() -> None:
    """1 + 2^-8 rounds down to even, 1 + 3 * 2^-8 up to even; a NaN with low bits alone stays a NaN."""
    one, small, three, nan, infinity = 0x3F80, 0x3B80, 0x3C40, 0x7F81, 0x7F80
    first = np.array([one, one, nan, infinity, 0x7F7F], np.uint16)
    second = np.array([small, three, one, 0xFF80, 0x7F7F], np.uint16)
    wide, out = widen(first, "bfloat16"), np.empty_like(first)
    Reduction("sum", "bfloat16").wide(wide, widen(second, "bfloat16"), out=wide)
    narrow(wide, "bfloat16", out)

    assert out[:2].tolist() == [0x3F80, 0x3F82]
    assert [(value & 0x7FFF) > infinity for value in out.tolist()] == [False, False, True, True, False]
    assert out[4] == infinity


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_halves_are_never_added_as_such(element: str) -> None:
    """Partial sums of halves leave their range; what would add them is told to take float32."""
    bits = np.zeros(1, np.uint16)
    with pytest.raises(TypeError, match=f"sum of {element}: expected Reduction.wide"):
        Reduction("sum", element)(bits, bits, out=bits)
