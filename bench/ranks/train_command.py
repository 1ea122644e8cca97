# SPDX-License-Identifier: Apache-2.0
"""The messages of `netfold bench train` and its ranks: each turn a `TrainCommand`, which a `TrainResult` answers."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PROBES: Final = 3
"""Steps without communication, and reductions without a step, that are timed after the training."""
Way = Literal[
    "gloo", "netfold", "hook", "fsdp", "fsdp-gloo", "fsdp2", "fsdp2-gloo", "fsdp2-prefetch", "fsdp2-together",
    "hsdp", "hsdp-gloo", "priority", "priority-arrival",
]
"""How gradients are reduced:

    gloo, netfold     DistributedDataParallel over that backend
    hook              the same over gloo, gradients by NetFold's communication hook
    fsdp, fsdp-gloo   FullyShardedDataParallel (FSDP1) over netfold or gloo
    fsdp2, fsdp2-gloo  fully_shard (FSDP2) over netfold or gloo, as it is by default
    fsdp2-prefetch    over netfold, the next layer's all-gather under way while a layer computes backward
    fsdp2-together    the same, and a layer's reduce-scatter joins that all-gather
    hsdp, hsdp-gloo   the same as fsdp2 over a mesh of two replicas, each of which is sharded over half of the ranks
    priority          PriorityOptimizer
    priority-arrival  PriorityOptimizer with buckets in the order in which backward makes them, last layers first
"""


class TrainCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of training: the model, its data, the steps, and the way in which gradients are reduced.  All ranks get
    the same command."""

    way: Way
    model: str
    width: int
    batch: int
    """Samples of each rank in a step."""
    world: int
    steps: int
    warmup: int
    """Steps before those that are timed; they train as well."""
    seed: int
    lane_bits: int = 32
    rate: float = 0.05
    """The learning rate, of SGD with a momentum of 0.9."""
    bucket_mb: float = 25.0
    port: int = 29500
    """The TCP port of torch's store, and part of the job's name: another one for each command."""
    timeout: float = 60.0
    layers: int = 2
    """Layers of the model that are ``width`` wide."""
    layer_seconds: float = 0.0
    """Seconds that each of these layers sleeps forward, and again backward, as if an accelerator computed it."""
    record: str = ""
    """The file in which each rank records its timed steps for `netfold what-if`; empty: none."""


class TrainResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurements of one rank.  Times are in seconds."""

    parameters: int
    seconds: list[float]
    """Seconds of each timed step."""
    compute: float
    """Seconds of a step without communication, while the other ranks compute as well."""
    reduce: float
    """Seconds of all the communication of a step, without the computing: 0 in a single process."""
    losses: list[float]
    """The losses of this rank's part of each step's batch, warm-up included."""
    accuracy: float
    digest: str
    """A digest of the parameters at the end, which all ranks must have alike."""
    cpu: float
    """Processor time of this rank in a timed step."""
    machine_busy: float
    retransmissions: int
    path: str
    """The path that carried the gradients, in the words of the flight recorder."""
    joined: float = 0.0
    """Reduce-scatters of a timed step that have joined an all-gather."""
