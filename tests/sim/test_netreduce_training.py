# SPDX-License-Identifier: Apache-2.0
"""NetReduce's training steps: sizes of networks, overlap, and times between simulated sizes."""

from __future__ import annotations

import csv

import pytest

from netfold.sim.netreduce import training
from netfold.sim.netreduce.training import GpuCluster, allreduce_seconds, between, buckets, step
from netfold.sim.workloads.trained_nets import NETWORKS, Layer, TrainedNet

pytestmark = pytest.mark.slow

PARAMETERS = {"AlexNet": 61_100_840, "VGG-16": 138_357_544, "ResNet-50": 25_557_032, "BERT-base": 109_482_240,
              "BERT-large": 335_141_888}
"""As torchvision and Hugging Face's transformers count them."""


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_published_numbers_of_parameters(name: str) -> None:
    """Layers computed from the architecture add up to what the libraries that train them say."""
    assert NETWORKS[name]().parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_buckets_hold_every_gradient_once(name: str) -> None:
    """All bytes, in backward order; each bucket but the last is full, and would not be without its last layer."""
    network = NETWORKS[name]()
    found, begin = buckets(network), 0
    assert sum(nbytes for nbytes, _ in found) == 4 * network.parameters
    assert found[-1][1] == len(network.layers)
    for number, (nbytes, through) in enumerate(found[:-1]):
        least = training.BUCKET if number else training.FIRST_BUCKET
        last = network.layers[-through]
        assert nbytes >= least > nbytes - 4 * last.parameters
        assert through > begin
        begin = through


def test_allreduces_hide_behind_the_layers_that_are_left() -> None:
    """Two layers of a full bucket each: the second's allreduce is seen whole, the first's only where it is longer than
    the way back through the layer before it."""
    layer = Layer("", training.BUCKET // 4, 1_000_000_000)
    network = TrainedNet("", (layer, layer), 1)
    sizes = (1 << 20, 100 << 20)
    for seconds, seen in ((0.0, 0.0), (0.3, 0.3), (0.5, 0.6)):  # of one bucket; the way back through a layer takes 0.4
        rates = [seconds, seconds]
        compute, spent, whole = step(network, sizes, rates, batch=1, flops=1e10)
        assert (compute, spent) == (pytest.approx(1.2), pytest.approx(2 * seconds))
        assert whole == pytest.approx(compute + seen)


@pytest.mark.parametrize(("cluster", "way"), [(GpuCluster(4, 8, 100.0), "PN"), (GpuCluster(4, 8, 100.0), "FR"),
                                              (GpuCluster(4, 1), "NR"), (GpuCluster(4, 1), "DBT")])
def test_times_between_and_beyond_simulated_sizes_are_those_of_a_simulation(cluster: GpuCluster, way: str) -> None:
    """The straight lines through three sizes are within 3 % of the simulation of others."""
    seconds = [allreduce_seconds(cluster, way, size) for size in cluster.sizes]
    for size in (cluster.sizes[1] * 2, cluster.sizes[2] * 3):
        assert between(cluster.sizes, seconds, size) == pytest.approx(allreduce_seconds(cluster, way, size), rel=0.03)


@pytest.mark.needs("matplotlib")
def test_the_short_form_writes_figures_and_data(tmp_path, capsys, monkeypatch) -> None:
    """No allreduce makes a step shorter than its computing, and none hides more than the ring takes; NetReduce is
    earlier than the ring over slow cards, the more so the fewer samples there are; a run that goes on simulates no
    allreduce again."""
    rows = training.run(out=tmp_path, short=True)
    assert {f.name for f in tmp_path.iterdir()} >= {"training.csv", "training.svg", "training-batch.svg"}
    assert len(list(csv.DictReader((tmp_path / "training.csv").open()))) == len(rows)
    for row in rows:
        assert row.compute <= row.step <= row.compute + row.communication
    gains = {row.batch: row.over_ring for row in rows
             if (row.network, row.scheme, row.card) == ("ResNet-50", "NR", 1.25)}
    assert gains[4] > gains[32] > gains[128] >= 1
    assert gains[4] < 2 * 3 / 4 + 0.01, "the bound of bandwidth for 4 GPUs"
    capsys.readouterr()
    monkeypatch.setattr(training, "draw", lambda *args: [])  # the figures are there already
    assert training.run(out=tmp_path, short=True, resume=True) == rows
    assert "27 simulations, 27 of them done" in capsys.readouterr().out
