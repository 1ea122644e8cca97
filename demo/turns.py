# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo in a virtual machine: the training, and then the timings, in one process.

    python -m netfold.demo.turns FOLDER SPEC SETUP COMMAND...

SPEC is a `TrainingSpec` as JSON, SETUP a `RankSetup`, each COMMAND a `TimingCommand`.  It prints what the training
prints (train.py), then what `netfold.topo.processes.allreduce_rank` prints.  Command k, from 0, is executed once
the file FOLDER/turn-k is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from netfold.demo import train
from netfold.demo.train import TrainingSpec
from netfold.topo.processes.allreduce_rank import RankSetup, serve

READY: Final = "{}"
"""The line that a rank prints once it has joined all jobs that it times."""
LOOK: Final = 0.1
"""Seconds between looks for a file."""


def file(folder: Path, turn: int) -> Path:
    """The file that lets a command begin."""
    return folder / f"turn-{turn}"


def main(folder: Path, spec: str, setup: str, commands: Sequence[str]) -> None:
    """Train, then execute the commands as they are let go."""
    train.main(msgspec.json.decode(spec, type=TrainingSpec))
    serve(msgspec.json.decode(setup, type=RankSetup), _when_told(folder, commands))


def _when_told(folder: Path, commands: Sequence[str]) -> Iterator[str]:
    for turn, command in enumerate(commands):
        while not file(folder, turn).exists():
            time.sleep(LOOK)
        yield command


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
