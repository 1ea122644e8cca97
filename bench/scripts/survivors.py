# SPDX-License-Identifier: Apache-2.0
"""How long a job is without sums when a rank is killed, and whether it ever hangs: rounds of kill -9 and return.

    python -m netfold.bench.scripts.survivors [--ranks 8] [--rounds 100] [--rail innet] [--kills 1] [--json FILE]

Ranks train on a leaf-spine fabric of switches in a sandbox (`netfold.bench.ranks.survivor`; every sum is checked).  In
each round some that are drawn are killed at a moment that is drawn, the others go on, and the killed ones come back.
Printed are the seconds from the kill until all that are left have their next exact sum, the seconds until the loss was
named, and the seconds until the ranks that were started again sum with the others, the start of Python included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from netfold.bench.harness.survivors import Survivors
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.topo.network import sandbox
from netfold.topo.network.net import Network


def spread(seconds: list[float]) -> str:
    """Median, least and most, in milliseconds."""
    return f"{1e3 * statistics.median(seconds):.0f} ({1e3 * min(seconds):.0f} .. {1e3 * max(seconds):.0f}) ms"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills ranks of a training, and brings them back.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--kills", type=int, default=1, help="ranks that are killed at once")
    parser.add_argument("--rail", default="innet", choices=("innet", "tcp", "auto"))
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for logs; default: removed at the end")
    a = parser.parse_args()
    sandbox.enter()
    rng = random.Random(a.seed)
    rows: list[dict[str, float]] = []
    fabric = msgspec.structs.replace(leafspine(2, 2, a.ranks, rate=a.rate, rundir=sandbox.rundir()), misses=70)
    with (
        tempfile.TemporaryDirectory(dir=sandbox.rundir()) as folder,
        Network(fabric, logs=a.logs or Path(folder)) as network,
        Survivors(network, "grow", a.rail) as crew,
    ):
        for number in range(a.rounds):
            victims = rng.sample(sorted(crew.hosts), a.kills)
            time.sleep(rng.uniform(0, 0.3))  # so that it happens anywhere in a step
            killed = time.monotonic()
            seconds, reached = crew.kill(*victims)
            named = [one.named_at - killed for one in reached if one.named_at > killed]
            begin = time.monotonic()
            crew.bring_back(*victims)
            rows.append({"round": number, "next_sum": seconds, "named": max(named, default=float("nan")),
                         "back": time.monotonic() - begin, "loss": reached[0].loss})
            print(f"round {number}: {', '.join(victims)} killed, next sum after {1e3 * seconds:.0f} ms, back after "
                  f"{rows[-1]['back']:.2f} s, loss {reached[0].loss:.1f}", flush=True)
        ends = crew.end()
    if len({(end.step, end.checksum) for end in ends}) != 1:
        raise SystemExit(f"the ranks end with different weights: {ends}")
    heard = [row["named"] for row in rows if row["named"] == row["named"]]
    print(f"{a.ranks} ranks, {a.rounds} rounds of {a.kills}, {a.rail}, seed {a.seed}, load {os.getloadavg()[0]:.1f}: "
          f"next sum {spread([row['next_sum'] for row in rows])}"
          + (f", named {spread(heard)}" if heard else "")
          + f", back {spread([row['back'] for row in rows])}")
    if a.json:
        files.replace(a.json, json.dumps({"arguments": {**vars(a), "json": str(a.json), "logs": None}, "rows": rows}))


if __name__ == "__main__":
    main()
