# SPDX-License-Identifier: Apache-2.0
"""Data-parallel SGD on handwritten digits: the model, and the program that one rank of the demo runs.

    python -m netfold.demo.train '{"data": "digits.npz", "steps": 100, ...}'        # RANK, WORLD_SIZE, NETFOLD_* set

Every rank holds the same weights, computes the gradient of its share of the batch, and adds it to the others' by an
allreduce through the fabric; then all make the same update.  The loss is summed as one more element of the gradient.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.topo.processes.rank_program import print_message

if TYPE_CHECKING:
    from netfold.host.api.communicator import Communicator

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
LaneBits = Literal[32, 16, 8]
Rail = Literal["innet", "verbs"]

TEST_SHARE: Final = 0.2
CLASSES: Final = 10


class TrainingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The training; the same on every rank."""

    data: str
    """File that `save_digits` wrote."""
    steps: int
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers."""
    batch: int = 256
    """Samples in a step, over all ranks."""
    rate: float = 0.1
    """Learning rate."""
    momentum: float = 0.9
    seed: int = 0
    weights: str = ""
    """File for the final weights of rank 0."""
    rail: Rail = "innet"
    """The rail for the gradients."""
    timeout: float = 10.0
    """Seconds that a rank waits for the others."""
    lane_bits: LaneBits = 32
    """Bits of an element of the gradient in a packet."""
    feedback: bool = False
    """True if the rounding error of narrow lanes is added to the next gradient (error feedback)."""


class TrainingStep(msgspec.Struct, frozen=True, tag="step"):
    """Rank 0 reports that a step is done."""

    step: int
    loss: float
    """Mean loss of the whole batch, before the update."""
    seconds: float
    """Seconds since the training began."""


class TreeCounts(msgspec.Struct, frozen=True):
    """Counters of one tree on this rank."""

    bytes_reduced: int
    packets_sent: int
    retransmissions: int


class TrainingResult(msgspec.Struct, frozen=True, tag="result"):
    """A rank's report at the end."""

    rank: int
    weights: str
    """SHA-256 of the final weights' bytes."""
    loss: float
    accuracy: float
    """Share of the test set that is classified correctly."""
    seconds: float
    """Duration of the training."""
    reduce_seconds: float
    """Seconds of it inside allreduce."""
    gradient_bytes: int
    """Bytes that each rank hands to allreduce in one step."""
    rail: str
    explain: str
    packets_sent: int
    retransmissions: int
    trees: dict[str, TreeCounts]


class Digits(msgspec.Struct, frozen=True):
    """Images [samples, pixels] with values in 0..1, and their labels [samples]."""

    x: Floats
    y: Labels
    test_x: Floats
    test_y: Labels


def save_digits(path: Path) -> None:
    """Write the digits that scikit-learn brings (1797 images of 8 x 8) to a file that ranks load quickly.  Its own
    file is read, since an import of scikit-learn takes a second of a processor.

    Raises ModuleNotFoundError without scikit-learn, OSError where its file is not where it was.
    """
    import gzip
    from importlib.util import find_spec

    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("the digits are scikit-learn's, which is not installed: pip install scikit-learn")
    with gzip.open(Path(found.submodule_search_locations[0], "datasets/data/digits.csv.gz")) as file:
        rows = np.loadtxt(file, np.int64, delimiter=",")
    np.savez(path, x=(rows[:, :-1] / 16.0).astype(np.float32), y=rows[:, -1])


def load_digits(path: Path) -> Digits:
    """Load what `save_digits` wrote, always with the same split into training and test set."""
    with np.load(path) as file:
        x, y = file["x"], file["y"]
    order = np.random.default_rng(0).permutation(len(x))
    test = round(len(x) * TEST_SHARE)
    return Digits(x[order[test:]], y[order[test:]], x[order[:test]], y[order[:test]])


class Mlp:
    """A perceptron with ReLU layers and a softmax; all its weights are views of one flat vector."""

    def __init__(self, sizes: tuple[int, ...], seed: int) -> None:
        shapes = [(a, b) for a, b in pairwise(sizes)]
        self.weights: Floats = np.zeros(sum(a * b + b for a, b in shapes), np.float32)
        self._layers = _views(self.weights, shapes)
        self._shapes = shapes
        rng = np.random.default_rng(seed)
        for matrix, _ in self._layers:
            matrix[...] = rng.standard_normal(matrix.shape, np.float32) * np.sqrt(2 / matrix.shape[0])

    def gradient(self, x: Floats, y: Labels, out: Floats) -> float:
        """Return the sum (not the mean) of the samples' losses and write its gradient to ``out`` [weights]."""
        activations = [x]
        for matrix, bias in self._layers[:-1]:
            activations.append(np.maximum(activations[-1] @ matrix + bias, 0))
        logits = activations[-1] @ self._layers[-1][0] + self._layers[-1][1]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        at = np.arange(len(y))
        loss = -float(np.log(np.maximum(chances[at, y], 1e-30)).sum())
        error = chances
        error[at, y] -= 1
        gradients = _views(out, self._shapes)
        for layer in reversed(range(len(self._layers))):
            np.matmul(activations[layer].T, error, out=gradients[layer][0])
            np.sum(error, axis=0, out=gradients[layer][1])
            if layer:
                error = error @ self._layers[layer][0].T
                error *= activations[layer] > 0
        return loss

    def accuracy(self, x: Floats, y: Labels) -> float:
        """Share of the samples that are classified correctly."""
        for matrix, bias in self._layers[:-1]:
            x = np.maximum(x @ matrix + bias, 0)
        matrix, bias = self._layers[-1]
        return float(np.mean(np.argmax(x @ matrix + bias, axis=1) == y))


def _views(flat: Floats, shapes: list[tuple[int, int]]) -> list[tuple[Floats, Floats]]:
    views, at = [], 0
    for rows, columns in shapes:
        end = at + rows * columns
        views.append((flat[at:end].reshape(rows, columns), flat[end : end + columns]))
        at = end + columns
    return views


class Trainer:
    """The training of one rank; with ``world`` 1 and no communicator, the whole training."""

    def __init__(self, spec: TrainingSpec, digits: Digits, rank: int, world: int, comm: Communicator | None) -> None:
        self.spec, self.digits, self.comm = spec, digits, comm
        self.rank, self.world = rank, world
        self.model = Mlp((digits.x.shape[1], *spec.hidden, CLASSES), spec.seed)
        self.buffer: Floats = np.zeros(len(self.model.weights) + 1, np.float32)
        """The gradient followed by the loss, which allreduce sums."""
        self.reduce_seconds = 0.0
        self._residual = np.zeros(len(self.model.weights), np.float32) if spec.feedback else None
        self._velocity = np.zeros_like(self.model.weights)
        self._rng = np.random.default_rng(spec.seed)
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    def step(self) -> float:
        """Do one update and return the mean loss of the batch before it."""
        batch = self.next_batch()
        mine = batch[self.rank :: self.world]
        gradient = self.buffer[:-1]
        self.buffer[-1] = self.model.gradient(self.digits.x[mine], self.digits.y[mine], gradient)
        if self.comm is not None:
            start = time.perf_counter()
            if self.spec.lane_bits == 32:
                self.comm.allreduce(self.buffer, out=self.buffer)
            else:  # the loss is summed apart: it is far larger than the gradients, whose scale it would set
                self.comm.allreduce(gradient, out=gradient, lane_bits=self.spec.lane_bits, feedback=self._residual)
                self.comm.allreduce(self.buffer[-1:], out=self.buffer[-1:], lane_bits=32)
            self.reduce_seconds += time.perf_counter() - start
        self._velocity *= self.spec.momentum
        self._velocity -= gradient * np.float32(self.spec.rate / len(batch))
        self.model.weights += self._velocity
        return float(self.buffer[-1]) / len(batch)

    def accuracy(self) -> float:
        """Share of the test set that is classified correctly."""
        return self.model.accuracy(self.digits.test_x, self.digits.test_y)

    def next_batch(self) -> NDArray[np.int64]:
        """Indices of the next batch, the same on every rank."""
        if len(self._order) < self.spec.batch:
            self._order = np.concatenate([self._order, self._rng.permutation(len(self.digits.x))])
        batch, self._order = self._order[: self.spec.batch], self._order[self.spec.batch :]
        return batch


def gradient_elements(spec: TrainingSpec) -> int:
    """Elements that each rank hands to allreduce in one step: a gradient, and the loss."""
    digits = load_digits(Path(spec.data))
    return len(Mlp((digits.x.shape[1], *spec.hidden, CLASSES), spec.seed).weights) + 1


def train_single_process(spec: TrainingSpec) -> tuple[Floats, float, float]:
    """Train on whole batches in this process and return (weights, last loss, accuracy)."""
    trainer = Trainer(spec, load_digits(Path(spec.data)), 0, 1, None)
    loss = float("nan")
    for _ in range(spec.steps):
        loss = trainer.step()
    return trainer.model.weights, loss, trainer.accuracy()


def digest(weights: Floats) -> str:
    """SHA-256 of the weights' bytes."""
    return hashlib.sha256(weights.tobytes()).hexdigest()


def main(spec: TrainingSpec) -> None:
    """Train as one rank; print a `TrainingStep` a step (rank 0) and a `TrainingResult` at the end, as lines of JSON."""
    from netfold.host.api import verbs

    digits = load_digits(Path(spec.data))
    with contextlib.ExitStack() as leaving:
        comm = verbs.init(rail=spec.rail, timeout=spec.timeout, lane_bits=spec.lane_bits)
        leaving.callback(verbs.shutdown)  # this process may join others afterwards
        trainer = Trainer(spec, digits, comm.rank, comm.size, comm)
        start = time.perf_counter()
        loss = float("nan")
        for step in range(1, spec.steps + 1):
            loss = trainer.step()
            if comm.rank == 0:
                print_message(TrainingStep(step, loss, time.perf_counter() - start))
        seconds = time.perf_counter() - start
        stats = comm.stats()
        if comm.rank == 0 and spec.weights:
            np.save(spec.weights, trainer.model.weights)
        trees = {
            name: TreeCounts(tree.bytes_reduced, tree.packets_sent, tree.retransmissions)
            for name, tree in stats.by_tree.items()
        }
        nbytes = trainer.buffer.nbytes
        print_message(
            TrainingResult(
                comm.rank, digest(trainer.model.weights), loss, trainer.accuracy(), seconds, trainer.reduce_seconds,
                nbytes, comm.rail, comm.explain(nbytes), stats.packets_sent, stats.retransmissions, trees,
            )
        )



if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=TrainingSpec))
