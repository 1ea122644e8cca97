# SPDX-License-Identifier: Apache-2.0
"""The figures of `netfold bench train`: what a turn of all ranks has to be like, rows, table and charts."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from netfold.bench.harness.limits import Limit, limited_by, machine
from netfold.bench.options.training import MODELS, ON_FABRIC, PLAIN, TrainOptions
from netfold.bench.ranks.train_command import TrainResult
from netfold.fabric.graph import bits_per_second
from netfold.topo.processes.failures import WrongData

TOKENS: Final = 32
"""Symbols of a text (`ranks.models.LENGTH`)."""
BOUNDS: Final[Mapping[int, float]] = {32: 1e-3, 16: 0.02, 8: 0.05}
"""Lanes -> how far the mean loss over all steps may be from that of a single process, relative."""


class TrainRow(msgspec.Struct, frozen=True):
    """One backend.  Times are in seconds, and medians over rounds; a round's is the median of its steps', and a step's
    that of its slowest rank."""

    model: str
    backend: str
    network: str
    """The network it ran on: softswitch, bmv2, or bridge."""
    ranks: int
    rails: int
    lane_bits: int
    parameters: int
    layers: int
    layer_seconds: float
    """Seconds that each layer sleeps in each pass."""
    batch: int
    """Samples of all ranks in a step."""
    rate: str
    """Rate of the links in tc's units; empty: not shaped."""
    loss: float
    """Share of packets lost on every link of the fabric; the bridge loses none."""
    step_seconds: float
    step_seconds_best: float
    step_seconds_worst: float
    samples_per_s: float
    """Images or tokens, as ``unit`` says."""
    unit: str
    beside: str
    """The backend that the ratios are to; empty where it was not measured."""
    times_beside: float | None
    """Median over rounds of that backend's step over this one in the same round."""
    times_beside_least: float | None
    times_beside_most: float | None
    compute_seconds: float
    reduce_seconds: float
    wait_seconds: float
    final_loss: float
    """Mean over the ranks at the last step."""
    final_loss_alone: float
    """The same of the single process."""
    loss_difference: float
    """Relative difference of the mean loss over all steps from the single process's, the largest of all rounds."""
    accuracy: float
    accuracy_alone: float
    cpu_seconds: float
    """Processor time of all ranks in a step."""
    switch_cpu_seconds: float
    """Processor time of all switch processes in a step; 0 on the bridge."""
    machine_busy: float
    link_fraction: float
    """Part of a link's rate that the least bytes of a step, moved in a step's time, would take; 0 without a rate."""
    reduce_link_fraction: float
    """The same for the communication by itself."""
    limited_by: Limit
    """The link, where the communication by itself is longer than computing and uses nearly all of it."""
    retransmissions: int
    joined: float
    """Reduce-scatters of a step that have joined an all-gather, by the median over the rounds."""
    path: str
    steps: int
    rounds: int
    machine: str


@dataclass(frozen=True)
class Turn:
    """One backend in one round."""

    results: Sequence[TrainResult]
    switch_cpu: float
    difference: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        together = zip(*(result.seconds for result in self.results), strict=True)
        slowest: list[float] = [max(seconds) for seconds in together]
        return statistics.median(slowest)

    def median(self, field: str) -> float:
        """The median over the ranks of one of their figures."""
        return statistics.median(float(getattr(result, field)) for result in self.results)


def least_bytes(way: str, ranks: int, nbytes: int, lane_bits: int) -> float:
    """Payload bytes that each host's link must carry in its busier direction in a step of ``nbytes`` of gradients, its
    calls one after another.

    An allreduce folds M, and moves 2 (N-1)/N M between hosts.  Sharded, a host receives (N-1)/N M in each of two
    all-gathers, and sends as much in the reduce-scatter, whoever carries them.  Where that goes at the same time as an
    all-gather, to which a host sends M/N, both send, and receive, M.  With two replicas the same happens in each, and
    two hosts reduce each shard.
    """
    rest = (ranks - 1) / ranks * nbytes
    if way == "fsdp2-together":
        return rest + nbytes
    if way.startswith("fsdp"):
        return 3 * rest
    if way.startswith("hsdp"):  # half of the ranks have a replica; two of them exchange a shard, folded or not
        shards = ranks // 2
        return (3 * (shards - 1) + 1) / shards * nbytes
    return 2 * rest if way == "gloo" else nbytes * lane_bits / 32


def check(name: str, bits: int, results: Sequence[TrainResult], alone: TrainResult) -> float:
    """How far the ranks' mean loss over all steps is from the single process's, relative.

    Raises WrongData where that is beyond the bound of these lanes, and where ranks have unlike parameters.
    """
    digests = {result.digest for result in results}
    if len(digests) != 1:
        raise WrongData(f"{name}: the ranks end with {len(digests)} kinds of parameters: expected the same bits on all")
    right = statistics.fmean(alone.losses)
    got = statistics.fmean(statistics.fmean(result.losses) for result in results)
    difference = abs(got - right) / right
    if not difference <= BOUNDS[bits] or not math.isfinite(difference):
        raise WrongData(f"{name}: the mean loss is {got:.6f}, that of a single process {right:.6f}: expected at most "
                        f"{BOUNDS[bits]:.1%} of a difference in {bits}-bit lanes")
    return difference


def row_of(
    options: TrainOptions, name: str, bits: int, turns: Sequence[Turn], beside: str, others: Sequence[Turn],
    alone: TrainResult,
) -> TrainRow:
    """The row of one backend from its turns.

    beside  the backend whose turns in the same rounds are ``others``; empty, with none: no ratios
    """

    def median(field: str) -> float:
        return statistics.median(turn.median(field) for turn in turns)

    steps = sorted(turn.step for turn in turns)
    step, compute, reduce = statistics.median(steps), median("compute"), median("reduce")
    on_fabric, unit = network_of(name) == "fabric", MODELS[options.model][2]
    batch, parameters = options.batch * options.ranks, turns[0].results[0].parameters
    ratios = [one.step / turn.step for one, turn in zip(others, turns, strict=True)] if others else []
    way = name.removesuffix(ON_FABRIC)
    planes = options.rails if way not in PLAIN else 1
    least = least_bytes(way, options.ranks, 4 * parameters, bits) / planes
    link, link_alone = (
        least * 8 / seconds / bits_per_second(options.rate) if options.link_rate else 0.0 for seconds in (step, reduce)
    )
    busy = median("machine_busy")
    results = turns[-1].results
    return TrainRow(
        model=options.model, backend=name, network=options.engine if on_fabric else "bridge", ranks=options.ranks,
        rails=planes, lane_bits=bits, parameters=parameters, layers=options.layers, layer_seconds=options.layer_seconds,
        batch=batch, rate=options.link_rate or "", loss=options.loss if on_fabric else 0.0, step_seconds=step,
        step_seconds_best=steps[0], step_seconds_worst=steps[-1],
        samples_per_s=batch * (TOKENS if unit == "tokens" else 1) / step, unit=unit,
        beside=beside, times_beside=statistics.median(ratios) if ratios else None,
        times_beside_least=min(ratios, default=None), times_beside_most=max(ratios, default=None),
        compute_seconds=compute, reduce_seconds=reduce, wait_seconds=max(0.0, step - compute),
        final_loss=statistics.fmean(result.losses[-1] for result in results),
        final_loss_alone=alone.losses[-1], loss_difference=max(turn.difference for turn in turns),
        accuracy=results[0].accuracy, accuracy_alone=alone.accuracy,
        cpu_seconds=statistics.median(sum(result.cpu for result in turn.results) for turn in turns),
        switch_cpu_seconds=statistics.median(turn.switch_cpu for turn in turns), machine_busy=busy,
        link_fraction=link, reduce_link_fraction=link_alone,
        limited_by=limited_by(link_alone if reduce > compute else link, busy),
        retransmissions=sum(result.retransmissions for turn in turns for result in turn.results),
        joined=median("joined"), path=results[0].path, steps=options.steps, rounds=options.rounds, machine=machine(),
    )


def show(options: TrainOptions, rows: Sequence[TrainRow], echo: Callable[[str], None]) -> None:
    first = rows[0]
    echo(
        f"# {options.model} of {first.parameters} parameters in {options.layers} layers"
        + (f" that sleep {options.layer_seconds * 1e3:g} ms each way" if options.layer_seconds else "")
        + f", {first.batch} samples a step; {options.ranks} ranks; fabric {options.in_words}, the bridge's too"
        + (f", the fabric's losing {options.loss:.1%}" if options.loss else "")
        + f"; medians of {options.rounds} interleaved rounds of "
        f"{options.steps} steps; load {os.getloadavg()[0]:.1f}"
    )
    echo(f"# {'backend':<18} {'on':<10} {'ms/step':>8} {'best..worst':>15} {first.unit + '/s':>9} {'compute':>7} "
         f"{'wait':>6} {'reduce':>6} {'link':>5} {'busy':>5} {'limit':<9} {'loss':>7} {'alone':>7} {'off':>7} "
         f"{'right':>6} {'joined':>6} x {first.beside}".removesuffix(" x "))
    for row in rows:
        spread = f"{row.step_seconds_best * 1e3:.0f}..{row.step_seconds_worst * 1e3:.0f}"
        beside = "" if row.times_beside is None else (
            f"{row.times_beside:.2f} ({row.times_beside_least:.2f}..{row.times_beside_most:.2f})")
        name = label(row.backend, row.lane_bits)
        echo(f"  {name:<18} {row.network:<10} {row.step_seconds * 1e3:>8.1f} {spread:>15} "
             f"{row.samples_per_s:>9.1f} {row.compute_seconds * 1e3:>7.1f} {row.wait_seconds * 1e3:>6.0f} "
             f"{row.reduce_seconds * 1e3:>6.0f} {row.reduce_link_fraction:>5.0%} {row.machine_busy:>5.0%} "
             f"{row.limited_by:<9} {row.final_loss:>7.4f} {row.final_loss_alone:>7.4f} {row.loss_difference:>7.1e} "
             f"{row.accuracy:>6.1%} {row.joined:>6g} {beside}")


def draw(rows: Sequence[TrainRow], figure: Path, echo: Callable[[str], None]) -> None:
    """Draw rates, what a step consists of, and losses.  Says where matplotlib is missing."""
    from netfold.plots.charts import BarChart, PlotsMissing, bar_charts

    first = rows[0]
    names = [label(row.backend, row.lane_bits) for row in rows]
    where = f"{first.ranks} ranks, links {first.rate or 'not shaped'}"
    charts = [
        BarChart(f"How fast {first.model} trains, {where}", {
            name: {name: row.samples_per_s} for name, row in zip(names, rows, strict=True)}, f"{first.unit}/s"),
        BarChart("What a step consists of, and all communication by itself", {
            name: {"compute": row.compute_seconds * 1e3, "wait": row.wait_seconds * 1e3,
                   "reduce": row.reduce_seconds * 1e3} for name, row in zip(names, rows, strict=True)}, "time, ms"),
        BarChart("How far the loss comes, beside a single process", {
            name: {"ranks": row.final_loss, "alone": row.final_loss_alone}
            for name, row in zip(names, rows, strict=True)}, "final loss"),
    ]
    try:
        drawn = bar_charts(figure, f"What training takes by each backend: {first.machine}", charts)
    except PlotsMissing as error:
        echo(f"# no figure: {error}")
    else:
        echo(f"# {', '.join(map(str, drawn))}")


def label(name: str, bits: int) -> str:
    return name if bits == 32 else f"{name}, {bits} bit"


def network_of(name: str) -> str:
    """The group of ranks that a backend runs on."""
    return "bridge" if name in PLAIN else "fabric"
