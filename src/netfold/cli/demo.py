# SPDX-License-Identifier: Apache-2.0
"""The command `netfold demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netfold.cli.common import CANNOT, fail, log_to_stderr
from netfold.cli.generated import DEFAULTS, Generated, with_groups


@with_groups
def demo(
    ranks: Annotated[int, typer.Option(help="Workers.")] = 8,
    leaves: Annotated[int, typer.Option(help="Leaf switches.")] = 2,
    spines: Annotated[int, typer.Option(help="Spine switches.")] = 2,
    steps: Annotated[int | None, typer.Option(help="Training steps; default: what fits in a minute or so.")] = None,
    generated: Generated = DEFAULTS,
    lane_bits: Annotated[int, typer.Option(help="Of gradients on their way: 32, or 16 or 8, with feedback.")] = 32,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the reports.")] = Path("build/demo"),
) -> None:
    """Train a real model over a leaf-spine fabric in Mininet, every gradient folded by the switches."""
    from netfold.demo.demo import demo as run_demo

    log_to_stderr(False)
    generated.fabric(f"leafspine,{leaves},{spines},{ranks}")  # refused early, in the same words
    match lane_bits:
        case 32 | 16 | 8:
            raise typer.Exit(run_demo(ranks=ranks, leaves=leaves, spines=spines, steps=steps, lane_bits=lane_bits,
                                      out=out, **generated.options()))
    fail(CANNOT, f"--lane-bits: expected 32, 16 or 8, got {lane_bits}")
