# SPDX-License-Identifier: Apache-2.0
"""The traffic of training a GPT model: data parallelism, tensor parallelism, and both with a pipeline.

Sizes of the models are those of the configurations of Ethereal's authors (STyGIANet/astra-sim, acad/base-configs):
every layer allreduces its activations twice on the way forward and twice on the way back, tokens x hidden x 2 bytes
each; an iteration ends with a reduce-scatter of the gradients, 4 bytes a parameter, and an all-gather of the new
parameters, 2 bytes each.  The simulations differ from these files to come closer to a real job:

    NAME      data parallelism.  Machines of 8 GPUs reduce inside themselves; GPU i of every machine then allreduces its
              eighth of a layer's 16-bit gradients with GPU i of all others, layer after layer.
    NAME-tp   tensor parallelism over all hosts, as the files have it, with one group for everything: the four
              allreduces of a layer's activations, one after the other.
    NAME-3d   tensor parallelism over 8 neighbours, a pipeline of 4 stages, data parallelism over the rest; hosts are
              numbered as Megatron-LM numbers ranks, tensor first and pipeline last.  4 micro-batches by 1F1B.

Of all layers, which are alike, only a few are simulated.  Computation is pauses: 2 operations for each parameter and
token forward, 4 backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from netfold.sim.workloads.workload import COLLECTIVES, Workload, beside, halving_doubling

FLOPS: Final = 400e12
"""Operations a second of one GPU in 16-bit numbers, about half of what an H100 has at its best."""


@dataclass(frozen=True)
class Model:
    """The size of a GPT model, from which its training traffic follows."""

    name: str
    layers: int
    hidden: int
    tokens: int
    """Tokens of the micro-batch whose activations are allreduced; for 117M an eighth of the authors' 131,072."""
    vocabulary: int = 50_257

    @property
    def layer_parameters(self) -> int:
        """12 h^2: attention 4 h^2, the two matrices of the MLP 8 h^2."""
        return 12 * self.hidden**2

    @property
    def parameters(self) -> int:
        """Parameters of all layers and of the embedding."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden


MODELS = {m.name: m for m in (Model("GPT-117M", 12, 768, 16_384), Model("GPT-7B", 36, 4096, 4096),
                              Model("GPT-13B", 40, 5120, 4096))}


def data_parallel(hosts: Sequence[int], model: Model, *, collective: str = "halving-doubling", machine: int = 8,
                  tokens: int = 4096, flops: float = FLOPS, layers: int | None = None) -> Workload:
    """One step of data parallelism, layer after layer in backward order.

    A machine has ``machine`` GPUs behind a fast internal network, which reduce among themselves first; GPU i of every
    machine then allreduces its 1/machine of a layer's bf16 gradients with GPU i of all others (one rail each).
    The backward computation of each layer, 4 x parameters x tokens / flops seconds, precedes its collectives.  Nothing
    overlaps, so that the result is a bound for communication, not a forecast.

    layers    number of layers to simulate; all layers are alike
    """
    if len(hosts) % machine:
        raise ValueError(f"data_parallel: {len(hosts)} hosts do not divide into machines of {machine}")
    part = -(-2 * model.layer_parameters // machine)
    layer = beside([COLLECTIVES[collective](hosts[i::machine], part) for i in range(machine)])
    pause = 4 * model.layer_parameters * tokens / flops
    step = _nothing()
    for _ in range(model.layers if layers is None else min(layers, model.layers)):
        step = step.then(layer, gap=pause)
    return step


def tensor_parallel(hosts: Sequence[int], model: Model, *, flops: float = FLOPS, layers: int = 1) -> Workload:
    """Layers forward and back again, each split over all hosts, with an allreduce after attention and after the MLP."""
    each = halving_doubling(hosts, 2 * model.tokens * model.hidden)
    forward = model.layer_parameters * model.tokens / flops / len(hosts)
    step = _nothing()
    for number in range(4 * layers):
        step = step.then(each, gap=forward if number < 2 * layers else 2 * forward)
    return step


def three_dimensional(hosts: Sequence[int], model: Model, *, tensor: int = 8, stages: int = 4, micro_batches: int = 4,
                      tokens: int = 1024, flops: float = FLOPS, layers: int = 1) -> Workload:
    """One step of tensor, pipeline and data parallelism, by the schedule 1F1B.

    Host ``hosts[(stage x replicas + replica) x tensor + part]`` has one part of the layers of one stage of one replica.
    A stage sends activations and gradients to its neighbour part by part, tokens x hidden x 2 bytes from each host.
    Gradients are reduce-scattered and parameters gathered among the replicas of a stage when its last micro-batch is
    through, while other stages may still work.

    tokens   of one micro-batch
    layers   in each stage
    Raises ValueError where the hosts do not divide, or where groups are no powers of two.
    """
    replicas, rest = divmod(len(hosts), tensor * stages)
    if rest or replicas < 2 or tensor < 2 or stages < 1 or micro_batches < 1 or layers < 1:
        raise ValueError(f"three_dimensional: {len(hosts)} hosts for {tensor} parts x {stages} stages; expected at "
                         "least 2 parts, 1 stage, 1 micro-batch and 1 layer, and a multiple of parts x stages, for 2 "
                         "replicas or more")
    graph = _Graph()
    activations = 2 * tokens * model.hidden
    forward = 2 * model.layer_parameters * tokens / flops / tensor / 2  # of half a layer, before an allreduce
    parts = [[[hosts[(stage * replicas + replica) * tensor + part] for part in range(tensor)]
              for replica in range(replicas)] for stage in range(stages)]
    done: list[list[list[int]]] = [[[] for _ in range(replicas)] for _ in range(stages)]
    arrived: dict[tuple[int, int, Pass, int], list[int]] = {}
    todo = [one_forward_one_backward(stage, stages, micro_batches) for stage in range(stages)]
    position = [0] * stages
    while any(position[stage] < len(todo[stage]) for stage in range(stages)):
        for stage in range(stages):  # stages in turn: each does the next thing whose input has been sent
            while position[stage] < len(todo[stage]):
                way, batch = todo[stage][position[stage]]
                first = stage == 0 if way == "forward" else stage == stages - 1
                if not first and (stage, 0, way, batch) not in arrived:
                    break
                position[stage] += 1
                to = stage + (1 if way == "forward" else -1)
                seconds = forward if way == "forward" else 2 * forward
                begin = graph.steps
                for replica, group in enumerate(parts[stage]):
                    graph.steps = begin  # replicas do the same at the same time: planned together
                    after = done[stage][replica] + arrived.pop((stage, replica, way, batch), [])
                    for _ in range(2 * layers):
                        after = graph.add(halving_doubling(group, activations), [graph.pause(seconds, after)])
                    done[stage][replica] = after
                    if 0 <= to < stages:
                        arrived[to, replica, way, batch] = [graph.flow(a, b, activations, after)
                                                            for a, b in zip(group, parts[to][replica], strict=True)]
                    graph.steps += 1
    held = layers * model.layer_parameters // tensor
    for stage in range(stages):
        begin = graph.steps
        for part in range(tensor):
            graph.steps = begin
            group = [parts[stage][replica][part] for replica in range(replicas)]
            ends = dict(zip(group, done[stage], strict=True))
            graph.add(halving_doubling(group, 4 * held, gathered=2 * held), ends)
    return graph.workload()


Pass = Literal["forward", "backward"]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[tuple[Pass, int]]:
    """The work of one stage of a pipeline, in order: forward passes until the last stage is busy, then one backward and
    one forward in turn, then the remaining backward passes (PipeDream's 1F1B, with a flush)."""
    ahead = min(stages - 1 - stage, micro_batches)
    order: list[tuple[Pass, int]] = [("forward", batch) for batch in range(ahead)]
    for batch in range(micro_batches):
        if ahead + batch < micro_batches:
            order.append(("forward", ahead + batch))
        order.append(("backward", batch))
    return order


class _Graph:
    """Puts workloads one behind the other by tasks, where `Workload.then` would have all of one end before the next."""

    def __init__(self) -> None:
        self.steps = 0
        """Number of the next step."""
        self._parts: list[Workload] = []
        self._waits: list[NDArray[np.int64]] = []
        self._count = 0

    def pause(self, seconds: float, after: Sequence[int]) -> int:
        """A pause after tasks; its number."""
        return self._one(0, 0, 0, seconds, -1, after)

    def flow(self, source: int, destination: int, size: int, after: Sequence[int]) -> int:
        """A flow of the next step, which the caller counts on; its number."""
        return self._one(source, destination, size, 0.0, self.steps, after)

    def add(self, work: Workload, after: Sequence[int] | dict[int, list[int]]) -> list[int]:
        """A workload after tasks, or whose first flows wait for those of their two hosts; the numbers of its last."""
        begin = self._place(work)
        everyone = np.arange(len(work))
        for task in np.setdiff1d(everyone, work.waits[:, 1]).tolist():
            if isinstance(after, dict):
                before = after[int(work.source[task])] + after[int(work.destination[task])]
            else:
                before = list(after)
            self._wait(before, begin + task)
        self.steps += int(work.step.max(initial=-1)) + 1
        return [begin + int(task) for task in np.setdiff1d(everyone, work.waits[:, 0])]

    def workload(self) -> Workload:
        """Everything so far."""
        parts = self._parts
        return Workload(
            source=np.concatenate([part.source for part in parts]),
            destination=np.concatenate([part.destination for part in parts]),
            size=np.concatenate([part.size for part in parts]),
            gap=np.concatenate([part.gap for part in parts]),
            step=np.concatenate([part.step for part in parts]),
            waits=np.concatenate(self._waits))

    def _one(self, source: int, destination: int, size: int, gap: float, step: int, after: Sequence[int]) -> int:
        source_, destination_, size_, step_ = (np.array([value], np.int64)
                                               for value in (source, destination, size, step - self.steps))
        number = self._place(Workload(source_, destination_, size_, np.array([gap]), step_,
                                      np.zeros((0, 2), np.int64)))
        self._wait(after, number)
        return number

    def _place(self, work: Workload) -> int:
        """Append a workload, whose steps follow those before; the number of its first task."""
        begin = self._count
        self._parts.append(replace(work, step=work.step + self.steps))
        self._waits.append(work.waits + begin)
        self._count += len(work)
        return begin

    def _wait(self, before: Sequence[int], task: int) -> None:
        self._waits.append(np.array([(other, task) for other in before], np.int64).reshape(-1, 2))


def _nothing() -> Workload:
    none = np.zeros(0, np.int64)
    return Workload(none, none, none, np.zeros(0), none, none.reshape(0, 2))


TRAINING: dict[str, Callable[[Sequence[int]], Workload]] = {
    **{name: partial(data_parallel, model=model, layers=2) for name, model in MODELS.items()},
    **{f"{name}-tp": partial(tensor_parallel, model=model) for name, model in MODELS.items()},
    **{f"{name}-3d": partial(three_dimensional, model=model) for name, model in MODELS.items()},
}
"""Training steps by name, among the hosts given: two layers of data parallelism, one of tensor parallelism, one in
each stage of a pipeline."""
KINDS = {"": "two layers, data parallel", "tp": "one layer, tensor parallel",
         "3d": "tensor x pipeline x data parallel"}
"""The meaning of the last part of a training step's name."""


def kind(name: str) -> str:
    """The key in `KINDS` of a training step's name."""
    return name.rpartition("-")[2] if name not in MODELS else ""
