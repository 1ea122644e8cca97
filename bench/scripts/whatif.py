# SPDX-License-Identifier: Apache-2.0
"""Holds `netfold what-if` against real runs: four programs are recorded over gloo, replayed over other ways, and run by
these ways on a fabric of softswitches with the same links.

    python bench/scripts/whatif.py                                    # all, some minutes
    python bench/scripts/whatif.py --rates 50mbit --programs fsdp2,hsdp --rows rows.json
    python bench/scripts/whatif.py --rates 1gbit --layer-seconds 0.05      # layers sleep: no core is needed to compute

ddp-cnn, ddp-transformer   DistributedDataParallel, in lanes of 32, 16 and 8 bits
fsdp2, hsdp                fully_shard of the transformer, over all ranks, and over two replicas; -cnn: of the CNN

gloo runs on a plain bridge, which is replayed as one leaf.  The error compares the replayed step with the median of the
real ones; `last` is the mean step of the round that was recorded.  If the machine's cores are the limit, and not the
links, real steps are longer than the replay says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from netfold.fabric.generate import leafspine
from netfold.fabric.graph import bits_per_second
from netfold.sim.whatif import traces
from netfold.sim.whatif.costs import HostCosts
from netfold.sim.whatif.program import program_of
from netfold.sim.whatif.replay import replay
from netfold.sim.whatif.ways import WAYS, RankFabric
from netfold.wire.roce import LINK_MTUS

RANKS: Final = 4
MESSAGE: Final = 4e-4
"""Seconds that a message costs between namespaces of one machine: half of an allreduce of 4 KiB at 1 Gb/s
(docs/collectives.md)."""
PROGRAMS: Final[dict[str, tuple[str, str, str, str]]] = {
    "ddp-cnn": ("cnn", "gloo", "netfold", "32,16,8"),
    "ddp-transformer": ("transformer", "gloo", "netfold", "32,16,8"),
    "fsdp2": ("transformer", "fsdp2-gloo", "fsdp2", "32"),
    "hsdp": ("transformer", "hsdp-gloo", "hsdp", "32"),
    "fsdp2-cnn": ("cnn", "fsdp2-gloo", "fsdp2", "32"),
    "hsdp-cnn": ("cnn", "hsdp-gloo", "hsdp", "32"),
}
"""Name -> model, the backend that is recorded, the one that is predicted, and its lanes."""
WIDTHS: Final = {"cnn": 512, "transformer": 128}


def main() -> None:
    """Measure, replay and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="50mbit,1gbit", help="of all links, by commas")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="by commas")
    parser.add_argument("--steps", type=int, default=5, help="timed ones of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=0, help="of the models; default: " + str(WIDTHS))
    parser.add_argument("--layer-seconds", type=float, default=0.0, help="that each layer sleeps in each pass")
    parser.add_argument("--rows", type=Path, help="write the rows here, as JSON")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"# {RANKS} ranks, fabric 2 x 2 of softswitches; ms a step; load {os.getloadavg()[0]:.1f}")
    print(f"# {'program':<16} {'links':>7} {'way':<9} {'compute':>8} {'replayed':>9} {'real':>9} {'last':>9} "
          f"{'error':>6}")
    for rate in options.rates.split(","):
        for program in options.programs.split(","):
            with tempfile.TemporaryDirectory(prefix="whatif-", dir=Path.cwd()) as folder:
                for row in compare(program, rate, Path(folder), options):
                    rows.append(row)
                    print(f"  {program:<16} {rate:>7} {row['way']:<9} {row['compute'] * 1e3:>8.1f} "
                          f"{row['replayed'] * 1e3:>9.1f} {row['real'] * 1e3:>9.1f} {row['last'] * 1e3:>9.1f} "
                          f"{row['error']:>+6.1%}", flush=True)
    print(f"# load {os.getloadavg()[0]:.1f}")
    if options.rows:
        options.rows.write_text(json.dumps(rows, indent=1) + "\n")


def compare(program: str, rate: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a program by both backends, and replay what was recorded over gloo: a row for each way."""
    model, known, wanted, lanes = PROGRAMS[program]
    subprocess.run(
        [sys.executable, "-m", "netfold.cli", "bench", "train", "--model", model, "--rate", rate,
         "--width", str(options.width or WIDTHS[model]), "--layer-seconds", str(options.layer_seconds),
         "--backends", f"{known},{wanted}", "--lane-bits", lanes, "--ranks", str(RANKS),
         "--steps", str(options.steps), "--rounds", str(options.rounds),
         "--record", str(folder), "--rows", str(folder / "rows")],
        check=True, stdout=subprocess.DEVNULL)
    real = {(row["backend"], row["lane_bits"]): row for row in json.loads((folder / "rows").read_text())}
    training = program_of(traces.read([folder / f"{known}-32.json"]))
    found = []
    for (backend, bits), row in real.items():
        way = WAYS["gloo" if backend == known else "innet" if bits == 32 else f"innet-{bits}"]
        fabric = leafspine(1, 0, RANKS) if backend == known else leafspine(2, 2, RANKS)
        costs = HostCosts(fabric.path_mtu, LINK_MTUS[fabric.path_mtu], MESSAGE)
        outcome = replay(training, RankFabric(fabric, bits_per_second(rate), RANKS, costs=costs, delay=0.0), way)
        own = traces.seconds_of_a_step(traces.read([folder / f"{backend}-{bits}.json"]))
        found.append({
            "program": program, "rate": rate, "way": way.name, "compute": outcome.compute, "replayed": outcome.step,
            "real": row["step_seconds"], "real_best": row["step_seconds_best"], "real_worst": row["step_seconds_worst"],
            "last": own, "error": outcome.step / row["step_seconds"] - 1, "machine_busy": row["machine_busy"],
            "processor_seconds": row["cpu_seconds"] + row["switch_cpu_seconds"], "machine": row["machine"]})
    return found


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
