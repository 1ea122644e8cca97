# SPDX-License-Identifier: Apache-2.0
"""Training steps: who sends how much to whom, in which order."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.sim.engines import fluid
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import leaf_spine
from netfold.sim.workloads.training import (
    MODELS,
    TRAINING,
    Model,
    kind,
    one_forward_one_backward,
    tensor_parallel,
    three_dimensional,
)
from netfold.sim.workloads.workload import COLLECTIVES, Workload

TINY = Model("tiny", 4, 256, tokens=512)
HOSTS = range(16)
TOPOLOGY = leaf_spine(hosts=16, leaves=4, spines=4)


def test_parameters_follow_from_the_sizes() -> None:
    """The models have about as many parameters as their names say; activations are those of the authors' files."""
    assert [round(model.parameters / 1e9, 2) for model in MODELS.values()] == [0.12, 7.45, 12.84]
    assert [2 * model.tokens * model.hidden for model in MODELS.values()] == [201_326_592 // 8, 33_554_432, 41_943_040]
    assert {kind(name) for name in TRAINING} == {"", "tp", "3d"}


@pytest.mark.parametrize(("stage", "ahead"), [(0, 3), (2, 1), (3, 0)])
def test_a_stage_goes_ahead_until_the_last_one_is_busy(stage: int, ahead: int) -> None:
    """Each micro-batch goes forward once and back once, in order, and at most ``ahead`` + 1 are under way."""
    order = one_forward_one_backward(stage, 4, 6)
    for way in ("forward", "backward"):
        assert [batch for which, batch in order if which == way] == list(range(6))
    under_way = np.cumsum([1 if way == "forward" else -1 for way, _ in order])
    assert under_way.min() == 0
    assert under_way.max() == ahead + 1
    assert one_forward_one_backward(0, 4, 2) == [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]


def by_group(work: Workload, tensor: int, replicas: int) -> dict[str, int]:
    """Bytes that stay among the parts of one layer, that go to another stage, and that go to another replica."""
    source, destination = (np.stack(np.unravel_index(ends, (len(HOSTS) // tensor // replicas, replicas, tensor)))
                           for ends in (work.source, work.destination))
    other = source != destination
    found = {"stage": 0, "replica": 0, "part": 0}
    for name, differs in zip(found, other, strict=True):
        found[name] = int(work.size[differs].sum())
    assert int(other.sum(axis=0)[work.size > 0].max()) == 1, "a flow goes along one dimension"
    return found


def test_each_dimension_sends_what_its_formula_says() -> None:
    """Bytes of allreduces, of the pipeline and of the data parallel collectives, over 2 x 4 x 2 hosts."""
    work = three_dimensional(HOSTS, TINY, tensor=2, stages=2, micro_batches=3, tokens=512)
    activations, held = 2 * 512 * 256, TINY.layer_parameters // 2
    sent = by_group(work, tensor=2, replicas=4)
    assert sent["part"] == 16 * 3 * 4 * activations  # each host: 3 micro-batches, 4 allreduces, 2 (n-1)/n of them
    assert sent["stage"] == 8 * 3 * 2 * activations  # forward from the first stage, back from the second
    assert sent["replica"] == 16 * 3 * (4 + 2) * held // 4


def test_a_pipeline_takes_its_bubble() -> None:
    """With links of no account a step takes (micro-batches + stages - 1) forward and backward passes."""
    work = three_dimensional(HOSTS, TINY, tensor=2, stages=4, micro_batches=5, tokens=512)
    forward = 2 * TINY.layer_parameters * 512 / 400e12 / 2
    assert work.idle == pytest.approx((5 + 4 - 1) * 3 * forward)
    fast = leaf_spine(hosts=16, leaves=4, spines=4, rate=1e18, delay=0)
    assert fluid.simulate(fast, work, SCHEMES["netfold"]).time == pytest.approx(work.idle, rel=1e-3)


def test_a_tensor_parallel_layer_is_four_allreduces() -> None:
    """Two allreduces forward and two back, with the time of the layer's matrices between them."""
    work = tensor_parallel(HOSTS, TINY)
    alone = COLLECTIVES["halving-doubling"](HOSTS, 2 * 512 * 256)
    assert work.total == 4 * alone.total
    took, once = (fluid.simulate(TOPOLOGY, flows, SCHEMES["netfold"]).time for flows in (work, alone))
    assert took == pytest.approx(4 * once + work.idle, rel=1e-3)
    assert work.idle == pytest.approx(6 * TINY.layer_parameters * 512 / 400e12 / 16)


def test_groups_that_do_not_divide_are_refused() -> None:
    """The message has the numbers, and what would do."""
    with pytest.raises(ValueError, match="16 hosts for 8 parts x 4 stages; expected at least 2 parts"):
        three_dimensional(HOSTS, TINY)
    with pytest.raises(ValueError, match="a multiple of parts x stages, for 2 replicas or more"):
        three_dimensional(HOSTS, TINY, tensor=4, stages=4)
