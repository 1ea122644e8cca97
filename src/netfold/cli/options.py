# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from netfold.rpc.channel import CONTROLLER_VARIABLE

TOPO_FORM: Final = "leafspine,LEAVES,SPINES,HOSTS|threetier,...|mesh,...|torus,...|file:PATH"
FabricFile = Annotated[Path | None, typer.Argument(metavar="FABRIC.toml", help="The fabric's description.")]
RunningFabric = Annotated[Path | None, typer.Argument(metavar="FABRIC.toml|NAME",
    help="The fabric's file, or the name of a running fabric; default: the running one.")]
Topo = Annotated[str | None, typer.Option("--topo", metavar=TOPO_FORM,
                                          help="Generate the fabric instead of reading it: leafspine,LEAVES,SPINES,"
                                               "HOSTS, threetier,PODS,LEAVES,AGGS,SPINES,HOSTS, mesh,ROWS,COLUMNS, "
                                               "torus,ROWS,COLUMNS, or any graph's file:PATH. `netfold up`: dual, or "
                                               "triple, before it makes two or three planes with the same hosts.")]
SwitchKind = Annotated[str, typer.Option("--switch", help="softswitch, or bmv2 (simple_switch_grpc and p4c on PATH).")]
PathMtu = Annotated[int, typer.Option(help="Payload bytes of a data packet: 1024, or 4096 over jumbo frames.")]
FabricOption = Annotated[Path | None, typer.Option("--fabric", metavar="FABRIC.toml|NAME",
    help="The fabric's file, or the name of a running fabric; default: the running one.")]
Address = Annotated[str | None, typer.Option(help=f"The controller's gRPC address; default: ${CONTROLLER_VARIABLE}.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
Probe = Annotated[float | None, typer.Option(help="Seconds between probes of links between switches; 0: none. "
                                                  "Overrides the fabric file.")]
Misses = Annotated[int | None, typer.Option(help="Lost probes in a row after which a link is down. Overrides the "
                                                 "fabric file.")]
Steady = Annotated[float | None, typer.Option(help="Seconds that a switch or link must be up again before running jobs "
                                                   "use it. Overrides the fabric file.")]
Metrics = Annotated[str | None, typer.Option(metavar="HOST:PORT",
    help="Serve a web page, and metrics for Prometheus at /metrics. Overrides the fabric file.")]
