# SPDX-License-Identifier: Apache-2.0
"""The command `netfold demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from netfold.cli.common import CANNOT, checked, fail, log_to_stderr
from netfold.cli.generated import DEFAULTS, Generated, with_groups, with_pages
from netfold.cli.options import Metrics

PAGE: Final = "127.0.0.1:9464"
"""Where --page serves, without --metrics."""


@with_groups
def demo(
    hosts: Annotated[Literal["namespaces", "rxe"], typer.Option(
        help="What workers run in: namespaces, or rxe: virtual machines, whose kernels' RDMA carries the gradients."
    )] = "namespaces",
    ranks: Annotated[int | None, typer.Option(help="Number of workers; default: 8, or 2 virtual machines.")] = None,
    leaves: Annotated[int, typer.Option(help="Leaf switches.")] = 2,
    spines: Annotated[int | None, typer.Option(help="Spine switches; default: 2, or 1 over virtual machines.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps; default: as many as fit in about a "
                                                   "minute.")] = None,
    generated: Generated = DEFAULTS,
    lane_bits: Annotated[int, typer.Option(help="Bits of each gradient on the network: 32, or 16 or 8 with error "
                                                "feedback.")] = 32,
    page: Annotated[bool, typer.Option("--page", help="Serve the web page, and keep it and the fabric running at the "
                                                      "end until Ctrl-C.")] = False,
    metrics: Metrics = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the reports.")] = Path("build/demo"),
) -> None:
    """Train a real model over a leaf-spine fabric in Mininet, every gradient folded by the switches."""
    from netfold.demo.demo import demo as run_demo

    log_to_stderr(False)
    few = hosts == "rxe"
    ranks = ranks if ranks is not None else 2 if few else 8
    spines = spines if spines is not None else 1 if few else 2
    fabric = generated.fabric(f"leafspine,{leaves},{spines},{ranks}")  # refused early, in the same words
    address = metrics or (PAGE if page else None)
    with_pages([fabric], address)
    match lane_bits:
        case 32 | 16 | 8:
            bits: Literal[32, 16, 8] = lane_bits
            raise typer.Exit(checked(lambda: run_demo(
                hosts=hosts, ranks=ranks, leaves=leaves, spines=spines, steps=steps, lane_bits=bits, out=out,
                metrics=address, stays_open=page,
                faults=page if generated.faults is None else generated.faults, **generated.options())))
    fail(CANNOT, f"--lane-bits: expected 32, 16 or 8, got {lane_bits}")
