# SPDX-License-Identifier: Apache-2.0
"""The command `netfold demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from netfold.controller.cli.options import Corrupt, Duplicate, Loss, Rate, Reorder, Seed, SwitchKind
from netfold.controller.plan.fabric import Faults


def demo(
    ranks: Annotated[int, typer.Option(help="Workers.")] = 8,
    leaves: Annotated[int, typer.Option(help="Leaf switches.")] = 2,
    spines: Annotated[int, typer.Option(help="Spine switches.")] = 2,
    steps: Annotated[int | None, typer.Option(help="Training steps; default: what fits in a minute or so.")] = None,
    switch: SwitchKind = "softswitch",
    rate: Rate = None,
    loss: Loss = 0.0,
    duplicate: Duplicate = 0.0,
    reorder: Reorder = 0.0,
    corrupt: Corrupt = 0.0,
    lane_bits: Annotated[int, typer.Option(help="Of gradients on their way: 32, or 16 or 8, with feedback.")] = 32,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the reports.")] = Path("build/demo"),
) -> None:
    """Train a real model over a leaf-spine fabric in Mininet, every gradient folded by the switches."""
    from netfold.controller.cli import app as cli
    from netfold.topo.demo import demo as run_demo

    cli._logging(False)
    options: dict[str, Any] = {} if steps is None else {"steps": steps}
    faults: Faults = {"loss": loss, "duplicate": duplicate, "reorder": reorder, "corrupt": corrupt}
    # refuse early, in the same words
    cli._parse_topo(f"leafspine,{leaves},{spines},{ranks}", switch, rate, seed, **faults)
    match lane_bits:
        case 32 | 16 | 8:
            status = run_demo(
                ranks=ranks, leaves=leaves, spines=spines, switch=cli._engine(switch), rate=rate, lane_bits=lane_bits,
                seed=seed, out=out, **faults, **options,
            )  # fmt: skip
            raise typer.Exit(status)
    cli._fail(cli.CANNOT, f"--lane-bits: expected 32, 16 or 8, got {lane_bits}")
