# SPDX-License-Identifier: Apache-2.0
"""The demo: workers train a real model on real data, and the switches of a leaf-spine fabric fold every gradient.

    sandbox -> fabric started -> training -> the same allreduce by ring and by gloo over the same links
            -> tables, report.json, fabric.svg -> everything ended
"""

from __future__ import annotations

import contextlib
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Unpack

import msgspec

from netfold.disk import files
from netfold.fabric.generate import FabricOptions, leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import listeners, sandbox
from netfold.topo.network.mininet_path import MininetMissing
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.rxe import packages

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from netfold.demo import train
    from netfold.demo.measure import DemoMeasurement
    from netfold.demo.report import DemoReport
    from netfold.demo.train import LaneBits, Rail
    from netfold.topo.network.net import Network


class Scale(NamedTuple):
    """Links and training that fit into two minutes on two cores."""

    rate: str
    hidden: tuple[int, ...]
    steps: int


SCALES: Final[dict[Engine, Scale]] = {
    "softswitch": Scale("200mbit", (512, 512), 120),
    "bmv2": Scale("20mbit", (128,), 60),
}
MACHINE_SCALES: Final[dict[Engine, Scale]] = {
    "softswitch": Scale("200mbit", (128,), 10),
    "bmv2": Scale("10mbit", (32,), 5),
}
"""The same for virtual machines, whose processors are emulated."""

Hosts = Literal["namespaces", "rxe"]
RAILS: Final[dict[Hosts, Rail]] = {"namespaces": "innet", "rxe": "verbs"}
"""The rail that carries the gradients."""
TIMEOUTS: Final[dict[Hosts, float]] = {"namespaces": 10.0, "rxe": 60.0}
"""Seconds that a rank waits for the others."""



def demo(
    *,
    hosts: Hosts = "namespaces",
    ranks: int = 8,
    leaves: int = 2,
    spines: int = 2,
    steps: int | None = None,
    lane_bits: LaneBits = 32,
    out: Path = Path("build/demo"),
    metrics: str | None = None,
    stays_open: bool = False,
    faults: bool = False,
    **options: Unpack[FabricOptions],
) -> int:
    """Run the demo in a sandbox, print what was measured, and return an exit status.

    Raises FabricError for a fabric that cannot be, and where the page's address cannot be had.

    hosts      what the workers run in; "rxe": virtual machines, whose kernels' RDMA stack carries the gradients
    steps      of training; by default, like the rate in ``options``, those of SCALES for the switch
    lane_bits  bits of an element in a packet; below 32 with error feedback
    out        folder for report.json, fabric.svg and logs
    metrics    ``host:port`` of the web page; None: there is none
    stays_open whether the fabric, and its page, stay at the end until Ctrl-C
    faults     whether the switches' program can inject faults though no link has any
    options    options of the fabric (`FabricOptions`)
    """
    scale = (MACHINE_SCALES if hosts == "rxe" else SCALES)[options.get("engine", "softswitch")]
    options["rate"] = options.get("rate") or scale.rate
    options["rdma"] = hosts == "rxe"
    asked = msgspec.structs.replace(leafspine(leaves, spines, ranks, **options), metrics=metrics)
    for option, given, least in (("--steps", steps, 1), ("--ranks", ranks, 2)):
        if given is not None and given < least:
            print(f"netfold: demo {option}: expected at least {least}, got {given}", file=sys.stderr)
            return 2
    for package, remedy in (("mininet", "sudo apt install mininet"), ("sklearn", "pip install scikit-learn")):
        if not _installed(package):
            print(f"netfold: demo needs {package}, which is not installed: {remedy}", file=sys.stderr)
            return 1
    if hosts == "rxe" and not sandbox.inside():
        try:
            packages.fetch()
        except packages.PackagesMissing as error:
            print(f"netfold: demo --hosts rxe needs virtual machines: {error}", file=sys.stderr)
            return 1
    listeners.enter([asked])
    # imported inside the sandbox, so that the program that starts it stays quick
    from netfold import terminal
    from netfold.rpc.rpc import Unreachable

    options["rundir"] = sandbox.rundir()
    fabric = leafspine(leaves, spines, ranks, **options)
    # machines may be silent for long, too
    fabric = msgspec.structs.replace(fabric, metrics=metrics, faults=faults,
                                     lease=max(fabric.lease, TIMEOUTS[hosts]))
    try:
        report = _run(fabric, hosts, scale, steps or scale.steps, lane_bits, out, terminal.console(), stays_open)
    except (FabricFailed, Unreachable, OSError) as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; everything is torn down", file=sys.stderr)
        return 130
    if report.rail != RAILS[hosts]:
        print(f"netfold: the switches did not fold: {report.explain}", file=sys.stderr)
        return 1
    if not report.final_weights_equal:
        print("netfold: the ranks ended with different weights: this must never be", file=sys.stderr)
        return 1
    return 0


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except MininetMissing:
        return False


def _run(
    fabric: Fabric, hosts: Hosts, scale: Scale, steps: int, lane_bits: LaneBits, out: Path, console: Console,
    stays_open: bool,
) -> DemoReport:
    from netfold.controller.web.picture import draw
    from netfold.demo import measure, train
    from netfold.demo import report as reports
    from netfold.topo.fault_service import FaultService
    from netfold.topo.network.net import Network
    from netfold.topo.rxe.hosts import Guests

    out.mkdir(parents=True, exist_ok=True)
    guests = Guests([host.name for host in fabric.hosts]) if hosts == "rxe" else None
    network = Network(fabric, logs=out / "logs", guests=guests)
    network.share.mkdir(parents=True, exist_ok=True)
    data, weights = network.share / "digits.npz", network.share / "weights.npy"
    train.save_digits(data)
    spec = train.TrainingSpec(str(data), steps, scale.hidden, seed=fabric.seed, weights=str(weights),
                              rail=RAILS[hosts], timeout=TIMEOUTS[hosts], lane_bits=lane_bits, feedback=lane_bits != 32)
    losses = max(link.loss for link in fabric.links)
    console.print(
        f"{fabric.name}: {len(fabric.switches)} P4 switches ({fabric.engine}), "
        f"{len(fabric.hosts)} workers, links of {fabric.links[0].rate}"
        + (f", lanes of {lane_bits} bits" if lane_bits != 32 else "")
        + (f", each losing {losses:.1%} of its packets" if losses else "")
    )
    with contextlib.ExitStack() as running:
        service = running.enter_context(FaultService([network], sandbox.rundir()))
        running.enter_context(network)
        running.enter_context(service.while_up())
        page = listeners.url(fabric)
        console.print("fabric, controller and switches are up" + (f"; page and metrics at {page}" if page else ""))
        if guests is not None:
            seconds = max(guests.boot_seconds.values())
            console.print(f"{len(guests.names)} virtual machines with Debian's kernel and rdma_rxe, in {seconds:.0f} s")
        found = measure.measure(network, guests, spec, console)
        if stays_open:
            console.print("now the same training in a single process")
        else:
            running.close()
            console.print("the fabric is down; now the same training in a single process")
        report = summary(fabric, hosts, spec, found)
        console.print()
        reports.show(report, console)
        report.save(out / "report.json")
        title = f"{fabric.name}: {steps} steps, {reports.size(report.gradient_bytes)} of gradient each"
        files.replace(out / "fabric.svg", draw(fabric, report.links, title, reports.size))
        console.print(f"\nreport {out / 'report.json'}, picture {out / 'fabric.svg'}, logs {out / 'logs'}")
        if stays_open:
            _stay(network, spec, page, console, trains=guests is None)
    return report


def summary(fabric: Fabric, hosts: Hosts, spec: train.TrainingSpec, found: DemoMeasurement) -> DemoReport:
    """The report of what was measured, beside the same training in this process."""
    from netfold.demo import measure, train
    from netfold.demo import report as reports

    results, trained, ring = found.results, found.trained, found.ring
    single_weights, single_loss, single_accuracy = train.train_single_process(spec)
    final = _load_weights(Path(spec.weights))
    names = {host.name for host in fabric.hosts}
    # an operation of a timing is the allreduce of one gradient, as in a step of training
    ring_scale = spec.steps / (measure.TIMING_REPEATS + measure.TIMING_WARMUP)
    return reports.DemoReport(
        engine=fabric.engine,
        hosts=hosts,
        ranks=len(fabric.hosts),
        leaves=sum(switch.role == "leaf" for switch in fabric.switches),
        spines=sum(switch.role == "spine" for switch in fabric.switches),
        rate=fabric.links[0].rate,
        loss_rate=max(link.loss for link in fabric.links),
        seed=fabric.seed,
        steps=spec.steps,
        seconds=max(result.seconds for result in results),
        seconds_in_allreduce=max(result.reduce_seconds for result in results),
        rail=results[0].rail,
        explain=results[0].explain,
        final_weights_equal=len({result.weights for result in results}) == 1,
        weights_sha256=results[0].weights,
        max_abs_diff_vs_single=float(abs(final - single_weights).max()),
        loss=results[0].loss,
        loss_single=single_loss,
        accuracy=results[0].accuracy,
        accuracy_single=single_accuracy,
        gradient_bytes=results[0].gradient_bytes,
        lane_bits=spec.lane_bits,
        bytes_per_host_link=reports.host_link_bytes(trained, names),
        ring_bytes_per_host_link=None if ring is None else reports.host_link_bytes(ring, names) * ring_scale,
        retransmissions=sum(result.retransmissions for result in results),
        packets_sent=sum(result.packets_sent for result in results),
        packets_lost=sum(lost for _, _, lost in trained.values()),
        packets_folded=found.folded,
        nic_retransmissions=sum(nic.data_sent - nic.needed for nic in found.nics) if found.nics else None,
        nics=found.nics,
        trees=found.trees,
        times=found.times,
        links=reports.link_bytes(trained, ring, ring_scale),
    )


def _stay(network: Network, spec: train.TrainingSpec, page: str, console: Console, *, trains: bool) -> None:
    """Keep the fabric until Ctrl-C, and train anew, again and again, so that there is something to look at, and to
    break; virtual machines, which take long to start a training, stand idle.  Raises SwitchFailed, ControllerFailed
    where the fabric ends before."""
    from netfold.demo import measure
    from netfold.topo.processes.failures import RankFailed

    on = ", and trains on" if trains else ""
    console.print(f"\nthe fabric stays open, its page at {page}{on}: Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            network.check()
            if not trains:
                time.sleep(1)
                continue
            try:
                measure.launch(network, spec).wait(measure.TRAIN_SECONDS)
            except RankFailed as error:  # somebody has killed a rank, say: the others have told why
                console.print(f"the training has failed, and begins anew: {str(error).splitlines()[0]}")
                time.sleep(1)


def _load_weights(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    import numpy as np

    weights: np.ndarray[tuple[int], np.dtype[np.float32]] = np.load(path)
    return weights
