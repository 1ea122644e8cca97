# SPDX-License-Identifier: Apache-2.0
"""`netfold bench soak`: sums without a break, each one checked, while faults of all kinds overlap.

Every round has a seed of its own, which draws the number of ranks on a host, what links do to packets, and a list of
faults that may overlap (`schedule.FAULTS`): switches killed, links down or dropping silently, ranks stopped,
controllers killed and replaced by a standby, a host outside the job that spoofs, floods, connects to ranks and to the
controller, and a full disk.  All faults are undone before the end, so that every rank must finish; a rank that does
not, a wrong sum, or a stranger that succeeds fails the round.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from netfold.bench.harness import rank_programs
from netfold.bench.harness.overhearing import Overhearing
from netfold.bench.harness.schedule import FAULTS, Fault, StepFailed, StepRunner, Victims, schedule
from netfold.bench.harness.strangers import SmallDisk, Strangers
from netfold.bench.options.faults import HOSTS, LEAVES, SPINES, SoakOptions
from netfold.bench.ranks.soak import STARTED, SoakResult, SoakTask
from netfold.controller import client
from netfold.disk import files
from netfold.fabric.generate import Faults
from netfold.fabric.graph import Fabric, Tenant
from netfold.rpc import rpc, tokens
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.network.net import Network
    from netfold.topo.processes.ranks import Ranks

WITHIN: Final = 240.0
"""Seconds for all ranks of a round, whose faults take 60 at most, most of them for controllers to start."""
FLIGHT_SIGNAL: Final = signal.SIGUSR2
"""Lets a rank write its flight recorder's file."""
LINKS: Final[tuple[Faults, ...]] = (
    Faults(), Faults(loss=0.01), Faults(loss=0.01, duplicate=0.03, reorder=0.03), Faults(loss=0.03, corrupt=0.01),
)
UNITS: Final = {"spoof": "spoofed packets", "flood": "packets of floods", "mesh": "connections to ranks",
                "challenged": "strangers that a rank asked for a proof", "refused": "proofs that it refused",
                "replayed": "handshakes of ranks said again",
                "service": "requests to the controller", "drain": "drains on a full disk",
                "flight": "flight files on a full disk", "controller": "controllers killed",
                "standby": "take-overs of a standby"}
"""Names of the units that are counted for each kind of try."""
NO_SLOTS: Final = 64
"""Slots of the strangers' tenant: fewer than any job needs, so that none of theirs takes any from the job."""


class SoakRound(msgspec.Struct, frozen=True):
    """One round; ``failed`` is the reason why it failed, or empty."""

    seed: int
    each: int
    faults: Faults
    steps: list[str]
    ranks: list[SoakResult]
    tried: dict[str, int]
    """How many packets, connections, requests and so on were tried, by the names of UNITS."""
    dropped: dict[str, int]
    """Packets that the switches had dropped at the end of the round; counts of a restarted switch begin again at 0."""
    failed: str


class ControllerFaults:
    """The controller of a network and its standby, if one waits; every death is counted."""

    def __init__(self, network: Network, standby: bool) -> None:
        self._network, self._standby = network, standby
        self.tried: Counter[str] = Counter()

    def kill(self) -> None:
        """Kill the controller, and wait for the standby if there is one: a controller that is started before that ends
        when the standby takes over."""
        self.tried["controller"] += 1
        if self._standby:
            self._network.take_over()
        else:
            self._network.end_controller(signal.SIGKILL)

    def start(self) -> None:
        """Start a controller; where the standby serves, that one waits again."""
        self._network.start_controller(switches=False)

    def take_over(self) -> None:
        """Kill the controller, and wait for the standby."""
        self.tried["standby"] += 1
        self._network.take_over()


class FullDisk:
    """The disk of logs, flight files and the controller's state: while it is full, all ranks write their flight files,
    and an operator asks for a drain, which the controller cannot save."""

    def __init__(self, disk: SmallDisk, network: Network, ranks: Ranks) -> None:
        self._disk, self._network, self._ranks = disk, network, ranks
        self.tried: Counter[str] = Counter()

    def fill(self) -> None:
        """Leave no room, and let everybody write.  Raises StepFailed where a drain is accepted."""
        self._disk.fill()
        for process in self._ranks.processes:
            process.send_signal(FLIGHT_SIGNAL)
            self.tried["flight"] += 1
        try:
            asyncio.run(client.drain(self._network.jobs, "spine1", True))
        except rpc.CallRefused:  # it names the state file, or what keeps the spine from being drained before that
            self.tried["drain"] += 1
        except rpc.Unreachable:
            return  # there is no controller now
        else:
            raise StepFailed("a drain was accepted though the disk of the state file is full")

    def clear(self) -> None:
        """Make room again."""
        self._disk.clear()


def main(options: SoakOptions) -> bool:
    """Run all rounds, and return whether none has failed."""
    return not any(result.failed for result in run(options))


def run(options: SoakOptions) -> list[SoakRound]:
    """Run all rounds in a sandbox, print a line for each, and write those that are done.

    The next rounds run also after one has failed.
    """
    sandbox.enter()
    results: list[SoakRound] = []
    began = time.monotonic()
    for number in range(options.rounds):
        if options.seconds and time.monotonic() >= began + options.seconds:
            break
        results.append(_round(options, options.seed + number))
        print(_line(results[-1]), flush=True)
        options.write(results)
    print(_table(options, results))
    return results


def _fabric(options: SoakOptions, rng: random.Random, seed: int, folder: Path, faults: Faults) -> Fabric:
    """The fabric of a round: a host more than the job has, credentials of its own, its state on the small disk."""
    from netfold.fabric.generate import leafspine

    fabric = leafspine(LEAVES, SPINES, HOSTS + 1, rate=options.link_rate, engine=options.engine,
                       rundir=sandbox.rundir(), seed=seed, **faults)
    files_of_tokens = {scope: folder / f"{scope}.token" for scope in ("operator", "job", "viewer", "stranger")}
    for path in files_of_tokens.values():
        files.replace(path, secrets.token_hex(32), mode=0o600)
    return msgspec.structs.replace(
        fabric, steady=rng.choice([0.3, 2.0]), state=str(folder / "disk" / "fabric.state"),
        fabric_key_file=str(folder / "fabric.key"), standby=f"unix:{sandbox.rundir()}/standby.sock",
        tenants=(Tenant("strangers", str(files_of_tokens["stranger"]), slots=NO_SLOTS, jobs=2),),
        **{f"{scope}_token_file": str(files_of_tokens[scope]) for scope in ("operator", "job", "viewer")},
    )


def _round(options: SoakOptions, seed: int) -> SoakRound:
    from netfold.topo.faults.injector import FaultInjector
    from netfold.topo.network.net import Network

    rng = random.Random(seed)
    kinds = msgspec.convert(options.names("faults", FAULTS), tuple[Fault, ...])
    each, faults = rng.choice([1, 1, 2]), rng.choice(LINKS)
    done: list[str] = []
    took: list[SoakResult] = []
    tried: Counter[str] = Counter()
    dropped: dict[str, int] = {}
    failed = ""
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as name, SmallDisk(Path(name) / "disk") as disk:
        folder = Path(name)
        fabric = _fabric(options, rng, seed, folder, faults)
        # what this process asks the controller, as an operator
        os.environ[tokens.TOKEN_FILE_VARIABLE] = str(fabric.operator_token_file)
        flights = disk.place / "flights"
        flights.mkdir()
        env = {tokens.TOKEN_FILE_VARIABLE: str(fabric.job_token_file), "NETFOLD_FLIGHT": str(flights)}
        over = folder / "over"
        work = SoakTask(seed, options.elements, str(over))
        command = rank_programs.command("soak", work)
        try:
            network = Network(fabric, logs=disk.place / "logs")
            network.file = folder / "fabric.toml"
            with network, Overhearing() as overheard:
                if "standby" in kinds:
                    network.start_standby()
                *hosts, outside = fabric.hosts
                ranks = network.launch(command, job="soak", hosts=[h for h in hosts for _ in range(each)], env=env)
                strangers = Strangers(network, ranks, outside,
                                      [str(fabric.viewer_token_file), str(fabric.tenants[0].token_file)], overheard)
                controllers, full = ControllerFaults(network, "standby" in kinds), FullDisk(disk, network, ranks)

                def end() -> None:
                    dropped.update(_dropped(network))
                    over.touch()

                victims = Victims(FaultInjector(network), ranks, controllers, strangers, full)
                steps = schedule(rng, kinds, victims, options.per_round, end)
                runner = StepRunner(steps, done)
                try:
                    for _, line in ranks.lines(within=WITHIN):
                        if line != STARTED:
                            took.append(msgspec.json.decode(line, type=SoakResult))
                        elif not runner.ident:
                            runner.start()
                finally:
                    try:
                        runner.stop()
                    finally:
                        for counts in (strangers.tried, controllers.tried, full.tried):
                            tried.update(counts)
        except (FabricFailed, StepFailed) as error:
            failed = str(error)
            disk.clear()
            if options.logs is not None:
                shutil.copytree(disk.place / "logs", options.logs / str(seed), dirs_exist_ok=True)
    return SoakRound(seed, each, faults, done, took, dict(tried), dropped, failed)


def _dropped(network: Network) -> dict[str, int]:
    """Unauthenticated packets that the switches have dropped.  Raises rpc.Unreachable."""
    status = network.status()
    return {"spoofed": sum(link.a_to_b.spoofed + link.b_to_a.spoofed for link in status.links),
            "punts refused": sum(switch.punts.refused for switch in status.switches)}


def _line(result: SoakRound) -> str:
    what = f"seed {result.seed}, {result.each} ranks a host, {dict(result.faults)}: {'; '.join(result.steps)}: "
    if result.failed:
        return f"{what}FAILED: {result.failed}"
    return (f"{what}{result.ranks[0].operations} sums, longest {max(took.longest for took in result.ranks):.2f} s, "
            f"{max(took.rounds for took in result.ranks)} times over other trees, "
            f"{sum(took.retransmissions for took in result.ranks)} packets again, tried: {_counts([result.tried])}")


def _table(options: SoakOptions, results: list[SoakRound]) -> str:
    failed = sum(bool(result.failed) for result in results)
    operations = sum(result.ranks[0].operations for result in results if result.ranks)
    return "\n".join([
        f"{options.engine}: {len(results)} rounds, {sum(len(r.steps) for r in results)} steps, {operations} sums on "
        f"every rank; {failed} rounds failed",
        f"tried: {_counts(result.tried for result in results)}",
        f"dropped by switches: {_counts(result.dropped for result in results)}; by ranks: "
        f"{sum(took.refused for result in results for took in result.ranks)}",
    ])


def _counts(many: Iterable[Mapping[str, int]]) -> str:
    total: Counter[str] = Counter()
    for counts in many:
        total.update(counts)
    return ", ".join(f"{count} {UNITS.get(name, name)}" for name, count in total.items()) or "nothing"
