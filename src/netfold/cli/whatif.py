# SPDX-License-Identifier: Apache-2.0
"""`netfold what-if`: a recorded training, replayed on a fabric with collectives of other kinds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from netfold import plain_text
from netfold.cli.common import CANNOT, FAILED, checked, fail, load
from netfold.cli.options import TOPO_FORM, Json, Topo


def _say(what: str) -> None:
    print(plain_text.clean(f"netfold: what-if: {what}"), file=sys.stderr)


def what_if(
    trace: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="The name that `netfold.torch.record` has, "
                                                "all ranks' files, their folder, or the file of one rank where all do "
                                                "the same. Also PyTorch's and Chakra's execution traces.")],
    fabric: Annotated[Path | None, typer.Option("--fabric", metavar="FABRIC.toml", help="The fabric's file.")] = None,
    topo: Topo = None,
    rate: Annotated[str, typer.Option(help="Rate of links for which the fabric states none.")] = "100gbit",
    ways: Annotated[str, typer.Option(help="all, or by commas: gloo, ring, halving-doubling, planned, innet, "
                                           "innet-16, innet-8, two-planes, hierarchical.")] = "all",
    number: Annotated[int | None, typer.Option("--ranks", min=2, help="Ranks, where one trace of Chakra stands for "
                                               "all.")] = None,
    per_host: Annotated[int, typer.Option("--ranks-per-host", min=1, help="Ranks that share each host's link.")] = 1,
    message: Annotated[float, typer.Option(min=0, help="Seconds that a message costs beside its bytes, with the "
                                                     "software of both ends.")] = 25e-6,
    delay: Annotated[float, typer.Option(min=0, help="Seconds over each link.")] = 500e-9,
    seeds: Annotated[str, typer.Option(help="Seeds of hashed flows, by commas.")] = "1,2,3",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the figure, what-if.svg and .pdf; "
                                             "default: none.")] = None,
    json: Json = False,
) -> None:
    """What would another way to carry collectives bring my training? Replay a recording of it, and see."""
    from netfold.fabric.generate import parse
    from netfold.fabric.graph import FabricError, bits_per_second
    from netfold.fabric.routing.path_graph import PathError
    from netfold.sim.engines.packet import SimulationError
    from netfold.sim.whatif import report, traces
    from netfold.sim.whatif.costs import HostCosts
    from netfold.sim.whatif.program import program_of
    from netfold.sim.whatif.ways import WAYS, RankFabric
    from netfold.wire.roce import LINK_MTUS

    if (fabric is None) == (topo is None):
        fail(CANNOT, f"what-if: expected either --fabric FABRIC.toml or --topo {TOPO_FORM}")
    try:
        if not all(seed.strip().isdecimal() for seed in seeds.split(",")):
            raise ValueError(f"--seeds: expected whole numbers by commas, got {seeds!r}")
        made = load(fabric) if fabric is not None else checked(lambda: parse(topo or ""))
        recorded = traces.read(trace, number, _say)
        program = program_of(recorded)
        costs = HostCosts(made.path_mtu, LINK_MTUS[made.path_mtu], message)
        ranks = RankFabric(made, bits_per_second(rate), len(program.ranks), per_host=per_host, costs=costs, delay=delay)
        found = report.what_if(
            program, ranks, ways=[*WAYS] if ways == "all" else [way.strip() for way in ways.split(",")],
            seeds=[int(seed) for seed in seeds.split(",")], recorded=traces.seconds_of_a_step(recorded))
    except (ValueError, FabricError, PathError, SimulationError) as error:
        fail(CANNOT, f"what-if: {error}")
    except OSError as error:
        fail(FAILED, f"what-if: cannot read {error.filename}: {error.strerror}")
    if json:
        print(plain_text.json_line(found))
    else:
        print("\n".join(report.lines(found)))
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            report.draw(found, out / "what-if")
        except report.PlotsMissing as error:
            fail(CANNOT, f"what-if: {error}")
        except OSError as error:
            fail(FAILED, f"what-if: cannot write {error.filename or out}: {error.strerror}")
