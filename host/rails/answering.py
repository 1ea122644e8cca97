# SPDX-License-Identifier: Apache-2.0
"""The answering side of the out-of-band channel (``out_of_band``), on a thread of its own.

    question   kind 1 | position 8 | rail 4 | call 4
    answer     outcome 1 | age in microseconds 8 (all ones: infinite) | bytes 8         then the bytes of a result

Only callers that have proven to be ranks of the job are answered; of others so many are kept, each for so long
(``mesh.unproven``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from netfold.host.forked import own, own_pair
from netfold.host.mesh.handshake import HandshakeRefused, Identity, Outcome, Responder
from netfold.host.mesh.unproven import UnprovenLimit
from netfold.host.rails.rank_state import Answer, Question, QuestionKind

QUESTION: Final = struct.Struct("!BQII")
ANSWER: Final = struct.Struct("!BQQ")
FOREVER: Final = (1 << 64) - 1
SEND_SECONDS: Final = 1.0
"""Seconds within which an answer must be sent; a rank that does not read it may ask again."""
FULL_SECONDS: Final = 0.05
"""Seconds between attempts to accept a connection where the process has no file descriptors left."""

log = logging.getLogger("netfold")


class _Caller:
    """A connection from another rank: first the handshake, then its questions."""

    def __init__(self, sock: socket.socket, responder: Responder) -> None:
        self._socket = sock
        self._responder = responder
        self._data = bytearray()

    @property
    def proven(self) -> bool:
        """True if the peer has proven to be a rank of the job."""
        return self._responder.peer is not None

    def on_readable(self, answer: Callable[[Question], Answer]) -> None:
        """Reads what has arrived, and answers complete questions.  Raises OSError, HandshakeRefused, and ValueError for
        what is no question."""
        more = self._socket.recv(4096 if self.proven else self._responder.wanted)
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        if not self.proven:
            say = self._responder.receive(more)
            self._socket.sendall(self._responder.verdict(Outcome.ACCEPTED) if self.proven else say)
            return
        self._data += more
        while len(self._data) >= QUESTION.size:
            kind, position, rail, call = QUESTION.unpack_from(self._data)
            del self._data[: QUESTION.size]
            said = answer(Question(QuestionKind(kind), position, rail, call))
            micros = FOREVER if math.isinf(said.age) else int(said.age * 1e6)
            self._socket.sendall(ANSWER.pack(said.outcome, micros, len(said.result)) + said.result)

    def refuse(self) -> None:
        """Tells an initiator that waits for it that its proof is wrong."""
        with contextlib.suppress(OSError):
            self._socket.sendall(self._responder.refusal)


class AnsweringThread:
    """Answers the other ranks' questions until ``close``.

    listeners  bound, listening sockets; taken over
    answer     answers one question, on this thread
    me         this rank in handshakes
    """

    def __init__(
        self, listeners: Sequence[socket.socket], answer: Callable[[Question], Answer], me: Identity
    ) -> None:
        self._listeners = list(listeners)
        self._answer = answer
        self._me = me
        self._callers: dict[socket.socket, _Caller] = {}
        self._unproven: UnprovenLimit[socket.socket] = UnprovenLimit(me.world)
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = own_pair()
        self._thread = threading.Thread(target=self._serve, name="netfold-channel", daemon=True)
        self._thread.start()

    def ports(self) -> list[int]:
        """The TCP ports of the listeners, in order."""
        return [listener.getsockname()[1] for listener in self._listeners]

    def close(self) -> None:
        """Ends the thread and closes all connections; safe to call twice."""
        with contextlib.suppress(OSError):
            self._wake.send(b"!")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _serve(self) -> None:
        for sock in [self._woken, *self._listeners]:
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)
        try:
            while self._handle_events():
                for late in self._unproven.expired(time.monotonic()):
                    self._drop(late)
        finally:
            for sock in [*self._callers, *self._listeners]:
                sock.close()
            self._selector.close()

    def _handle_events(self) -> bool:
        """Waits until something is ready, or an unproven connection has had its time.  Returns False once the thread is
        to end."""
        deadline = self._unproven.deadline()
        for key, _ in self._selector.select(None if deadline is None else max(0.0, deadline - time.monotonic())):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is self._woken:
                return False
            if sock in self._callers:
                self._hear(sock)
            elif sock in self._listeners:  # what an earlier event has closed is neither
                self._accept(sock)
        return True

    def _accept(self, listener: socket.socket) -> None:
        try:
            caller, (source, _) = listener.accept()
        except OSError as error:  # closed again before it was accepted; or there are no descriptors
            if error.errno in (errno.EMFILE, errno.ENFILE):
                oldest = self._unproven.drop_one()
                time.sleep(FULL_SECONDS) if oldest is None else self._drop(oldest)
            return
        own(caller).settimeout(SEND_SECONDS)
        self._callers[caller] = _Caller(caller, Responder(self._me))
        self._selector.register(caller, selectors.EVENT_READ)
        if (oldest := self._unproven.add(caller, source, time.monotonic())) is not None:
            self._drop(oldest)

    def _hear(self, caller: socket.socket) -> None:
        one = self._callers[caller]
        limited = not one.proven
        try:
            one.on_readable(self._answer)
        except (OSError, ValueError, HandshakeRefused) as error:
            if isinstance(error, HandshakeRefused):
                one.refuse()
                log.debug("out of band, rank %d: a connection is refused: it %s", self._me.rank, error)
            self._drop(caller)
            if limited:
                self._unproven.remove(caller)
            return
        if limited and one.proven:
            self._unproven.remove(caller)

    def _drop(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.close()
