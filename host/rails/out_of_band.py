# SPDX-License-Identifier: Apache-2.0
"""The out-of-band channel: questions between ranks beside the rails (``rank_state``), over TCP on all planes of a rank.

    question   cookie 8 | kind 1 | position 8 | rail 4
    answer     outcome 1 | age in microseconds 8 (all ones: infinite) | bytes 8         then the bytes of a result

A connection is made when there is something to ask, at first on the plane of another rail than the one in question;
after a failure the next question to that rank uses the next plane.  A thread of its own answers, whatever the asked
rank is doing.
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
CONNECT_SECONDS = 0.1
"""Seconds to wait for a connection; a plane that is down does not answer."""
SEND_SECONDS = 1.0
"""Seconds for an answer to be sent; a rank that does not take it may ask again."""


def cookie(job: str, epoch: int) -> bytes:
    """The first 8 bytes of a job's questions, by which those of strangers and of other jobs' ranks are refused."""
    return hashlib.blake2b(f"{job}/{epoch}".encode(), digest_size=8).digest()


class TcpOutOfBand:
    """This rank's out-of-band channel to the others, an ``OutOfBandChannel``.

    listeners  bound, listening sockets, one for each plane; taken over
    answer     answers one question (``RankState.answer``), on the channel's thread
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
        """The TCP ports at which this rank listens, by plane."""
        return [listener.getsockname()[1] for listener in self._listeners]

    def set_addresses(self, where: Mapping[int, Sequence[tuple[str, int]]]) -> None:
        """Sets the other ranks' addresses and ports, by rank and plane."""
        self._addresses = where

    # ---- asking ------------------------------------------------------------------------------------------------------
    def ask(self, question: Question, ranks: Collection[int], within: float) -> dict[int, Answer]:
        """Sends the question to all ranks, then collects their answers (``OutOfBandChannel.ask``)."""
        deadline = time.monotonic() + within
        message = QUESTION.pack(self._key, question.kind, question.position, question.rail)
        answers = {}
        with self._lock:
            asked = [rank for rank in ranks if self._send(rank, message, question.rail, deadline)]
            for rank in asked:
                if (answer := self._receive_answer(rank, deadline)) is not None:
                    answers[rank] = answer
        return answers

    def refused(self) -> Collection[int]:
        """Ranks that refused a connection on some plane and have accepted none on any
        (``OutOfBandChannel.refused``)."""
        with self._lock:
            return [rank for rank, planes in self._refused.items() if planes and rank not in self._links]

    def _send(self, rank: int, message: bytes, avoid: int, deadline: float) -> bool:
        if rank in self._links and self._links[rank][0] == avoid and len(self._addresses[rank]) > 1:
            self._disconnect(rank)
            self._turn.pop(rank, None)
        if rank not in self._links:
            planes = len(self._addresses[rank])
            plane = self._turn.get(rank, avoid + 1) % planes
            left = max(0.001, min(CONNECT_SECONDS, deadline - time.monotonic()))
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
            # a result may be long and the plane slow: the deadline moves while bytes arrive
            result = _receive(link, nbytes, deadline, idle=SEND_SECONDS)
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
                                caller.settimeout(SEND_SECONDS)
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
        """Reads what a caller has sent and answers complete questions.  Returns False where the connection is to be
        closed."""
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
        """Ends the thread and closes all connections; safe to call twice."""
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
    """Reads exactly so many bytes; with ``idle``, the deadline moves on by so many seconds with every byte.  Raises
    OSError."""
    data = bytearray()
    while len(data) < nbytes:
        sock.settimeout(max(0.001, idle, deadline - time.monotonic()))
        more = sock.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("the other rank closed the connection")
        data += more
    return bytes(data)
