# SPDX-License-Identifier: Apache-2.0
"""Copies back that the device begins by itself, so that the host may run ahead of a collective.

    caller's thread        at the call: gives the device all of this, and goes on
      out                  ready -> copies out -> arrived
      late                 arrived -> tells the host
      back                 arrived, wait for word 1 -> copies back of part 1 -> wait for word 2 -> ... -> told -> done
    communicator's thread  told -> collective of part 1 -> raises the word to 1 -> ...

Nothing is given to the device later.  So the host raises a word after work that the device was given before the wait
for it, and no order in which a driver carries out several streams can stop that (``flags``).  All memory of the host is
taken before, and the communicator's thread calls no driver.

A collective that fails raises the word, too: the program is not there to hear of it, and no stream may hang.  Its
parts that are not reduced become NaN, as no other value says that there is no sum.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

import torch

from netfold.host.staging.bundles import Bundle, Lane
from netfold.host.staging.device import DeviceEvent
from netfold.host.staging.flags import PAIR_BYTES, words_of

log = logging.getLogger("netfold")

Step = Sequence[tuple[Bundle, Sequence[int]]]
"""Bundles that are copied back at once, and which of their copies are."""


class Chain:
    """The copies back of one call, each step behind a wait for the host.

    ready   the end of the work before the call
    buffer  pinned memory for the words
    end     gives the device what comes last, and records ``done``
    limit   seconds that the host waits for copies out
    """

    def __init__(
        self, lane: Lane, ready: DeviceEvent, buffer: torch.Tensor, steps: Sequence[Step], end: Callable[[], None],
        done: DeviceEvent, limit: float,
    ) -> None:
        self._lane, self._ready, self.buffer, self._steps, self.end = lane, ready, buffer, steps, end
        self._done, self._limit = done, limit
        self._word, self._told = words_of(buffer)
        self.given = False
        """True once the device may know of it."""
        self._withdrawn = False
        self._refused: BaseException | None = None
        """The error of a device that has not taken all of it."""
        self._count, self._raised = len(steps), 0
        self._lock = threading.Lock()
        self._parties = 2
        """The caller's thread and the one that carries the call, until both are through with the memory."""
        self._carried = False

    def give(self) -> None:
        """Gives the copies back to the device, on the caller's thread.  Raises what the device does; then the memory is
        never used again."""
        self.given = True
        try:
            self._give()
        except BaseException as error:
            self._refused = error
            self._lane.device.pool.lost.append(self)
            self._lane.device.flags.raise_to(self._told, self._count)
            raise
        self.end = _nothing  # else the call and its chain hold each other
        self._leave()

    def arrive(self, number: int) -> None:
        """Waits until what a step reads has been copied out.  Raises TimeoutError, and the error of a device that was
        not given all."""
        try:
            self._lane.device.flags.told(self._told, number, self.stops, 0.0 if self._lane.silent else self._limit)
        except TimeoutError:
            self._lane.give_up()
            raise
        if self._refused is not None:
            raise RuntimeError(str(self._refused)) from self._refused
        for bundle, _ in self._steps[number - 1] if self._withdrawn else ():
            if bundle.begun:
                bundle.arrive()

    def advance(self) -> None:
        """The host has filled the next step."""
        self._raised += 1
        self._lane.device.flags.raise_to(self._word, self._raised)
        if self._raised == self._count:
            self._carry_out()

    def fail(self) -> None:
        """The call has ended with an error: what is not reduced becomes NaN, unless the device copies it out only after
        the time limit.  After the last step this does nothing."""
        if self._carried:
            return
        try:
            with contextlib.suppress(Exception):  # of a device that has failed
                self.arrive(self._count)  # or copies out would fill again what is filled here
            for bundle, which in [pair for step in self._steps[self._raised:] for pair in step]:
                for place in which:
                    try:
                        spoil(bundle.copies[place])
                    except Exception:
                        log.exception("a tensor of a call that has failed cannot be filled with NaN")
        finally:
            self._raised = self._count
            self._lane.device.flags.raise_to(self._word, self._count)
            self._carry_out()

    def withdraw(self) -> None:
        """Gives up the words, which no stream knows of."""
        self._withdrawn = True
        self._lane.device.flags.raise_to(self._told, self._count)
        self._lane.device.pool.forget(self.buffer)  # another thread may still read its words

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _give(self) -> None:
        late, back, flags = self._lane.late, self._lane.back, self._lane.device.flags
        for number, step in enumerate(self._steps, 1):
            for bundle, _ in step:
                bundle.precede(late)
            flags.tell(late, self._told, number)
        told = self._lane.device.event()
        told.record(late)
        back.wait_event(self._ready)
        for number, step in enumerate(self._steps, 1):
            for bundle, _ in step:
                bundle.precede(back)
            flags.wait(back, self._word, number)
            for bundle, which in step:
                if which:
                    bundle.fill(which)
        back.wait_event(told)  # the host may have given it up, and the words' memory is free when ``back`` is done
        self.end()

    def stops(self) -> bool:
        """True if the device was not given the words."""
        return self._withdrawn or self._refused is not None

    def _carry_out(self) -> None:
        self._carried = True
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._parties -= 1
            if self._parties:
                return
        for bundle, _ in [pair for step in self._steps for pair in step]:
            bundle.give_back(self._done)  # the tensors are the caller's thread's to free (``Staged.let_go``)
        self._lane.device.pool.give(self.buffer, self._done)
        self._steps = []


def spoil(copy: torch.Tensor) -> None:
    """Fills a tensor of floats or complex numbers with NaN; one of floats that torch cannot fill, with bytes 0xFF."""
    nan = float("nan")
    with torch.inference_mode():  # the buffer may be of a thread that was in it
        try:
            copy.fill_(complex(nan, nan) if copy.is_complex() else nan)
        except NotImplementedError:
            copy.view(-1).view(torch.uint8).fill_(0xFF)


def _nothing() -> None:
    """Nothing is left to give."""


def word_buffer(lane: Lane) -> torch.Tensor | None:
    """Pinned memory for two words; None if there is no room."""
    return lane.device.pool.take(PAIR_BYTES, if_room=True)
