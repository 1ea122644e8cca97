# SPDX-License-Identifier: Apache-2.0
"""Questions between ranks beside the rails (``state``), over TCP, on every plane on which a rank has an address.

    question   cookie 8 | ask 1 | position 8 | rail 4
    answer     outcome 1 | age in microseconds 8 (all ones: for ever) | bytes 8         then the bytes of a result

Connections are made when there is something to ask, to the plane of another rail than the one in question first; after
a failure the next question to that rank goes by the next plane.  Answers come from a thread of their own, whatever the
asked rank is doing.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from netfold.host.rails.rank_state import AgreementOutcome, Answer, Question, QuestionKind

QUESTION = struct.Struct("!8sBQI")
ANSWER = struct.Struct("!BQQ")
FOREVER = (1 << 64) - 1
CONNECT = 0.1
"""Seconds for a connection; a plane that is down answers nothing."""
SEND = 1.0
"""Seconds for an answer to leave: one who does not take it may ask again."""


def cookie(job: str, epoch: int) -> bytes:
    """What questions of a job begin with: strangers and other jobs' ranks are sent away."""
    return hashlib.blake2b(f"{job}/{epoch}".encode(), digest_size=8).digest()


class TcpOutOfBand:
    """This rank's line to the others.

    listeners  bound, listening sockets, one for each plane; taken over
    answer     answers one question (``Ledger.answer``), from the line's thread
    key        ``cookie`` of the job
    """

    def __init__(
        self, listeners: Sequence[socket.socket], answer: Callable[[Question], Answer], key: bytes
    ) -> None:
        self._listeners = list(listeners)
        self._answer = answer
        self._key = key
        self._addresses: Mapping[int, Sequence[tuple[str, int]]] = {}
        self._lock = threading.Lock()
        self._links: dict[int, tuple[int, socket.socket]] = {}
        self._turn: dict[int, int] = {}
        self._refused: dict[int, set[int]] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="netfold-channel", daemon=True)
        self._thread.start()

    def ports(self) -> list[int]:
        """Where this rank listens, by plane."""
        return [listener.getsockname()[1] for listener in self._listeners]

    def set_addresses(self, where: Mapping[int, Sequence[tuple[str, int]]]) -> None:
        """The other ranks' addresses and ports, by plane."""
        self._addresses = where

    # ---- asking ------------------------------------------------------------------------------------------------------
    def ask(self, question: Question, ranks: Collection[int], within: float) -> dict[int, Answer]:
        """See ``Sideline``.  Asks all, then hears all."""
        deadline = time.monotonic() + within
        message = QUESTION.pack(self._key, question.ask, question.position, question.rail)
        answers = {}
        with self._lock:
            asked = [rank for rank in ranks if self._send(rank, message, question.rail, deadline)]
            for rank in asked:
                if (answer := self._receive_answer(rank, deadline)) is not None:
                    answers[rank] = answer
        return answers

    def refused(self) -> Collection[int]:
        """See ``Sideline``: on some plane nobody listens any more, and on none somebody answers."""
        with self._lock:
            return [rank for rank, planes in self._refused.items() if planes and rank not in self._links]

    def _send(self, rank: int, message: bytes, avoid: int, deadline: float) -> bool:
        if rank in self._links and self._links[rank][0] == avoid and len(self._addresses[rank]) > 1:
            self._disconnect(rank)
            self._turn.pop(rank, None)
        if rank not in self._links:
            planes = len(self._addresses[rank])
            plane = self._turn.get(rank, avoid + 1) % planes
            left = max(0.001, min(CONNECT, deadline - time.monotonic()))
            try:
                self._links[rank] = plane, socket.create_connection(self._addresses[rank][plane], timeout=left)
            except OSError as error:
                if isinstance(error, ConnectionRefusedError):
                    self._refused.setdefault(rank, set()).add(plane)
                self._turn[rank] = plane + 1
                return False
            self._refused.pop(rank, None)
        try:
            link = self._links[rank][1]
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(max(0.001, deadline - time.monotonic()))
            link.sendall(message)
        except OSError:
            self._disconnect(rank)
            return False
        return True

    def _receive_answer(self, rank: int, deadline: float) -> Answer | None:
        link = self._links[rank][1]
        try:
            outcome, micros, nbytes = ANSWER.unpack(_receive(link, ANSWER.size, deadline))
            # a result is long, and the way it takes may be slow: while it comes, it comes
            result = _receive(link, nbytes, deadline, idle=SEND)
            return Answer(AgreementOutcome(outcome), math.inf if micros == FOREVER else micros / 1e6, result)
        except (OSError, ValueError):
            self._disconnect(rank)
            return None

    def _disconnect(self, rank: int) -> None:
        plane, link = self._links.pop(rank)
        link.close()
        self._turn[rank] = plane + 1

    # ---- answering ---------------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            callers: dict[socket.socket, bytearray] = {}
            try:
                while True:
                    for key, _ in selector.select():
                        sock = key.fileobj
                        if sock is self._woken:
                            return
                        if sock in self._listeners:
                            with contextlib.suppress(OSError):
                                caller, _ = sock.accept()
                                caller.settimeout(SEND)
                                callers[caller] = bytearray()
                                selector.register(caller, selectors.EVENT_READ)
                        elif not self._answer_questions(sock, callers[sock]):  # type: ignore[arg-type,index]
                            selector.unregister(sock)
                            del callers[sock]  # type: ignore[arg-type]
                            sock.close()  # type: ignore[union-attr]
            finally:
                for sock in [*callers, *self._listeners]:
                    sock.close()

    def _answer_questions(self, caller: socket.socket, data: bytearray) -> bool:
        """Reads what a caller says and answers whole questions; False where it is to be sent away."""
        try:
            more = caller.recv(4096)
            data += more
            while len(data) >= QUESTION.size:
                key, ask, position, rail = QUESTION.unpack_from(data)
                del data[: QUESTION.size]
                if key != self._key:
                    return False
                answer = self._answer(Question(QuestionKind(ask), position, rail))
                micros = FOREVER if math.isinf(answer.age) else int(answer.age * 1e6)
                caller.sendall(ANSWER.pack(answer.outcome, micros, len(answer.result)) + answer.result)
            return bool(more)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Safe to call twice."""
        with contextlib.suppress(OSError):
            self._wake.send(b"!")
        self._thread.join()
        with self._lock:
            for _, link in self._links.values():
                link.close()
            self._links.clear()
        self._wake.close()
        self._woken.close()


def _receive(sock: socket.socket, nbytes: int, deadline: float, idle: float = 0.0) -> bytes:
    """Exactly so many bytes; with ``idle`` the deadline moves on with every byte.  Raises OSError."""
    data = bytearray()
    while len(data) < nbytes:
        sock.settimeout(max(0.001, idle, deadline - time.monotonic()))
        more = sock.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("the other rank closed the connection")
        data += more
    return bytes(data)
