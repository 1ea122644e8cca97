# SPDX-License-Identifier: Apache-2.0
"""The programs of bench/ranks on the hosts of a fabric: tasks and results are JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from netfold.topo.network.net import Network

T = TypeVar("T")


def command(program: str, task: object) -> list[str]:
    """The command of a program's rank."""
    return [sys.executable, "-m", f"netfold.bench.ranks.{program}", msgspec.json.encode(task).decode()]


def results(
    network: Network, program: str, task: object, kind: type[T], *, job: str, within: float, **launch: Any
) -> list[T]:
    """Run a program, and return what each rank has printed last.

    within  seconds for all ranks; ``launch``: of `Network.launch`
    Raises RankFailed.
    """
    lines = network.launch(command(program, task), job=job, **launch).wait(within=within)
    return [msgspec.json.decode(said[-1], type=kind) for said in lines]
