# SPDX-License-Identifier: Apache-2.0
"""The out-of-band channel: questions between ranks beside the rails (``rank_state``), over TCP on all planes of a rank.

A connection is made when there is something to ask, at first on the plane of another rail than the one in question;
after a failure the next question to that rank uses the next plane.  Each plane keeps its connection to each rank, since
questions may be urgent: only the first one on a plane waits for a handshake, and the next one goes on with one that the
first has not seen the end of.  It begins with the handshake of ranks
(``mesh.handshake``), so that strangers get no answer and answer nothing.  A thread of its own answers
(``answering``), whatever the asked rank is doing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from netfold.host.forked import own
from netfold.host.mesh.connecting import ATTEMPTS
from netfold.host.mesh.handshake import HandshakeRefused, Identity, Initiator
from netfold.host.rails.answering import ANSWER, FOREVER, QUESTION, SEND_SECONDS, AnsweringThread
from netfold.host.rails.rank_state import AgreementOutcome, Answer, Question

PURPOSE: Final = "out of band"
"""Purpose of these connections, for the derivation of their key."""
CONNECT_SECONDS = 0.1
"""Seconds to wait for a connection; a plane that is down does not answer."""

log = logging.getLogger("netfold")


class Asked:
    """A connection to another rank: first the handshake, then questions, one at a time.  Never waits."""

    def __init__(self, plane: int, where: tuple[str, int], initiator: Initiator, *, attempts: int = 1) -> None:
        """Begins to connect, for the ``attempts``-th time.  Raises OSError."""
        self.rank, self.plane = initiator.peer, plane
        self.attempts = attempts
        self.socket = own(socket.socket())
        self.connected = False
        self._initiator = initiator
        self._unsent = initiator.hello
        self._question = b""
        self._data = bytearray()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (code := self.socket.connect_ex(where)) not in (0, errno.EINPROGRESS):
            self.socket.close()
            raise OSError(code, os.strerror(code))

    @property
    def proven(self) -> bool:
        """True if the peer has proven to be this rank."""
        return self._initiator.outcome is not None

    @property
    def in_result(self) -> bool:
        """True if the answer has begun to arrive, and its result has not ended."""
        return len(self._data) >= ANSWER.size

    @property
    def events(self) -> int:
        """The events to wait for, in the notation of selectors."""
        return selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ

    def ask(self, question: bytes) -> None:
        """Takes a question, to be sent as soon as that is possible."""
        self._question = question
        if self.proven:
            self._unsent = question

    def on_ready(self) -> Answer | None:
        """Sends and reads what is possible.  Returns the answer once it is complete.

        Raises OSError, HandshakeRefused, and ValueError for what is no answer.
        """
        try:
            while True:
                if self._unsent:
                    self._unsent = self._unsent[self.socket.send(self._unsent):]
                    self.connected = True
                    if self._unsent:
                        return None
                more = self.socket.recv(self._wanted())
                if not more:
                    raise ConnectionResetError(errno.ECONNRESET, "the other rank closed the connection")
                if not self.proven:
                    self._unsent = self._initiator.receive(more) or (self._question if self.proven else b"")
                    continue
                self._data += more
                if (answer := self._answer()) is not None:
                    return answer
        except BlockingIOError:
            return None

    def _wanted(self) -> int:
        if not self.proven:
            return self._initiator.wanted
        if not self.in_result:
            return ANSWER.size - len(self._data)
        nbytes: int = ANSWER.unpack_from(self._data)[2]
        return min(1 << 20, ANSWER.size + nbytes - len(self._data))

    def _answer(self) -> Answer | None:
        if not self.in_result:
            return None
        outcome, micros, nbytes = ANSWER.unpack_from(self._data)
        if len(self._data) < ANSWER.size + nbytes:
            return None
        result = bytes(self._data[ANSWER.size :])
        self._data.clear()
        return Answer(AgreementOutcome(outcome), math.inf if micros == FOREVER else micros / 1e6, result)


class TcpOutOfBand:
    """This rank's out-of-band channel to the others, an ``OutOfBandChannel``.

    listeners  bound, listening sockets, one for each plane; taken over
    answer     answers one question (``RankState.answer``), on the channel's thread
    me         this rank in the handshakes of ``PURPOSE``
    """

    def __init__(
        self, listeners: Sequence[socket.socket], answer: Callable[[Question], Answer], me: Identity
    ) -> None:
        self._answering = AnsweringThread(listeners, answer, me)
        self._me = me
        self._addresses: Mapping[int, Sequence[tuple[str, int]]] = {}
        self._lock = threading.Lock()
        self._links: dict[tuple[int, int], Asked] = {}
        """Connections by rank and plane."""
        self.used: dict[int, int] = {}
        """Rank -> the plane of the questions to it, until that plane fails."""
        self._turn: dict[int, int] = {}
        """Rank -> the plane to use next, after a failure."""
        self._refused: dict[int, set[int]] = {}

    def ports(self) -> list[int]:
        """The TCP ports at which this rank listens, by plane."""
        return self._answering.ports()

    def set_addresses(self, where: Mapping[int, Sequence[tuple[str, int]]]) -> None:
        """Sets the other ranks' addresses and ports, by rank and plane."""
        self._addresses = where

    # ---- asking ------------------------------------------------------------------------------------------------------
    def ask(self, question: Question, ranks: Collection[int], within: float) -> dict[int, Answer]:
        """Asks all ranks at once, and collects their answers (``OutOfBandChannel.ask``)."""
        message = QUESTION.pack(question.kind, question.position, question.rail, question.call)
        answers = {}
        with self._lock, selectors.DefaultSelector() as selector:
            deadline = time.monotonic() + within  # not before: another rail's question may have taken all of it
            until: dict[Asked, float] = {}
            """Connection to a rank that has not answered yet -> its deadline."""

            def begin(link: Asked) -> None:
                link.ask(message)
                selector.register(link.socket, link.events, link)
                until[link] = deadline if link.connected else min(deadline, time.monotonic() + CONNECT_SECONDS)

            def end(link: Asked) -> None:
                selector.unregister(link.socket)
                del until[link]

            for rank in ranks:
                if (link := self._link(rank, question.rail)) is not None:
                    begin(link)
            while until:
                for key, _ in selector.select(max(0.0, max(until.values()) - time.monotonic())):
                    link = key.data
                    try:
                        answer = link.on_ready()
                    except (OSError, ValueError, HandshakeRefused) as error:
                        end(link)
                        if (again := self._failed(link, error)) is not None:
                            begin(again)
                        continue
                    if link.proven:
                        self._refused.pop(link.rank, None)
                    if answer is not None:
                        answers[link.rank] = answer
                        end(link)
                        continue
                    selector.modify(link.socket, link.events, link)
                    # a result may be long and the plane slow: the deadline moves while bytes arrive
                    idle = time.monotonic() + SEND_SECONDS if link.in_result else 0.0
                    until[link] = max(idle, deadline if link.connected else until[link])
                now = time.monotonic()
                for link in [link for link, last in until.items() if last <= now]:
                    end(link)
                    self._leave_plane(link)
                    if link.proven or not link.connected:  # a late answer must not count for another question
                        self._close(link)
        return answers

    def _failed(self, link: Asked, error: Exception) -> Asked | None:
        """Closes a connection that is gone.  Returns a new one where the other end closed it before either side refused
        the other, as it does where it has too many."""
        self._close(link)
        if isinstance(error, ConnectionResetError) and not link.proven and link.attempts < ATTEMPTS:
            with contextlib.suppress(OSError):
                return self._open(link.rank, link.plane, link.attempts + 1)
        if isinstance(error, ConnectionRefusedError):
            self._refused.setdefault(link.rank, set()).add(link.plane)
        if isinstance(error, HandshakeRefused):
            log.debug("out of band: rank %d on plane %d %s", link.rank, link.plane, error)
        self._leave_plane(link)
        return None

    def refused(self) -> Collection[int]:
        """Ranks that refused a connection on some plane and have accepted none on any
        (``OutOfBandChannel.refused``)."""
        with self._lock:
            proven = {link.rank for link in self._links.values() if link.proven}
            return [rank for rank, planes in self._refused.items() if planes and rank not in proven]

    def _link(self, rank: int, avoid: int) -> Asked | None:
        """The connection to a rank, on another plane than ``avoid`` where there is one; None where none can be
        begun."""
        planes = len(self._addresses[rank])
        if self.used.get(rank) == avoid and planes > 1:
            del self.used[rank]
            self._turn.pop(rank, None)
        plane = self.used.setdefault(rank, self._turn.get(rank, avoid + 1) % planes)
        if (link := self._links.get((rank, plane))) is not None:
            return link
        try:
            return self._open(rank, plane, 1)
        except OSError as error:
            if isinstance(error, ConnectionRefusedError):
                self._refused.setdefault(rank, set()).add(plane)
            del self.used[rank]
            self._turn[rank] = plane + 1
            return None

    def _open(self, rank: int, plane: int, attempts: int) -> Asked:
        link = Asked(plane, self._addresses[rank][plane], Initiator(self._me, rank), attempts=attempts)
        self._links[rank, plane] = link
        return link

    def _leave_plane(self, link: Asked) -> None:
        """Takes the next plane for the next question to this rank."""
        self.used.pop(link.rank, None)
        self._turn[link.rank] = link.plane + 1

    def _close(self, link: Asked) -> None:
        del self._links[link.rank, link.plane]
        link.socket.close()

    def close(self) -> None:
        """Ends the thread and closes all connections; safe to call twice."""
        self._answering.close()
        with self._lock:
            for link in self._links.values():
                link.socket.close()
            self._links.clear()

