# SPDX-License-Identifier: Apache-2.0
"""send, recv and their asynchronous forms: any number under way, apart from the collectives.

A process group's collectives run one after the other, in the order of the calls.  Messages between two ranks must not
wait for them, nor for each other: torch lets a rank post its receives and sends in any order
(``batch_isend_irecv``).  So they have connections of their own, with the job's secret, and a thread of their own, which
is started at the first message.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from netfold.host.errors import Closed, CollectiveTimeout
from netfold.host.forked import closed_in_child, ends_in_child, notice
from netfold.host.mesh.mesh import Informed, Pending
from netfold.host.mesh.messages import MessageMesh, OpenReceive
from netfold.host.mesh.sockets import listen
from netfold.host.operation.arrays import Flat
from netfold.host.torch.completion import MarkedOperation, on_our_thread
from netfold.wire.plan import Peer, Plan

log = logging.getLogger("netfold")

MOST_TAG = (1 << 32) - 1
FLUSH_SECONDS = 5.0
"""Seconds without progress after which a group that is being destroyed stops sending: its receiver may never
receive."""


LEFT = "when its process group was destroyed"
"""How a rank reports the time of its leaving to ranks that still wait for its messages."""


class Waits:
    """The waits for messages of one group: what is posted has all the time there is while nobody waits for any."""

    def __init__(self) -> None:
        self._begun: list[float] = []

    def begin(self) -> float:
        """A wait begins.  Returns when, in monotonic seconds."""
        begun = time.monotonic()
        self._begun.append(begun)
        return begun

    def end(self, begun: float) -> None:
        """The wait that has begun then ends."""
        self._begun.remove(begun)

    def since(self) -> float:
        """When the longest wait has begun; infinity: nobody waits."""
        return min(self._begun.copy(), default=math.inf)


class TensorMessage(MarkedOperation):
    """A posted send or receive.

    tensors  that it sends or fills
    waits    of its group
    finish   called once the bytes have arrived, before its end is reported
    forked   in a forked child: returns the error of messages that go on in the parent alone; elsewhere None
    nbytes   of a send; 0 for a receive
    """

    def __init__(
        self, what: str, tensors: list[torch.Tensor], waits: Waits, finish: Callable[[], object] = lambda: None,
        forked: Callable[[], Closed | None] = lambda: None, nbytes: int = 0,
    ) -> None:
        super().__init__(tensors)
        self.what = what
        self.nbytes = nbytes
        self._forked = forked
        self._waits = waits
        self.pending: Pending | None = None
        self._finish = on_our_thread(finish)

    def await_end(self, timeout: float | None) -> None:
        if not self._done.is_set() and (forked := self._forked()) is not None:
            raise forked
        begun = self._waits.begin()
        try:
            done = self._done.wait(timeout)
        finally:
            self._waits.end(begun)
        if not done:
            allowed = round(timeout or 0.0, 3)
            raise CollectiveTimeout(f"{self.what}: not done within the {allowed:g} s of wait(); it goes on")
        if self._error is not None:
            raise self._error

    def carried(self) -> bool:
        """True if ``wait`` would return or raise at once."""
        return self._done.is_set() or self._forked() is not None

    def _after(self, value: Callable[[BaseException | None], Any], *, at_once: bool = False) -> Future[Any]:
        begun = self._waits.begin()  # whoever asks for a future waits for it
        self.when_done(lambda: self._waits.end(begun))
        return super()._after(value, at_once=at_once)

    def source(self) -> int:
        """The sender of the message that a receive from any rank has received.  Raises the errors of ``wait``."""
        self.wait()
        if not isinstance(self.pending, OpenReceive) or self.pending.source is None:
            raise ValueError(f"{self.what}: only a receive from any rank has a source to tell")
        return self.pending.source

    def end(self, error: BaseException | None = None) -> None:
        """Marks it as done, or as failed; never raises."""
        if error is None:
            try:
                self._finish()
            except BaseException as failed:  # whoever waits is to hear it
                error = failed
        self.mark(error)


class Messenger:
    """Posts messages to and from the other ranks of a group.  Owns its mesh."""

    def __init__(self, mesh: MessageMesh, me: str) -> None:
        self.mesh = mesh
        self._me = me
        self._lock = threading.Lock()
        self._waits = Waits()
        self._new: deque[tuple[TensorMessage, Callable[[], Pending]]] = deque()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        """The error of messages that are posted from now on."""
        self.closing = False
        """True once no message can be posted any more, while the posted ones are being sent."""
        self._flush_seconds = math.inf
        self._unsent = ""
        """A text with the number of messages and bytes that were not sent before the close."""
        self._forked: Closed | None = None
        self._process = os.getpid()
        ends_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: messages go on in its parent alone."""
        self._lock, self._thread = threading.Lock(), None
        self._new.clear()
        self._error = self._forked = self._forked or closed_in_child(self._me, self._process)

    def send(self, data: Flat, peer: int, tag: int, tensors: list[torch.Tensor]) -> TensorMessage:
        """Posts a message to another rank.  Raises ValueError, and the error that ended an earlier message."""
        self._check(peer, tag)
        what = self._what(f"message of {data.nbytes} bytes to rank {peer}", tag)
        message = TensorMessage(what, tensors, self._waits, forked=lambda: self._forked, nbytes=data.nbytes)
        return self._post(message, lambda: self.mesh.send(peer, data, tag=tag))

    def receive(
        self, into: Flat, peer: int | None, tag: int, tensors: list[torch.Tensor], finish: Callable[[], object]
    ) -> TensorMessage:
        """Posts a receive of another rank's message, or of any rank's.  Raises as ``send``."""
        self._check(peer, tag)
        whose = "any rank" if peer is None else f"rank {peer}"
        what = self._what(f"message of {into.nbytes} bytes from {whose}", tag)
        message = TensorMessage(what, tensors, self._waits, finish, lambda: self._forked)
        if peer is not None:
            return self._post(message, lambda: self.mesh.receive(peer, into, tag=tag))
        if not into.nbytes:
            raise ValueError(f"{message.what}: a tensor without elements is not sent, so nobody can be its source")
        return self._post(message, lambda: self.mesh.receive_any(into, tag=tag))

    def close(self, flush: float = FLUSH_SECONDS) -> None:
        """Sends what was posted, and ends the thread and the connections.  Receives that are not done fail with Closed.
        Any thread may call it, also beside another call.

        flush  seconds without progress after which the remaining messages fail with Closed, and their number is logged;
               the least value of all calls counts
        """
        notice()
        with self._lock:
            self.closing, self._flush_seconds = True, min(flush, self._flush_seconds)
            thread = self._thread
            if thread is not None:
                self.mesh.wake()
        if thread is not None:
            thread.join()
        with self._lock:
            self._thread = None
            self.mesh.leave(LEFT)
            self.mesh.close()
            self._error = self._error or self._destroyed()
            unsent, self._unsent = self._unsent, ""
        if unsent:
            log.error("%s: its process group was destroyed, and %s", self._me, unsent)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _check(self, peer: int | None, tag: int) -> None:
        notice()
        mesh = self.mesh
        if peer is not None and (peer == mesh.rank or not 0 <= peer < mesh.size):
            raise ValueError(f"{self._me}: peer={peer}: expected another rank of 0 .. {mesh.size - 1}")
        if not 0 <= tag <= MOST_TAG:
            raise ValueError(f"{self._me}: tag={tag}: expected 0 .. {MOST_TAG}")

    def _what(self, what: str, tag: int) -> str:
        return f"{self._me}, {what}" + (f", tag {tag}" if tag else "")

    def _post(self, message: TensorMessage, begin: Callable[[], Pending]) -> TensorMessage:
        with self._lock:
            if self._error is not None or self.closing:
                raise self._error or self._destroyed()
            self._new.append((message, begin))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="netfold-messages", daemon=True)
                self._thread.start()
            self.mesh.wake()
        return message

    def _serve(self) -> None:
        posted: list[TensorMessage] = []
        try:
            while True:
                closing = self.closing  # before what is posted is taken: nothing is posted after it
                while (one := self._next()) is not None:
                    posted.append(one[0])
                    try:
                        one[0].pending = one[1]()
                    except ValueError as error:  # nothing was posted, and the others may go on
                        posted.pop().end(error)
                done = [one for one in posted if one.pending is not None and one.pending.done]
                posted = [one for one in posted if one not in done]
                for one_done in done:
                    one_done.end()
                if done:
                    continue  # what was posted meanwhile comes before a wait
                if closing:
                    self._send_rest(posted)
                    raise self._destroyed()
                if posted:
                    self.mesh.progress(self._waits.since)
                else:
                    self.mesh.sleep()
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
                left = [*posted, *(message for message, _ in self._new)]
                self._new.clear()
            self._unsent = self._unsent or _count(left, f"they ended with {type(error).__name__}")
            try:
                if not isinstance(error, Closed):
                    self.mesh.abort(error)
            finally:
                for one_left in left:
                    one_left.end(error)

    def _send_rest(self, posted: list[TensorMessage]) -> None:
        """Sends the posted messages, as long as that makes progress.  Raises the error that ends the mesh."""
        self.mesh.send_rest(lambda: self._flush_seconds)
        for one in [one for one in posted if one.pending is not None and one.pending.done]:
            posted.remove(one)
            one.end()
        why = f"nothing moved for {self._flush_seconds:g} s: their receivers did not receive them"
        self.mesh.leave(LEFT)
        queued = self.mesh.drain(lambda: self._flush_seconds)
        rest = f"{queued} bytes of messages that were sent had not arrived, since {why}" if queued else ""
        self._unsent = " and ".join(filter(None, (_count(posted, why), rest)))

    def _destroyed(self) -> Closed:
        unsent = f", and {self._unsent}" if self._unsent else ""
        return Closed(f"{self._me}: its process group was destroyed{unsent}")

    def _next(self) -> tuple[TensorMessage, Callable[[], Pending]] | None:
        """The next message to post.  Raises Closed once the messenger is closed."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._new.popleft() if self._new else None


def _count(left: list[TensorMessage], why: str) -> str:
    """The number of unfinished sends among these messages, in words; empty if there are none."""
    unsent = [one.nbytes for one in left if one.nbytes and not (one.pending is not None and one.pending.done)]
    return f"{len(unsent)} messages, {sum(unsent)} bytes, were not sent, since {why}" if unsent else ""


def open_messenger(
    store: dist.Store, plan: Plan, me: str, patience: timedelta, timeout: float,
    inform: Callable[[Informed], None] = lambda mesh: None,
) -> Messenger:
    """The messenger of a group whose ranks exchange their addresses through torch's store.

    plan      the group's own plan; the messenger uses its addresses, epoch and secret
    patience  to wait here for the other ranks
    timeout   of messages, in seconds
    inform    passes the controller's reports of lost ranks on to a mesh
    Raises RuntimeError if a rank does not come in time.
    """
    address = next(peer.address for peer in plan.peers if peer.rank == plan.rank)
    listener = listen(address)
    try:
        keys = [f"netfold/messages/{plan.epoch}/{peer.rank}" for peer in plan.peers]
        store.set(keys[plan.rank], "{}:{}".format(*listener.getsockname()))
        store.wait(keys, patience)
        peers = [
            Peer(peer.rank, peer.address, store.get(key).decode())
            for peer, key in zip(plan.peers, keys, strict=True)
        ]
        own = Plan(f"{plan.job}, messages", plan.epoch, plan.rank, plan.world, peers, [], secret=plan.secret)
        mesh = MessageMesh(own, listener, timeout=timeout)
        inform(mesh)
        return Messenger(mesh, me)
    except BaseException:
        listener.close()
        raise
