# SPDX-License-Identifier: Apache-2.0
"""Works whose ``wait`` blocks the caller's stream and not its thread, as NCCL's: ``Options(wait="device")``.

The program then goes on before a collective is done, and is not there to hear of an error.  An operation that fails
leaves NaN, the log has its error at once, the communicator is at an end, and the group's next call raises the error;
``destroy_process_group`` does if there is no next call.

The host waits for operations that a device cannot finish by itself, as with ``wait="host"``; the log names them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import Final, Literal, get_args

import torch

from netfold.host.api.communicator import Communicator
from netfold.host.errors import NetFoldError, TransportError
from netfold.host.staging.copies import Staged
from netfold.host.staging.device import check_flags
from netfold.host.torch.completion import StartedOperation
from netfold.host.torch.tensors import dtype_name

WAIT_VARIABLE: Final = "NETFOLD_WAIT"
Wait = Literal["host", "device"]
"""What the ``wait`` of an operation on a device's tensors blocks."""

WITHOUT_NAN: Final = [getattr(torch, "float4_e2m1fn_x2", None)]  # torch 2.8

log = logging.getLogger("netfold")


def wait_from_environment(said: Wait | None = None) -> Wait:
    """What ``wait`` blocks: as asked for, or as $NETFOLD_WAIT says, or "host".  Raises ValueError."""
    found = os.environ.get(WAIT_VARIABLE, "host") if said is None else said
    for known in get_args(Wait):
        if found == known:
            return known  # type: ignore[no-any-return]
    name = f"environment variable {WAIT_VARIABLE}" if said is None else "wait"
    raise ValueError(f"{name}={found!r}: expected one of {', '.join(get_args(Wait))}")


def check_device() -> None:
    """Raises ValueError unless torch's current device, which this opens, can wait for the host."""
    try:
        check_flags()
    except ValueError as error:
        raise ValueError(f'wait="device": {error}: expected a device whose streams wait for a word of the host\'s '
                         f'memory; give Options(wait="host"), or leave {WAIT_VARIABLE} out') from error


class RunAhead:
    """Decides which operations of a group the device finishes by itself, and keeps the error of one that failed.

    on  False: none of them
    """

    def __init__(self, comm: Communicator, *, on: bool = False) -> None:
        self._comm, self._on = comm, on
        self._kept: deque[StartedOperation] = deque()
        """The last operations with a chain: the caller's thread frees their memory, once another one is done."""
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self.error: NetFoldError | None = None
        """The error of the first operation that has failed."""
        self.heard = False
        """True once the program has an error."""
        self._given_up = False

    def prepare(self, what: str, staged: Staged, fills: list[torch.Tensor]) -> None:
        """Gives an operation that has not begun a chain, if it can have one.

        what   its kind, for the log
        fills  its tensors that it fills
        Raises ValueError for a device that cannot wait for the host.
        """
        if not self._on:
            return
        why = _refused(fills) or staged.chain_up(self._comm.timeout)
        if why and (key := f"{what}: {why}") not in self._said:
            self._said.add(key)
            log.info("%r: %s: wait() blocks the host, since %s", self._comm, what, why)

    def begun(self, what: str, pending: StartedOperation) -> None:
        """Gives the device the chain of an operation that has begun.  Raises what the device does, which ends the
        communicator."""
        if pending.staged is None or (chain := pending.staged.chain) is None:
            return
        pending.on_error(self.hear)
        try:
            chain.give()
        except BaseException as error:
            self.failed(what, TransportError(f"{self._comm!r}, {what}: {pending.staged.place} does not take its "
                                             f"copies back: {error}"))
            self.hear()
            raise
        finally:
            # only now: where it has failed already they run here, and drop waits for a word that ``give`` lets come
            pending.when_done(lambda: self._ended(what, pending))
            pending.when_done(pending.staged.drop)  # the device goes on with NaN once the error is known
        self._keep(pending)

    def check(self) -> None:
        """Raises the error of an operation that the program has gone on without."""
        if self.error is not None:
            self.heard = True
            raise self.error

    def hear(self) -> None:
        """The program has been given the error."""
        self.heard = True  # it may come before ``failed``

    def give_up(self) -> None:
        """The program ends what is under way, and need not hear of it."""
        self._given_up = True

    def tell(self) -> None:
        """Raises the error unless the program has heard of it."""
        if not (self.heard or self._given_up):
            self.check()

    def failed(self, what: str, error: BaseException) -> None:
        """An operation has failed: ends the communicator and logs it, unless an earlier one has."""
        with self._lock:
            if self.error is not None:
                return  # what comes later ends with the same
            self.error = failed = (
                error if isinstance(error, NetFoldError) else TransportError(f"{self._comm!r}, {what}: {error}")
            )
        self._comm.fail(failed, "" if failed is error else f"{what}: {error}")
        log.log(
            logging.INFO if self._given_up else logging.ERROR,
            "%r: %s has failed after its caller went on; its tensors, and those of all later operations, hold NaN: "
            "%s: %s", self._comm, what, type(error).__name__, error,
        )

    def refuse(self, error: NetFoldError) -> None:
        """A call has raised an error of its device: all later ones of the group raise this one, also those that the
        communicator does not carry."""
        with self._lock:
            self.error = self.error or error
        self.heard = True

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _keep(self, pending: StartedOperation) -> None:
        """Keeps this operation, and frees those before it that nothing is left of but their memory: to free it takes
        the driver's locks, which the communicator's thread must not wait for."""
        over = []
        with self._lock:
            self._kept.append(pending)
            while len(self._kept) > 1 and self._kept[1].carried():  # so the first one's callbacks have ended
                over.append(self._kept.popleft())
        for one in over:
            if one.staged is not None:
                one.staged.let_go()

    def _ended(self, what: str, pending: StartedOperation) -> None:
        try:
            pending.await_end(0.0)
        except BaseException as error:
            self.failed(what, error)


def _refused(fills: list[torch.Tensor]) -> str:
    """Why tensors cannot be filled after their caller has gone on; empty if they can."""
    if not fills:
        return "it fills nothing here"
    for tensor in fills:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.dtype in WITHOUT_NAN:
            return f"{dtype_name(tensor.dtype)} has no value that says that there is no result"
    return ""
