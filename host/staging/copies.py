# SPDX-License-Identifier: Apache-2.0
"""Tensors on a device, as copies in pinned memory that collectives read and fill.

    caller's stream   work on the tensors | ready                                   wait(): | done ... what comes after
    out                                    ready -> copies out -> arrived
    communicator's thread                                         arrived -> collective -> begins the copies back
    back                                                                                   copies back -> done

Nothing waits for a whole device.  The thread that waits for a collective is blocked until the copies back have begun,
as with gloo; then its stream is ordered behind ``done``, and the thread goes on.  With a ``chain`` the copies back are
given to the device at the call, and nobody is blocked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from netfold.host.staging.bundles import Bundle, Lane, SparseBundle, Spread, refuse_capture
from netfold.host.staging.chain import Chain, Step, word_buffer
from netfold.host.staging.device import Device, device_of, kind

SMALL: Final = 1 << 20
"""Bytes below which several tensors of a call are concatenated on the device, and copied at once."""
PART = 16 << 20
"""Bytes of a part of a long tensor: while one part is reduced, the next is copied out and the last one back.  Each part
is a collective of its own, so tensors on the CPU are reduced in the same parts: ranks may differ in a tensor's
device."""
FULL: Final = "copies have all of the pinned memory that may be ahead of its turn"
AHEAD: Final = 3
"""Least number of TensorParts that are copied out before their turn."""


def places_of_parts(elements: int, itemsize: int, *, whole: bool = False) -> list[slice]:
    """The places of the parts in which so many elements of so many bytes are reduced.

    whole  in one part, since the reduction is done or not done as a whole
    """
    length = max(1, elements if whole else PART // itemsize)
    return [slice(at, min(at + length, elements)) for at in range(0, max(1, elements), length)]


class Staging:
    """Finds a lane for tensors; one for each group of ranks.

    find  returns the device that a tensor is on; None: the CPU
    """

    def __init__(self, find: Callable[[torch.Tensor], Device | None] = device_of) -> None:
        self._find = find
        self._lanes: dict[torch.device, Lane] = {}

    def lane(self, what: str, tensors: Sequence[torch.Tensor]) -> Lane | None:
        """The lane for these tensors; None where all are on the CPU.  Raises ValueError where they are on several
        devices, or on one that is not staged.

        what  the call, for errors
        """
        found: Device | None = None
        apart: torch.Tensor | None = None
        for tensor in tensors:
            try:
                device = self._find(tensor)
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from None
            if device is None:
                apart = tensor
                continue
            if found is not None and device.place != found.place:
                raise ValueError(f"{what} of tensors on {found.place} and {device.place}: expected one device")
            found = device
        if found is None:
            return None
        if apart is not None:
            raise ValueError(f"{what} of tensors on {found.place} and {apart.device}: expected one device")
        return self._lanes.get(found.place) or self._lanes.setdefault(found.place, Lane(found))

    def refuse_capture(self) -> None:
        """Raises ValueError for a call without tensors while the calling thread's operations are recorded for a
        graph."""
        name = kind() or "cpu"
        begun = getattr(getattr(torch, name, None), "is_initialized", bool)()  # else this would begin it
        device = self._find(torch.empty(0, device=name if begun else "cpu"))
        if device is not None:
            refuse_capture(device)

    def order(self) -> None:
        """Orders the calling thread's streams behind all copies back that devices were given."""
        for lane in list(self._lanes.values()):
            lane.order()


class Staged:
    """The copies of one call, and the end of the copies back.

    spread  tensors of the call that are filled from copies on the device
    """

    def __init__(self, lane: Lane, bundles: list[Bundle], *spread: Spread | None) -> None:
        self.lane, self.bundles, self._spread = lane, bundles, spread
        self._ready = lane.ready()
        self._done = lane.device.event()
        self.chain: Chain | None = None
        """The copies back that the device begins; None: the host does."""
        lane.device.by_host.add(self)

    @property
    def place(self) -> torch.device:
        """The device."""
        return self.lane.device.place

    def chain_up(self, limit: float = math.inf) -> str:
        """Lets the device begin the copies back, which ``chain.give`` gives it; else returns why that cannot be.
        Raises ValueError for a device that cannot.

        limit  seconds that the host waits for copies out
        """
        steps = self._steps()
        if isinstance(steps, str):
            return steps
        _ = self.lane.device.flags
        if self.lane.device.by_host.others(self):
            return "the host copies other operations that are under way"
        if self.lane.device.pool.full or (buffer := word_buffer(self.lane)) is None:
            return FULL
        self.chain = Chain(self.lane, self._ready, buffer, steps, self._end, self._done, limit)
        self.lane.device.by_host.discard(self)
        return ""

    def withdraw(self) -> None:
        """The host begins the copies back after all, unless the device was given them."""
        if self.chain is not None and not self.chain.given:
            self.chain.withdraw()
            self.chain = None
            self.lane.device.by_host.add(self)

    def order(self) -> None:
        """Orders the calling thread's stream behind the copies back, which have begun."""
        self.lane.device.current().wait_event(self._done)

    def over(self) -> bool:
        """True if the copies back, which have begun, are done."""
        return self._done.query()

    def finish(self) -> None:
        """Waits until the copies back, which have begun, are done."""
        self._done.synchronize()

    def behind(self) -> AbstractContextManager[object]:
        """A context in which the calling thread's stream is that of the copies back."""
        return self.lane.device.on(self.lane.back)

    def drop(self) -> None:
        """The call has ended with an error: nothing more is copied back, but NaN by a chain.  After its end this does
        nothing."""
        self.lane.device.by_host.discard(self)
        if self.chain is not None:
            self.chain.fail()
            return
        held = [bundle for bundle in self.bundles if bundle.copies]
        if not held:
            return
        back, device = self.lane.back, self.lane.device
        try:
            end = device.event()
            for bundle in held:
                bundle.precede(back)
            end.record(back)
        except Exception:  # of a device that has failed: what the call ends with says more
            device.pool.lost.extend(held)
            return
        for bundle in held:
            bundle.release(end)

    def end_call(self, error: BaseException, *, begun: bool) -> None:
        """The call itself raises an error, such as Ctrl-C: nobody will give the device its chain.

        begun  the communicator has begun it, and uses its memory
        """
        self.withdraw()
        if isinstance(error, Exception) and not begun:  # after Ctrl-C nobody knows
            self.drop()

    def let_go(self) -> None:
        """Lets go of the tensors of a call whose chain was carried out, on the caller's thread: to free a device's
        memory may take its driver's locks."""
        for bundle in self.bundles:
            bundle.release(self._done)
        self.bundles, self._spread = [], ()

    def _steps(self) -> Sequence[Step] | str:
        """The steps of the copies back, in order; or the reason why the device cannot begin them by itself."""
        return "its copies back depend on what the host finds"

    def _end(self) -> None:
        self.lane.device.by_host.discard(self)
        for spread in self._spread:
            if spread is not None:
                spread.back(self.lane)
        self._done.record(self.lane.back)


class Copies(Staged):
    """Copies of all tensors of a call, which has its whole memory at once.

    reads  tensors whose elements it takes
    fills  tensors that it fills; the same ones, or others
    """

    def __init__(self, lane: Lane, reads: Sequence[torch.Tensor], fills: Sequence[torch.Tensor]) -> None:
        self._fills = {id(tensor) for tensor in fills}
        distinct = {id(tensor): tensor for tensor in [*reads, *fills]}
        self._groups = _together(list(distinct.values()), set(map(id, reads)))
        super().__init__(
            lane,
            [(Bundle if group[0].layout == torch.strided else SparseBundle)(lane, group) for group, _ in self._groups],
        )
        self._copy: dict[int, torch.Tensor] = {}
        try:
            for bundle, (group, read) in zip(self.bundles, self._groups, strict=True):
                bundle.take()
                self._copy.update(zip(map(id, group), bundle.copies, strict=True))
                if read:
                    bundle.out(lane.out, self._ready)
        except BaseException:
            self.drop()
            raise

    def swap(self, given: Any) -> Any:
        """The same arguments with copies instead of the tensors, in lists of lists too."""
        if isinstance(given, torch.Tensor):
            return self._copy.get(id(given), given)
        return [self.swap(one) for one in given] if isinstance(given, list | tuple) else given

    def arrive(self) -> None:
        """Waits until what the call reads has been copied out."""
        for bundle in self.bundles:
            if bundle.begun:
                bundle.arrive()

    def arrive_in_turn(self) -> None:
        """The same on the communicator's thread."""
        chain = self.chain  # which the caller's thread may withdraw meanwhile
        if chain is not None:
            chain.arrive(1)
        else:
            self.arrive()

    def fill(self) -> None:
        """Begins to copy back what the call has filled."""
        chain = self.chain
        if chain is not None:
            chain.advance()
            return
        self.lane.back.wait_event(self._ready)  # what is filled alone may still have been read
        for bundle, which in self._filled():
            if which:
                bundle.fill(which)
        self._end()
        for bundle in self.bundles:
            bundle.release(self._done)
        self._groups, self._copy = [], {}

    def let_go(self) -> None:
        super().let_go()
        self._groups, self._copy = [], {}

    def _filled(self) -> Step:
        """All bundles, and which of their tensors the call fills."""
        return [
            (bundle, [place for place, tensor in enumerate(group) if id(tensor) in self._fills])
            for bundle, (group, _) in zip(self.bundles, self._groups, strict=True)
        ]

    def _steps(self) -> Sequence[Step] | str:
        if any(isinstance(bundle, SparseBundle) for bundle in self.bundles):
            return "its size is known at the end alone"
        return [self._filled()]


class TensorParts(Staged):
    """Copies of a tensor that is reduced in place, part by part.

    whole  in one part, since the reduction is done or not done as a whole
    ahead  copies out begin at once, as far as there is room
    """

    def __init__(self, lane: Lane, tensor: torch.Tensor, *, whole: bool = False, ahead: bool = True) -> None:
        spread = Spread(lane.device, tensor)
        self._flat = flat = spread.dense.view(-1)
        self._places = places_of_parts(flat.numel(), flat.element_size(), whole=whole)
        super().__init__(lane, [Bundle(lane, [flat[place]]) for place in self._places], spread)
        try:
            for bundle in self.bundles if ahead else ():
                if not bundle.take(if_room=True):
                    break
                bundle.out(lane.out, self._ready)
        except BaseException:
            self.drop()
            raise

    def run(self, reduce: Callable[[torch.Tensor, slice], object]) -> None:
        """Reduces part by part, on the communicator's thread, and begins the copies back.

        reduce  reduces a tensor of the host in place; gets the place of its elements in the tensor too
        """
        lane = self.lane
        try:
            if self.chain is None:
                lane.back.wait_event(self._ready)
            for at, bundle in enumerate(self.bundles):
                for soon in self.bundles[at : at + AHEAD]:
                    if not soon.begun:
                        soon.take()
                        soon.out(lane.late, self._ready)
                if (chain := self.chain) is not None:  # which the caller's thread may withdraw meanwhile
                    chain.arrive(at + 1)
                else:
                    bundle.arrive()
                reduce(bundle.copies[0], self._places[at])
                if (chain := self.chain) is not None:
                    chain.advance()
                    continue
                bundle.fill([0])
                copied = lane.device.event()
                copied.record(lane.back)
                bundle.release(copied)
        except BaseException:
            if self.chain is None:  # else once the error is known
                self.drop()
            raise
        if self.chain is None:
            self._end()

    def _steps(self) -> Sequence[Step] | str:
        if not all(bundle.begun for bundle in self.bundles):
            return FULL
        return [[(bundle, [0])] for bundle in self.bundles]


def _together(tensors: list[torch.Tensor], reads: set[int]) -> list[tuple[list[torch.Tensor], bool]]:
    """Tensors that share a buffer, and whether the call reads them: small ones of one dtype."""
    found: list[tuple[list[torch.Tensor], bool]] = []
    small: dict[tuple[torch.dtype, bool], list[torch.Tensor]] = {}
    for tensor in tensors:
        read = id(tensor) in reads
        if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() >= SMALL:
            found.append(([tensor], read))
        elif (tensor.dtype, read) in small:
            small[tensor.dtype, read].append(tensor)
        else:
            small[tensor.dtype, read] = [tensor]
            found.append((small[tensor.dtype, read], read))
    return found
