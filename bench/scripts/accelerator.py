# SPDX-License-Identifier: Apache-2.0
"""Checks and measurements with tensors on this machine's accelerator; all ranks share one device.

    python bench/scripts/accelerator.py                            # all, some 8 minutes
    python bench/scripts/accelerator.py --only checks --limit 180
    python bench/scripts/accelerator.py --only speed --rates 10gbit --ranks 4 --rounds 5 --json FILE

Each stage is a process of its own, with a limit, on a fabric of softswitches in a sandbox; what ends badly is named,
and the next stage begins.  ``checks`` makes each collective in several ways beside its right result, trains by each
front end beside gloo, has a rank that dies, lets streams alone wait for sums, lets NCCL fold by NetFold's plug-in, and
has at last two ranks a host that reduce on their devices themselves.  The exit status is 1 if anything failed, or was
not begun for lack of time.  ``speed`` times allreduces of tensors on the
device and on the CPU, gloo's of tensors on the device beside them on a plain bridge with the same links, in interleaved
rounds.  ``gpt2`` times steps of DistributedDataParallel with a model of 124 million parameters.  Needs torch, and its
accelerator; with ``--device cpu`` the checks run without one.

A machine without a network takes what its Python lacks from a folder of wheels, in an environment that ends with the
run.  The first line fills the folder, in a clone on a machine that has a network and the same version of Python:

    pip wheel --wheel-dir FOLDER ./cbuild ./softswitch '.[control,torch]'
    python accelerator.py --wheels FOLDER --only checks
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":  # NetFold need not be here yet
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--wheels")
    given, others = parser.parse_known_args()
    if given.wheels:
        with tempfile.TemporaryDirectory() as home:
            venv.create(home, with_pip=True, system_site_packages=True)
            python = f"{home}/bin/python"
            install = [python, "-m", "pip", "install", "--quiet", "--upgrade", "--no-index"]
            sys.exit(subprocess.call([*install, "--find-links", given.wheels, "netfold[control,torch]"])
                     or subprocess.call([python, __file__, *others]))

from netfold.bench.harness.processors import cpu_seconds
from netfold.bench.harness.workers import Workers
from netfold.bench.ranks.accelerator import CHECKS
from netfold.bench.ranks.accelerator.device import NOT_RUN
from netfold.fabric.generate import leafspine
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed
from softswitch.cli.run import THREADS

READY_SECONDS: Final = 90.0
PATIENCE: Final = {"wait": 120.0}
"""Seconds that a check may take, if other than 60: one of many parts, with a job of its own."""
STARTS: Final = 2
"""Times that a fabric may fail to start, one after the other, before its checks are given up."""
WARMUP: Final = 2
STAGES: Final = ("checks", "speed", "gpt2")


def main() -> None:
    """Run the stages, or, as a child, one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STAGES), help=f"some of {','.join(STAGES)}")
    parser.add_argument("--checks", default=",".join(CHECKS), help="some of %(default)s")
    parser.add_argument("--ranks", default="4,8", help="numbers of ranks of speed; checks and gpt2 have the first")
    parser.add_argument("--rates", default="none,10gbit,1gbit", help="of each link; gpt2 has 10gbit")
    parser.add_argument("--threads", default="1",
                        help="of a switch (SOFTSWITCH_THREADS), several by commas, for speed and gpt2; try 1,3")
    parser.add_argument("--sizes", default="1,16,64", help="MiB")
    parser.add_argument("--ways", default="gloo,device,device16,device8,cpu,cpu16,cpu8", help="some of %(default)s")
    parser.add_argument("--part", default="", help="MiB of a part, several by commas; default: the library's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for all of it")
    parser.add_argument("--device", default="", help="default: torch's accelerator")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--wheels", metavar="FOLDER", help="of wheels to install from first, without a network")
    parser.add_argument("--stage", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, known in (("only", STAGES), ("checks", CHECKS)):
        if unknown := [one for one in getattr(options, name).split(",") if one not in known]:
            parser.error(f"--{name}: {', '.join(map(repr, unknown))}: expected some of {','.join(known)}")
    if not options.device:
        import torch

        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if found is None:
            sys.exit("no accelerator: torch has none here, nothing was run")
        options.device = str(found.type)
    if options.stage:
        run_stage(options)
    else:
        sys.exit(run_all(options))


# ---- the stages, one after another -----------------------------------------------------------------------------------
def run_all(options: argparse.Namespace) -> int:
    """Run each stage as a process; print what they print, and all figures at the end.  Returns 1 if anything failed or
    was not begun, else 0."""
    ranks, rates, only = options.ranks.split(","), options.rates.split(","), options.only.split(",")
    threads = options.threads.split(",")
    stages = [("checks", ranks[0], "none", threads[0])] if "checks" in only else []
    if "speed" in only:
        stages += [("speed", count, rate, number) for count in ranks for rate in rates for number in threads]
    if "gpt2" in only:
        stages += [("gpt2", ranks[0], "10gbit", number) for number in threads]
    end, failed = time.monotonic() + options.limit, False
    rows: list[dict[str, Any]] = []
    for stage, count, rate, number in stages:
        left = end - time.monotonic()
        print(f"== {stage}, {count} ranks, links {rate}, threads of a switch {number}, {left:.0f} s left", flush=True)
        if left < 10:
            print("   not begun: no time is left", flush=True)
            failed = True
            continue
        with tempfile.NamedTemporaryFile(mode="r", suffix=".json") as found:
            command = [
                sys.executable, __file__, "--stage", stage, "--ranks", count, "--rates", rate, "--json", found.name,
                "--device", options.device, "--checks", options.checks, "--sizes", options.sizes, "--ways",
                options.ways, "--part", options.part, "--rounds", str(options.rounds), "--steps", str(options.steps),
                "--limit", str(left), "--threads", number,
            ]
            with subprocess.Popen(command, start_new_session=True, env={**os.environ, THREADS: number}) as child:
                try:
                    status: object = child.wait(left)
                except subprocess.TimeoutExpired:
                    child.terminate()
                    status = "no time is left"
            if status:
                print(f"   ended: {status}", flush=True)
                failed = True
            rows += [json.loads(line) for line in found.read().splitlines()]
    text = json.dumps(rows)
    if options.json:
        options.json.write_text(text)
    print(text, flush=True)
    return int(failed or any(row.get("error") for row in rows))


class Stage:
    """One stage's ranks and switches, and where its figures go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.count, self.rate = int(options.ranks), options.rates
        self.end = time.monotonic() + options.limit
        self.workers: dict[str, Workers] = {}
        self.switches: list[int] = []

    def ask(self, network: str, what: str, patience: float = 60.0, **how: Any) -> list[dict[str, Any]]:
        """All ranks' answers to a command.  Raises WorkerFailed."""
        self.workers[network].send({"do": what, **how})
        left = self.end - time.monotonic()
        return self.workers[network].results(dict[str, Any], max(1.0, min(patience, left)))

    def tell(self, row: dict[str, Any], text: str) -> None:
        """Print a line, and write its figures."""
        print(f"   {text}", flush=True)
        if self.options.json:
            with self.options.json.open("a") as file:
                about = {"ranks": self.count, "rate": self.rate, "threads": self.options.threads}
                file.write(json.dumps(about | row) + "\n")

    @contextlib.contextmanager
    def running(self, *networks: str, members: int = 1) -> Iterator[None]:
        """Ranks on a fabric of two leaves and two spines, ``members`` of them on each host, and on a bridge."""
        from netfold.bench.harness.bridge import Bridge
        from netfold.topo.network.net import Network
        from netfold.topo.processes.ranks import SETTINGS, environment, in_namespaces
        from netfold.wire.roce import LINK_MTUS

        logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
        command = [sys.executable, "-m", "netfold.bench.ranks.accelerator"]
        rate = None if self.rate == "none" else self.rate
        threads = {"OMP_NUM_THREADS": "1", "DEVICE": self.options.device}
        threads["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX would take most of the device that all share
        with contextlib.ExitStack() as stack:
            fabric = leafspine(2, 2, self.count // members, rate=rate, rundir=sandbox.rundir())
            if "fabric" in networks:
                network = stack.enter_context(Network(fabric, logs=logs))
                hosts = [host for host in network.fabric.hosts for _ in range(members)]
                self.switches = [switch.child.pid for switch in network.switches if switch.child is not None]
                envs = [{**environment(network.fabric, hosts, rank, job="accelerator"), **threads,
                         # all ranks have one device; and no links are measured for the way through shared memory
                         **({"NCCL_HOSTID": str(rank), "NETFOLD_ALGO": "innet"} if members > 1 else {})}
                        for rank in range(self.count)]
                enters = [in_namespaces(network.mininet.get(host.name).pid) for host in hosts]
                self.workers["fabric"] = stack.enter_context(Workers("fabric", command, enters, envs, logs))
            if "bridge" in networks:
                bridge = stack.enter_context(Bridge(self.count, rate, LINK_MTUS[fabric.path_mtu]))
                envs = [{
                    "RANK": str(rank), "WORLD_SIZE": str(self.count), "MASTER_ADDR": bridge.addresses[0],
                    "GLOO_SOCKET_IFNAME": bridge.interface, **SETTINGS, **threads,
                } for rank in range(self.count)]
                self.workers["bridge"] = stack.enter_context(Workers("bridge", command, bridge.enters, envs, logs))
            for workers in self.workers.values():
                workers.receive(READY_SECONDS)
            yield


def run_stage(options: argparse.Namespace) -> None:
    """Run one stage, in a sandbox."""
    sandbox.enter()
    from mininet.log import setLogLevel

    setLogLevel("error")
    {"checks": checks, "speed": speed, "gpt2": gpt2}[options.stage](Stage(options))


def checks(stage: Stage) -> None:
    """Run the checks; ``inside`` has two ranks a host."""
    asked = stage.options.checks.split(",")
    run_checks(stage, [name for name in asked if name != "inside"])
    run_checks(stage, [name for name in asked if name == "inside"], members=2)


def run_checks(stage: Stage, left: list[str], *, members: int = 1) -> None:
    """Run these checks; one that fails by its result leaves the ranks to the next."""
    failures = 0
    while left and failures < STARTS:
        name = "start"
        try:
            with stage.running("fabric", members=members):
                stage.ask("fabric", "join", backend="netfold", port=29700)
                failures = 0
                while left:
                    name = left.pop(0)
                    if run_check(stage, name):  # the ranks may be in different calls
                        break
        except FabricFailed as failed:
            failures += name == "start"
            stage.tell({"check": name, "error": str(failed)}, f"FAILED {name}: {failed}")
            if stage.end - time.monotonic() < 30:
                break
    for name in left:
        why = "not begun: the fabric does not start" if failures == STARTS else "not begun: no time is left"
        stage.tell({"check": name, "error": why}, f"FAILED {name}: {why}")


def run_check(stage: Stage, name: str) -> str:
    """Run a check; what is wrong, or nothing.  Raises WorkerFailed."""
    begin = time.monotonic()
    answers = stage.ask("fabric", "check", PATIENCE.get(name, 60.0), name=name, dies=name == "death")
    seconds, found = time.monotonic() - begin, str(answers[0]["found"] or "")
    wrong = next((str(answer["error"]) for answer in answers if answer["error"]), "")
    verdict = "FAILED" if wrong else "skipped" if found.startswith(NOT_RUN) else "ok"
    stage.tell({"check": name, "error": wrong, "seconds": seconds, "found": found},
               f"{verdict:<8}{name:<14}{seconds:6.1f} s  {wrong or found}")
    return wrong


def speed(stage: Stage) -> None:
    """Allreduces of each size in each way, in turns, and each way's time beside gloo's in the same round."""
    ways = stage.options.ways.split(",")
    parts = [float(part) for part in stage.options.part.split(",") if part]
    variants = [(way, part) for way in ways for part in (parts if parts and way.startswith("device") else [0.0])]
    with stage.running("fabric", *(["bridge"] if "gloo" in ways else [])):
        for network, workers in stage.workers.items():
            del workers
            stage.ask(network, "join", backend="netfold" if network == "fabric" else "gloo", port=29700)
        for size in stage.options.sizes.split(","):
            calls = {"1": 20, "16": 6}.get(size, 3)
            rounds: dict[tuple[str, float], list[dict[str, float]]] = {variant: [] for variant in variants}
            for number in range(stage.options.rounds):
                for way, part in variants[number % len(variants):] + variants[:number % len(variants)]:
                    if stage.end - time.monotonic() < 5:
                        continue
                    network = "bridge" if way == "gloo" else "fabric"
                    before = sum(map(cpu_seconds, stage.switches))
                    answers = stage.ask(
                        network, "allreduce", nbytes=int(size) << 20, calls=calls, warmup=WARMUP, part=part,
                        place="cpu" if way.startswith("cpu") else "device",
                        lanes=int(way.removeprefix("device").removeprefix("cpu") or 32) if network == "fabric" else 32,
                    )
                    spent = sum(map(cpu_seconds, stage.switches)) - before
                    rounds[way, part].append({
                        "seconds": max(one["seconds"] for one in answers),
                        "rank_cpu": sum(one["cpu"] for one in answers), "wait": max(one["wait"] for one in answers),
                        "switch_cpu": spent / (calls + WARMUP) if network == "fabric" else 0.0,
                    })
            show(stage, size, rounds)


def show(stage: Stage, size: str, rounds: dict[tuple[str, float], list[dict[str, float]]]) -> None:
    """Print and write a row of each way."""
    beside = next((found for (way, _), found in rounds.items() if way == "gloo"), [])
    for (way, part), found in rounds.items():
        if not found:
            continue
        ratios = [other["seconds"] / one["seconds"] for one, other in zip(found, beside, strict=False)]
        median = {name: statistics.median(one[name] for one in found) for name in found[0]}
        gigabytes = (int(size) << 20) * stage.count / 1e9
        row = {"way": way, "part": part, "MiB": int(size), **median, "rounds": len(found), "gloo/this": sorted(ratios)}
        of_gloo = f"{statistics.median(ratios):5.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else ""
        name = way if not part else f"{way}, parts of {part:g}"
        stage.tell(row, f"{size:>3} MiB {name:<24}{median['seconds'] * 1e3:9.2f} ms  host waits "
                        f"{median['wait'] * 1e3:8.2f}  processors of ranks {median['rank_cpu'] / gigabytes:6.3f} s/GB, "
                        f"of switches {median['switch_cpu'] / gigabytes:6.3f}  gloo's time over it {of_gloo}")


def gpt2(stage: Stage) -> None:
    """Steps of DistributedDataParallel; the losses of all ways have to be alike."""
    with stage.running("fabric", "bridge"):
        for network in stage.workers:
            stage.ask(network, "join", backend="netfold" if network == "fabric" else "gloo", port=29700)
        found: dict[str, list[dict[str, Any]]] = {}
        for way, network, lanes in (("gloo", "bridge", 32), ("netfold", "fabric", 32), ("hook, 8 bits", "fabric", 8)):
            found[way] = stage.ask(network, "gpt2", 200.0, steps=stage.options.steps, lanes=lanes)
            first, mine = found["gloo"], found[way]
            seconds, beside = (
                statistics.median([max(times) for times in zip(*(one["seconds"] for one in some), strict=True)][1:])
                for some in (mine, first)
            )
            losses = mine[0]["losses"]
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, first[0]["losses"], strict=True))
            stage.tell(
                {"gpt2": way, "seconds": seconds, "losses": losses, "gloo/this": beside / seconds, "off": off},
                f"{way:<14}{seconds * 1e3:9.1f} ms a step, {mine[0]['parameters']} parameters, gloo's time over it "
                f"{beside / seconds:5.2f}, losses off by {off:.1e}: {losses}",
            )


if __name__ == "__main__":
    main()
