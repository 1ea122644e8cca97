# SPDX-License-Identifier: Apache-2.0
"""`netfold bench train`: its options, its arithmetic, what it takes for wrong, and a small run of all of it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.bench.commands import train_report
from netfold.bench.options.training import TrainOptions
from netfold.bench.ranks.train_command import TrainCommand, TrainResult
from netfold.bench.ranks.trainers import JoinedOperations
from netfold.cli.app import app
from netfold.topo.processes.failures import WrongData
from support.sandboxes.topo import in_sandbox

DEFAULTS: dict[str, Any] = {"backends": "gloo,netfold", "lane_bits": "32,16"}
RESULT = TrainResult(
    parameters=10, seconds=[0.1], compute=0.01, reduce=0.05, losses=[2.0, 1.0], accuracy=0.5, digest="d", cpu=0.1,
    machine_busy=0.5, retransmissions=0, path="innet",
)


def test_lanes_are_those_of_what_narrows() -> None:
    """Each width is a backend of its own where NetFold narrows gradients, and gloo is there once."""
    spec = TrainOptions(**DEFAULTS)
    assert spec.ways == (("gloo", 32), ("netfold", 32), ("netfold", 16))
    assert (spec.width, spec.batch) == (1024, 8)
    spec = TrainOptions(**{**DEFAULTS, "model": "transformer", "backends": "fsdp,fsdp-gloo@fabric", "batch": 3})
    assert spec.ways == (("fsdp", 32), ("fsdp-gloo@fabric", 32))
    assert (spec.width, spec.batch) == (256, 3)
    assert [TrainOptions(topo=topo).rails for topo in ("leafspine,1,0,4", "dual,leafspine,1,0,4")] == [1, 2]


@pytest.mark.parametrize(("options", "says"), [
    ({"model": "mlp"}, "--model mlp: expected one of cnn, transformer"),
    ({"backends": "gloo,nccl"}, "--backends nccl: expected some of gloo, netfold, hook"),
    ({"backends": "netfold@fabric"}, "--backends netfold@fabric: expected some of"),
    ({"backends": ","}, "--backends ,: expected at least one"),
    ({"lane_bits": "32,12"}, "--lane-bits 12: expected some of 32, 16, 8"),
    ({"lane_bits": "wide"}, "--lane-bits wide"),
    ({"rate": "fast"}, "--rate fast: "),
    ({"topo": "dual,leafspine,1,0,4", "rate": "1gbit,2gbit"}, "--rate 1gbit,2gbit: expected one rate of all links"),
    ({"loss": 0.01}, "--loss 0.01: expected 0, as the plain bridge that gloo runs on loses nothing; or gloo@fabric"),
    ({"topo": "triple,leafspine,1,0,4"}, "--topo triple,leafspine,1,0,4: expected 1 or 2 planes"),
    ({"backends": "hsdp", "ranks": 3}, "--ranks 3: expected an even number: hsdp has two replicas"),
    ({"topo": "dual,leafspine,1,0,4", "backends": "fsdp2-gloo@fabric"}, "would use one of them; or fsdp2-gloo"),
    ({"backends": "fsdp2@fabric"}, "--backends fsdp2@fabric: expected some of"),
    ({"beside": "hook"}, "--beside hook: expected one of --backends, in 32-bit lanes: gloo, netfold"),
    ({"beside": "netfold", "lane_bits": "16"}, "--beside netfold: expected one of --backends, in 32-bit lanes: gloo"),
    ({"layers": 0}, "--layers 0: expected 1 or more"),
    ({"layer_seconds": -1.0}, "--layer-seconds -1: expected 0 or more"),
    ({"layer_seconds": float("inf")}, "--layer-seconds inf: expected 0 or more, and a finite number"),
    ({"bucket_mb": float("inf")}, "--bucket-mb inf: expected more than 0, and a finite number"),
    ({"bucket_mb": float("nan")}, "--bucket-mb nan: expected more than 0, and a finite number"),
    ({"steps": 0}, "--steps 0: expected 1 or more"),
    ({"model": "transformer", "width": 30}, "--width 30: expected a multiple of 8"),
    ({"timeout": 0.0}, "--timeout 0: expected more than 0"),
])
def test_words_that_cannot_be_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    """An option with a wrong value is refused, by its name, before anything is started."""
    with pytest.raises(ValueError, match=says):
        TrainOptions(**{**DEFAULTS, **options})


def test_the_link_is_charged_what_a_step_must_move() -> None:
    """Folded gradients are M, less in narrow lanes; gloo's 2 (N-1)/N M; sharded training gathers twice, and scatters
    after that or beside the second time."""
    assert train_report.least_bytes("netfold", 8, 800, 32) == train_report.least_bytes("priority", 8, 800, 32) == 800
    assert train_report.least_bytes("hook", 8, 800, 16) == 400
    assert train_report.least_bytes("gloo", 8, 800, 32) == 1400
    for way in ("fsdp", "fsdp-gloo", "fsdp2", "fsdp2-gloo", "fsdp2-prefetch"):
        assert train_report.least_bytes(way, 8, 800, 32) == 2100
    assert train_report.least_bytes("fsdp2-together", 8, 800, 32) == 1500
    for way in ("hsdp", "hsdp-gloo"):
        assert train_report.least_bytes(way, 8, 800, 32) == 2000


def test_wrong_training_raises() -> None:
    """Losses beyond the bound of the lanes, losses that are no numbers, and ranks with unlike parameters are wrong
    data."""
    alone = msgspec.structs.replace(RESULT, digest="another")
    off = msgspec.structs.replace(RESULT, losses=[2.0, 1.03])
    assert train_report.check("netfold", 32, [RESULT, RESULT], alone) == 0
    assert train_report.check("netfold", 16, [RESULT, off], alone) == pytest.approx(0.005)
    with pytest.raises(WrongData, match=r"the mean loss is 1\.515000, that of a single process 1\.500000"):
        train_report.check("netfold", 32, [off, off], alone)
    with pytest.raises(WrongData, match="2 kinds of parameters"):
        train_report.check("netfold", 32, [RESULT, alone], alone)
    with pytest.raises(WrongData, match="nan"):
        train_report.check("netfold", 8, [msgspec.structs.replace(RESULT, losses=[float("nan")])], alone)


def test_ratios_are_those_of_each_round() -> None:
    """A round in which the machine was twice as slow leaves the ratio to gloo as it is."""
    def turn(seconds: float) -> train_report.Turn:
        return train_report.Turn([msgspec.structs.replace(RESULT, seconds=[seconds])], 0.0, 0.0)

    row = train_report.row_of(
        TrainOptions(**DEFAULTS), "netfold", 32, [turn(0.1), turn(0.2)], "gloo", [turn(0.2), turn(0.4)], RESULT
    )
    assert (row.beside, row.times_beside, row.times_beside_least, row.times_beside_most) == ("gloo", 2.0, 2.0, 2.0)
    assert row.step_seconds == pytest.approx(0.15)
    assert row.samples_per_s == pytest.approx(32 / 0.15)


def test_operations_that_have_gone_together_are_counted_once() -> None:
    """Those before the first look are none of this turn's, and each look counts what is new."""
    records = [SimpleNamespace(number=1, name="together"), SimpleNamespace(number=2, name="all_gather")]
    joined = JoinedOperations(SimpleNamespace(flight=lambda: list(records)))
    assert joined() == 0
    records += [SimpleNamespace(number=3, name="together"), SimpleNamespace(number=4, name="together")]
    assert joined() == 2
    assert joined() == 0


@pytest.mark.needs("torch")
@pytest.mark.parametrize("model", ["cnn", "transformer"])
@pytest.mark.slow
def test_models_learn_what_is_generated(model: str) -> None:
    """The loss of a single process falls, the same way to the last bit every time."""
    from netfold.bench.ranks.train import alone

    command = TrainCommand("gloo", model, 64, 8, 2, 40, 1, seed=1, rate=0.1)
    found = alone(command)
    assert statistics.fmean(found.losses[-8:]) < statistics.fmean(found.losses[:8]) - 0.05
    again = alone(command)
    assert (again.losses, again.digest, again.accuracy) == (found.losses, found.digest, found.accuracy)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_sleeping_layers_compute_the_same(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer sleeps once forward and once backward, and neither loss nor gradients change."""
    import torch

    from netfold.bench.ranks import models

    slept: list[float] = []
    monkeypatch.setattr(models.time, "sleep", slept.append)
    found = []
    for task in (models.MODELS[model](32, 3, 1), models.sleeping(models.MODELS[model](32, 3, 1), 0.25)):
        assert slept == []
        loss = task.loss(task.model(task.inputs[:2]), task.targets[:2])
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in task.model.parameters())])
    assert slept == [0.25] * 6
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.needs("torch")
@pytest.mark.timeout(150)
@pytest.mark.usefixtures("torch_in_forks")
@in_sandbox(timeout=140)
def test_a_small_run_measures_every_backend(tmp_path: Path) -> None:
    """Every backend has a row with right losses, by the path that it should take."""
    out = tmp_path / "rows.json"
    done = CliRunner().invoke(app, [
        "bench", "train", "--ranks", "2", "--topo", "leafspine,1,0,2", "--width", "64", "--batch", "2", "--steps", "2",
        "--rounds", "1", "--lane-bits", "16", "--backends",
        "gloo,netfold,fsdp,hsdp,fsdp2-gloo@fabric,fsdp2-together,priority", "--rows", str(out),
    ])
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())
    assert [(row["backend"], row["lane_bits"], row["network"]) for row in rows] == [
        ("gloo", 32, "bridge"), ("netfold", 16, "softswitch"), ("fsdp", 32, "softswitch"),
        ("hsdp", 32, "softswitch"), ("fsdp2-gloo@fabric", 32, "softswitch"), ("fsdp2-together", 32, "softswitch"),
        ("priority", 16, "softswitch")]
    for row in rows:
        assert (row["model"], row["ranks"], row["batch"]) == ("cnn", 2, 4)
        assert row["step_seconds"] > 0
        assert row["samples_per_s"] == pytest.approx(4 / row["step_seconds"])
        assert row["final_loss"] == pytest.approx(row["final_loss_alone"], rel=0.02)
        assert row["loss_difference"] <= 0.02
        assert row["wait_seconds"] >= 0
        by_gloo = row["backend"] in ("gloo", "fsdp2-gloo@fabric")
        # the calls of the others may go between the hosts, where that is cheaper
        if row["backend"] not in ("fsdp", "hsdp", "fsdp2-together"):
            assert row["path"].startswith("gloo" if by_gloo else "innet")
