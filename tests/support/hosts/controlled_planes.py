# SPDX-License-Identifier: Apache-2.0
"""Planes on loopback addresses in one process, each with a real controller whose switches are in memory: rails of the
kind tcp work, and those that fold have plans and no switch."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec import structs

from netfold.controller.controller import Controller
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.host.api.communicator import Communicator
from netfold.host.client.membership import Membership
from netfold.host.errors import NetFoldError
from netfold.host.opening.planes import Plane, RailSpec
from netfold.host.rails import joining
from netfold.testing import subnet
from support.control.controller import BOUND, MemorySwitch
from support.hosts.insides import parts_of
from support.hosts.loopback_rails import NAMES, STALL, known_links

REJOIN = 4.0
"""Seconds that a rail waits for a rank that does not come: all of them live in this process."""


class Killed(BaseException):
    """Ends a rank's thread where it is, as SIGKILL would; ``bury`` closes what the kernel would."""

    def __init__(self, bury: Callable[[], None]) -> None:
        super().__init__()
        self.bury = bury


class Controlled:
    """The ranks of one job on planes that run.

    specs  by host: its rails
    job    the job's name
    """

    def __init__(self, specs: Sequence[Sequence[RailSpec]], job: str, stack: ExitStack) -> None:
        self.specs = specs
        self.job = job
        self._dead: set[int] = set()
        """Hosts whose ranks have been killed."""
        self._made: list[Communicator] = []
        leave = Membership.leave

        def leaves(membership: Membership, *given: Any, **named: Any) -> None:
            if self.host_of(membership) not in self._dead:
                leave(membership, *given, **named)

        stack.enter_context(mock.patch.object(Membership, "leave", leaves))
        stack.enter_context(mock.patch.object(joining, "REJOIN", REJOIN))
        stack.enter_context(known_links())
        stack.enter_context(mock.patch.dict(os.environ, {joining.STALL_VARIABLE: STALL}))

    def host_of(self, membership: Membership) -> int:
        """The host of a rank."""
        address = membership.plan.peers[membership.plan.rank].address
        return next(at for at, specs in enumerate(self.specs) if address in [spec.plane.address for spec in specs])

    def join(self, hosts: Sequence[int], **settings: Any) -> list[Communicator]:
        """The communicators of ranks on these hosts."""
        with ThreadPoolExecutor(len(hosts)) as pool:
            made = [pool.submit(Communicator.join, self.job, rank, len(hosts), rails=self.specs[host], **settings)
                    for rank, host in enumerate(hosts)]
        self._made += [future.result() for future in made]
        return [future.result() for future in made]

    def come(self, host: int, **settings: Any) -> Communicator:
        """A rank on this host joins the others, which call ``grow``."""
        self._made.append(Communicator.join_running(self.job, rails=self.specs[host], **settings))
        return self._made[-1]

    def end(self) -> None:
        """Closes what the ranks that were killed have left open."""
        for comm in self._made:
            if self.host_of(parts_of(comm).membership) in self._dead:
                comm.fail(NetFoldError("killed"))
                comm.close()

    def dies(self, host: int) -> None:
        """The rank of this host ends here, without a word to anybody.  Raises Killed."""
        self._dead.add(host)
        raise Killed(self.end)

    def kill(self, comm: Communicator) -> None:
        """Ends a rank that is in no call, without a word to anybody."""
        self._dead.add(self.host_of(parts_of(comm).membership))
        comm.fail(NetFoldError("killed"))
        comm.close()


@contextmanager
def controller(fabric: Fabric) -> Iterator[None]:
    """The controller of a fabric whose switches are in memory, on a thread of its own."""
    switches = {switch.name: MemorySwitch(switch.name) for switch in fabric.switches}
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with Controller(fabric, connect=lambda switch: switches[switch.name].connect(), rng=random.Random(5),
                              start_timeout=BOUND):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(BOUND), f"the controller of {fabric.name} did not start in {BOUND:g} s"
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(BOUND)
        loop.close()


@contextmanager
def controlled_planes(planes: int, hosts: int) -> Iterator[list[list[RailSpec]]]:
    """So many planes with so many hosts each.  Yields the rails of each host."""
    specs: list[list[RailSpec]] = [[] for _ in range(hosts)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in NAMES[:planes]:
            net = subnet()
            (folder / name).mkdir()
            one = leafspine(1, 0, hosts, rundir=folder / name, path_mtu=1024)
            fabric = structs.replace(one, probe=0, hosts=tuple(
                structs.replace(host, address=f"{net}.{at + 1}") for at, host in enumerate(one.hosts)))
            stack.enter_context(controller(fabric))
            for at, host in enumerate(fabric.hosts):
                specs[at].append(RailSpec("tcp", Plane(host.address, fabric.jobs), f"tcp@{name}"))
        yield specs


@contextmanager
def controlled_job(specs: Sequence[Sequence[RailSpec]], job: str) -> Iterator[Controlled]:
    """A job of this name on hosts that have these rails."""
    with ExitStack() as stack:
        made = Controlled(specs, job, stack)
        yield made
        made.end()


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls, or the errors that they have raised, on a thread of its own each."""
    results: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except Killed as killed:
            killed.bury()
            results[place] = killed
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive(), f"a rank is not done in {BOUND:g} s"
    return results
