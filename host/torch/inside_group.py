# SPDX-License-Identifier: Apache-2.0
"""A process group of torch's between the ranks of one machine, by which they reduce tensors on their devices
(``staging.device_step``): NCCL's, or gloo's in its place.

Neither tells soon of a rank that is gone, and NCCL never does; so every wait also looks at the mesh between the ranks,
and at the clock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal, get_args

import torch
import torch.distributed as dist

from netfold.host.collectives.barrier import SplitBarrier
from netfold.host.collectives.flow import run
from netfold.host.collectives.inner_step import ROW
from netfold.host.collectives.shared_memory import shared_file
from netfold.host.errors import CollectiveTimeout, NetFoldError, TransportError
from netfold.host.mesh.mesh import LOST_RANK_SECONDS, Mesh
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.measure import measure_inside
from netfold.host.staging.bundles import Lane
from netfold.host.staging.device import Device, DeviceStream
from netfold.host.staging.device_step import DeviceStep, MachineGroup
from netfold.host.torch.completion import run_apart

INSIDE_VARIABLE: Final = "NETFOLD_INSIDE"
Inside = Literal["auto", "group", "memory"]
"""The reducer of tensors on devices inside a machine: a process group where it is NCCL's and NetReduce's condition
holds, a process group in any case, or shared memory."""
OPENING: Final = 0.4
"""Part of the timeout within which a group opens, so that ranks which fail can tell the others in time."""
LOOKS: Final = 0.05
"""Seconds between two looks at the mesh while a collective of the group runs."""
FAILED_SECONDS: Final = 1.0
"""Seconds for which a rank whose group has failed listens for the name of the rank that is to blame."""
OWN_SECONDS: Final = 60.0
"""Seconds by which torch's own limit is longer than twice ours."""
TRIED: Final = 64
"""Elements of each rank's piece, when a group is tried."""
LONGEST_SLEEP: Final = 1e-3
"""Seconds: most time between two questions whether a collective is done."""


def inside_from_environment(said: Inside | None = None) -> Inside:
    """The reducer inside a machine: the one asked for, or that of $NETFOLD_INSIDE, or "memory".  Raises ValueError."""
    found = os.environ.get(INSIDE_VARIABLE, "memory") if said is None else said
    for known in get_args(Inside):
        if found == known:
            return known  # type: ignore[no-any-return]
    name = f"environment variable {INSIDE_VARIABLE}" if said is None else "inside"
    raise ValueError(f"{name}={found!r}: expected one of {', '.join(get_args(Inside))}")


def kind_of(place: torch.device, inside: Inside) -> str | None:
    """The backend of a group for tensors on this device; None: nothing but shared memory reduces them."""
    if inside == "memory" or (inside == "auto" and place.type == "cpu"):
        return None
    if place.type == "cuda" and dist.is_nccl_available():
        return "nccl"
    return "gloo" if inside == "group" else None


class Opener:
    """Opens and measures a machine's group, for whatever folds the job's sums.

    kind    of backend
    forced  the group is used whatever it is measured to be, and must open
    lane    of the device on which it is tried
    """

    def __init__(self, kind: str, lane: Lane, *, forced: bool) -> None:
        self.kind, self.forced, self._lane = kind, forced, lane

    def open(self, local: Mesh, address: str, timeout: float) -> ProcessGroup:
        """Opens the group of ``local``, all of whose ranks call it inside an operation, and tries its sums.

        address  of the machine on the fabric
        timeout  of its collectives, in seconds
        Raises TransportError where this rank cannot, and the errors of ``Mesh.wait``.
        """
        opened: list[ProcessGroup] = []
        failed: list[BaseException] = []
        steps, device = SplitBarrier(local), self._lane.device
        store = _store(local)

        def open_() -> None:  # NCCL, and a store, wait for the others as long as they like
            try:
                group = ProcessGroup(torch_group(self.kind, store, local, address, timeout), self.kind, local, timeout)
                opened.append(group)
                group.try_(device)
            except BaseException as error:  # raised below
                failed.append(error)

        run(local, steps.begin())
        thread = threading.Thread(target=open_, name="netfold-inside", daemon=True)
        thread.start()
        ended = _await(lambda: not thread.is_alive(), local, OPENING * timeout)
        steps.end()
        run(local, steps.begin())  # also where it has failed: others may still try
        steps.end()
        if failed or not ended:
            for group in opened:
                group.close()
            why = failed[0] if failed else f"it is not open after {OPENING * timeout:g} s"
            raise TransportError(f"{self.kind} between the ranks of the machine: {why}")
        return opened[0]

    def measure(self, group: MachineGroup, parts: int) -> LinkCost:
        """The cost of the steps of a window, copies of the pieces included (``measure_inside``); all of the machine's
        ranks call it, inside an operation.

        parts  pieces of a window
        """
        lane = self._lane
        values = torch.zeros(group.row // 4, device=lane.device.place)
        step = DeviceStep(lane, values, lane.ready(), group)
        cost = measure_inside(group.local, group.local, step, parts=parts, memory=step.array)
        step.finish()
        return cost


class ProcessGroup:
    """Implements ``staging.device_step.MachineGroup``.

    backend  torch's group of the ranks of ``local``, owned from here on
    timeout  in seconds, of a collective
    """

    row = ROW

    def __init__(self, backend: Any, kind: str, local: Mesh, timeout: float) -> None:
        self._backend, self.kind, self.local, self.timeout = backend, kind, local, timeout

    def try_(self, device: Device) -> None:
        """Makes both collectives once, and checks what they fill.  Waits as long as torch does; raises
        RuntimeError."""
        rank, size = self.local.rank, self.local.size
        stream, ended = device.stream(), device.event()
        with device.on(stream):
            data = torch.full((TRIED * size,), rank + 1.0, device=device.place)
            mine = data[rank * TRIED : (rank + 1) * TRIED]
            self._backend._reduce_scatter_base(mine, data).wait()
            self._backend._allgather_base(data, mine).wait()
        ended.record(stream)
        ended.synchronize()
        wrong = (data != size * (size + 1) / 2).nonzero().flatten().tolist()
        if wrong:
            raise RuntimeError(f"a sum of 1 .. {size} is {data[wrong[0]].item()} at element {wrong[0]}, expected "
                               f"{size * (size + 1) // 2}")

    def reduce_scatter(self, device: Device, stream: DeviceStream, out: torch.Tensor, data: torch.Tensor) -> None:
        """See ``MachineGroup``."""
        self._carry(device, stream, "reduce_scatter", lambda: self._backend._reduce_scatter_base(out, data))

    def all_gather(self, device: Device, stream: DeviceStream, out: torch.Tensor, mine: torch.Tensor) -> None:
        """See ``MachineGroup``."""
        self._carry(device, stream, "all_gather", lambda: self._backend._allgather_base(out, mine))

    def close(self) -> None:
        """Releases everything; safe to call twice, and after ``_give_up``."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.shutdown()

    def _give_up(self) -> None:
        """Ends what is under way, without waiting for that: gloo's end waits for the other ranks."""
        given, self._backend = [self._backend], None

        def end() -> None:
            backend = given.pop()
            with contextlib.suppress(RuntimeError):  # of a group that has failed
                getattr(backend, "abort", backend.shutdown)()

        run_apart(end)

    def _carry(self, device: Device, stream: DeviceStream, what: str, begin: Callable[[], Any]) -> None:
        """Runs a collective on a stream, and waits until it is done there."""
        me = f"{what} by {self.kind} between the {self.local.size} ranks of the machine"
        try:
            if self.kind == "gloo":  # which may read at once, whatever the stream has still to do
                filled = device.event()
                filled.record(stream)
                filled.synchronize()
            with device.on(stream), torch.inference_mode():
                work = begin()
            waiting = WaitApart(work, device, stream)
            done = work.is_completed
            if self.kind == "gloo":  # not all of whose works say that they are done
                run_apart(waiting.wait)
                done = waiting.ended.is_set
            if not _await(done, self.local, self.timeout):
                raise CollectiveTimeout(f"{me}: not done after {self.timeout:g} s; one of them is gone or has stopped")
            waiting.result()
        except BaseException as error:
            self._give_up()
            if isinstance(error, NetFoldError) or not isinstance(error, RuntimeError):
                raise
            _await(lambda: False, self.local, FAILED_SECONDS)  # the mesh names the rank that is to blame
            raise TransportError(f"{me}: {error}; {INSIDE_VARIABLE}=memory does without it") from error


class WaitApart:
    """Orders a stream behind a collective of torch's, and keeps its error."""

    def __init__(self, work: Any, device: Device, stream: DeviceStream) -> None:
        self._work, self._device, self._stream = work, device, stream
        self.ended = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Returns once the stream is ordered behind it; gloo's is done then."""
        try:
            with self._device.on(self._stream):
                self._work.wait()
        except BaseException as error:  # raised by whoever asks for the result
            self._error = error
        self.ended.set()

    def result(self) -> None:
        """Raises its error."""
        if not self.ended.is_set():
            self.wait()
        if self._error is not None:
            raise self._error


def _await(done: Callable[[], bool], local: Mesh, seconds: float) -> bool:
    """Waits until something is done that is no message; False: it is not within so many seconds.  Raises the errors of
    ``Mesh.look``."""
    now = time.monotonic()
    end, look, pause = now + seconds, now + LOST_RANK_SECONDS, 1e-5
    while not done():
        time.sleep(pause)
        pause, now = min(2 * pause, LONGEST_SLEEP), time.monotonic()
        if now >= end:
            return False
        if now >= look:
            look = now + LOOKS
            local.look()
    return True


def _store(local: Mesh) -> dist.FileStore:
    """A store in shared memory, for the machine's ranks alone: it needs no port, and no name of a host.  What its
    descriptor keeps has no name any more."""
    file = shared_file(local, 0)
    return dist.FileStore(f"/proc/self/fd/{file}")


def torch_group(kind: str, store: dist.Store, local: Mesh, address: str, timeout: float) -> Any:
    """Torch's group.  Its own limit is longer than ours: NCCL's would end the process."""
    limit = timedelta(seconds=2 * timeout + OWN_SECONDS)
    if kind == "nccl":
        wanted = dist.ProcessGroupNCCL.Options()
        wanted._timeout = limit
        return dist.ProcessGroupNCCL(store, local.rank, local.size, wanted)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = limit
    return dist.ProcessGroupGloo(store, local.rank, local.size, options)
