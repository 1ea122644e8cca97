# SPDX-License-Identifier: Apache-2.0
"""A whole fabric that runs: Mininet, its switches, the controller, and processes of ranks in the hosts.

    with Network(fabric, logs=Path("build/demo/logs")) as network:
        ranks = network.launch([sys.executable, "-m", "netfold.demo.train", spec], job="digits")
        for rank, line in ranks.lines(within=60):
            ...

Every wait has a limit, and whatever was started is ended by its process number.  Run it in a `sandbox`, so that the
kernel removes everything even after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mininet.net import Mininet

from netfold.controller import client
from netfold.disk import files
from netfold.fabric import file as fabric_file
from netfold.fabric.graph import Fabric, Host, Link
from netfold.rpc import rpc
from netfold.rpc.certificates import Certificates
from netfold.topo.network import host_names, listeners, sandbox
from netfold.topo.network.guests import GuestHosts, Surroundings
from netfold.topo.network.startup import CONTROLLER_SECONDS, SWITCHES_SECONDS
from netfold.topo.network.switches import CLASSES, FORKS, P4Switch
from netfold.topo.network.topology import FabricTopo
from netfold.topo.network.wiring import execute
from netfold.topo.processes.failures import ControllerFailed
from netfold.topo.processes.forks import ChildProcess
from netfold.topo.processes.lifecycle import Lifecycle, tail, terminate
from netfold.topo.processes.ranks import Enter, Ranks, environment, in_namespaces, start
from netfold.wire import operator


class Network(Lifecycle):
    """A running fabric.

    logs        folder for every process's output
    pcap        folder for captures of every switch port, or None
    offload     whether segmentation offloads stay on; None: on where the switch takes super-packets
    controller  whether to start the controller
    tls         see `FabricTopo`
    guests      hosts that are no namespaces, such as virtual machines (rxe/hosts.py)
    mtu         of all links; None: what the fabric's path MTU asks for
    """

    def __init__(
        self,
        fabric: Fabric,
        *,
        logs: Path,
        pcap: Path | None = None,
        offload: bool | None = None,
        controller: bool = True,
        tls: Certificates | None = None,
        guests: GuestHosts | None = None,
        mtu: int | None = None,
    ) -> None:
        self.fabric = fabric
        self._mtu = mtu
        self.logs = logs
        self.file = logs / "fabric.toml"
        """The fabric file, written for the controller and other commands."""
        self.mininet: Any = None
        self.is_up = False
        """True if all of it has started; later injected faults do not change that."""
        self.excused: set[str] = set()
        """Names of switches, and "controller", whose end is an injected fault and no failure."""
        self._pcap = pcap
        self._offload = offload
        self._tls = tls
        self._guests = guests
        self._wants_controller = controller
        self._controller: ChildProcess | None = None
        self._standby: ChildProcess | None = None
        self._command: list[str] = []
        """The command line of the controller or standby that was started last."""
        self._jobs = fabric.jobs
        self._running: list[Ranks] = []

    # ---- starting and stopping --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start hosts, switches and the controller.

        Raises SwitchFailed, WiringError, ControllerFailed, and FabricFailed for guests.
        """
        self.share.mkdir(parents=True, exist_ok=True)
        if self._pcap is not None:
            self._pcap.mkdir(parents=True, exist_ok=True)
        kind = CLASSES[self.fabric.engine]
        kind.setup()
        host_names.tell([self.fabric])
        # Mininet would raise limits of the whole machine, and leave them raised
        Mininet.inited = True
        self.mininet = Mininet(switch=kind, controller=None, build=False)
        self.mininet.topo = FabricTopo(
            self.fabric, logs=self.logs.absolute(), pcap=self._pcap, offload=self._offload, tls=self._tls,
            guests=() if self._guests is None else self._guests.names, mtu=self._mtu,
        )
        self.mininet.build()
        if self._guests is not None:
            self._start_guests(self._guests)
        self.mininet.start()
        if self._wants_controller:
            self.start_controller()
        if self._guests is not None:
            self._guests.wait_ready()

    def _start_guests(self, guests: GuestHosts) -> None:
        """Start the guests, which boot while the switches and the controller start."""
        jobs = [address for address in (self.fabric.jobs, self.fabric.standby) if address]
        guests.start(Surroundings(
            self.mininet.topo.guest_links, {switch.name: switch for switch in self.switches}, logs=self.logs.absolute(),
            folder=sandbox.rundir(), share=self.share,
            sockets=[Path(address.removeprefix("unix:")) for address in jobs if address.startswith("unix:")],
        ))

    def start_controller(self, *, switches: bool = True) -> None:
        """Start `netfold up` and wait until it serves jobs.  Raises ControllerFailed, and SwitchFailed where
        ``switches`` must run."""
        fabric_file.save(self.fabric, self.file)
        self._jobs = self.fabric.jobs
        self._controller = self._netfold_up("controller.log", "--timeout", f"{SWITCHES_SECONDS:g}")
        self._await_controller(self._controller, switches=switches)
        self.is_up = True

    def _netfold_up(self, log: str, *options: str) -> ChildProcess:
        """Start `netfold up` for this fabric, by the fork server that has started the switches; one that inherits
        listeners starts anew.  Raises ControllerFailed."""
        self._command = command = [sys.executable, "-m", "netfold.cli", "up", str(self.file), "--verbose", *options]
        inherited = listeners.numbers(self.fabric)
        with files.append(self.logs / log) as output:
            if inherited:
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                        start_new_session=True, pass_fds=inherited)
            try:
                return FORKS.start(command, output, output)
            except OSError as error:
                raise ControllerFailed(f"the fork server did not start the controller of {self.fabric.name} ({error}): "
                                       f"run {shlex.join(command)} by hand to see why") from error

    def _await_controller(self, process: ChildProcess, *, switches: bool = True) -> None:
        """Wait until the controller answers, which is this process.  Raises ControllerFailed, and SwitchFailed where
        ``switches`` must run."""
        started, patience = time.monotonic(), 0.5
        while True:
            with contextlib.suppress(rpc.Unreachable):
                self.status(timeout=patience)
                return
            # one that is there may need longer for an answer, which it has of all switches, on a busy machine
            patience = min(1.5 * patience, CONTROLLER_SECONDS / 4)
            self.check(switches=switches)
            seconds = time.monotonic() - started
            if seconds > CONTROLLER_SECONDS:
                raise ControllerFailed(self._controller_failure(
                    f"does not answer after {seconds:.0f} s, with a load of {os.getloadavg()[0]:.0f} on "
                    f"{os.cpu_count()} processors; what it has compiled is kept: start again, when less else runs"))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)

    @property
    def controller(self) -> ChildProcess | None:
        """The controller's process; None where there is none."""
        return self._controller

    def end_controller(self, number: signal.Signals) -> None:
        """Send the controller a signal, and wait until it has ended."""
        assert self._controller is not None, "there is no controller"
        self._controller.send_signal(number)
        self._controller.wait(CONTROLLER_SECONDS)
        self._controller = None

    def start_standby(self) -> None:
        """Start `netfold up --standby` and wait until it watches the switches."""
        self._standby = self._netfold_up("standby.log", "--standby")
        log = self.logs / "standby.log"
        started = time.monotonic()
        while b"standby: fabric" not in log.read_bytes():
            if self._standby.poll() is not None or time.monotonic() - started > CONTROLLER_SECONDS:
                raise ControllerFailed("\n".join(["the standby does not wait; the end of its log:", *tail(log)]))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._standby.wait(0.1)

    def take_over(self, meanwhile: Callable[[], None] = lambda: None, *, hang: bool = False) -> None:
        """Kill the controller, or have it ``hang``, and wait until the standby serves jobs in its place.  Raises
        ControllerFailed.

        meanwhile  called while there is no controller; what it does to switches is no failure of theirs"""
        assert self._standby is not None, "there is no standby"
        assert self.fabric.standby is not None
        if hang:
            assert self._controller is not None, "there is no controller"
            self._controller.send_signal(signal.SIGSTOP)
        else:
            self.end_controller(signal.SIGKILL)
        meanwhile()
        self._jobs = self.fabric.standby
        self._await_controller(self._standby, switches=False)

    def check(self, *, switches: bool = True) -> None:
        """Raise SwitchFailed or ControllerFailed where one has ended, and FabricFailed for a guest; the ranks alone
        would only see a timeout."""
        if self._guests is not None:
            self._guests.check()
        for switch in self.switches if switches else ():
            if switch.name not in self.excused:
                switch.check()
        watched = () if "controller" in self.excused else (self._controller, self._standby)
        ended = [process.poll() for process in watched if process is not None]
        for status in (status for status in ended if status is not None):
            raise ControllerFailed(self._controller_failure(f"ended with status {status}"))

    def _controller_failure(self, what: str) -> str:
        log = self.logs / "controller.log"
        lines = [
            f"the controller of {self.fabric.name} {what}",
            f"  jobs at  {self.fabric.jobs}",
            f"  log      {log}, its end:",
            *(f"    {line}" for line in tail(log)),
        ]
        if self._command:
            lines.insert(1, f"  command  {shlex.join(self._command)}")
        return "\n".join(lines)

    def stop(self) -> None:
        """End everything that was started, in reverse order."""
        self.is_up = False
        for ranks in self._running:
            ranks.stop()
        self._running.clear()
        for process in (self._standby, self._controller):
            if process is not None:
                terminate(process)
        self._standby = self._controller = None
        if self._guests is not None:
            self._guests.stop()
        if self.mininet is not None:
            self.mininet.stop()
            self.mininet = None

    @property
    def jobs(self) -> str:
        """Address at which the controller serves jobs: that of the standby once it has taken over."""
        return self._jobs

    # ---- what runs in it -------------------------------------------------------------------------------------------

    @property
    def switches(self) -> list[P4Switch]:
        """The switch processes."""
        return list(self.mininet.switches)

    @property
    def share(self) -> Path:
        """A folder that the programs of all hosts read and write, those of guests too; it is there once started."""
        return self.logs.absolute() / "share"

    def runs(self, node: str) -> bool:
        """True if a node has a namespace here: virtual machines and nodes of other machines have none."""
        return node in self.mininet

    def set_link(self, link: Link, *, up: bool) -> None:
        """Take the switch end of a link up or down: a host at the other end loses its carrier and keeps its routes.

        Raises WiringError.
        """
        switches = {switch.name: switch for switch in self.switches}
        end = next(end for end in link.ends if end.node in switches)
        name = dict(switches[end.node].interfaces())[end.port]
        state = "up" if up else "down"
        execute(switches[end.node], f"ip link set dev {name} {state}", f"taking {link.a} - {link.b} {state}")

    def status(self, timeout: float = client.TIMEOUT) -> operator.Status:
        """Ask the controller for the status of the fabric.  Raises rpc.Unreachable."""
        try:
            return asyncio.run(client.status(self._jobs, timeout=timeout))
        except asyncio.CancelledError:
            # Ctrl-C cancels the call, and asyncio.run does not turn every cancellation back into a KeyboardInterrupt
            raise KeyboardInterrupt from None

    def launch(
        self,
        command: Sequence[str],
        *,
        job: str,
        hosts: Sequence[Host] | None = None,
        env: Mapping[str, str] | None = None,
        each: Sequence[Mapping[str, str]] = (),
    ) -> Ranks:
        """Run ``command`` in every host (default: all of the fabric, in order) as a rank of ``job``.

        Its environment is that of this process, overridden by ``env``, by ``each`` of its rank, and by `environment`.
        Its standard error goes to a log file.
        """
        hosts = list(self.fabric.hosts) if hosts is None else list(hosts)
        enters = [self._enter(host) for host in hosts]
        ranks = Ranks(job)
        self._running.append(ranks)
        for rank, (host, enter) in enumerate(zip(hosts, enters, strict=True)):
            ours = {**(each[rank] if each else {}), **environment(self.fabric, hosts, rank, job=job)}
            log = self.logs / f"{job}-rank{rank}.log"
            with files.create(log) as errors:
                ranks.add(start(command, enter, {**(env or {}), **ours}, errors), host.name, log)
        return ranks

    def _enter(self, host: Host) -> Enter:
        if self._guests is not None and host.name in self._guests.names:
            return self._guests.enter(host.name)
        return in_namespaces(self.mininet.get(host.name).pid)
