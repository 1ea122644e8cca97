# SPDX-License-Identifier: Apache-2.0
"""A mesh of TCP connections, made when two ranks first have something to say to each other.

The higher rank connects, the lower one accepts, on the listener whose port stands in the plan; the first bytes
say who it is (``HELLO``).  One poll loop moves everything that is posted, sending and receiving at once,
straight from and into the caller's memory, so no order of sends and receives can block two ranks against each other.
Only a message that stands before a wanted one of another tag is put aside into memory of its own.

    message = header: call number | bytes | tag | call text        then the bytes
    news    = header: NEWS        | whom  | who | why              passed on to all connected ranks

News is how a rank that died or never called is named everywhere.  With a why it is a fact, "who knows that whom is
lost", and ends the operation on every rank that it reaches.  Without, it is "who waits in vain for whom": after a
timeout each rank tells whom it misses, hears the others out, and follows the chains to those who said nothing.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from netfold.host.errors import (
    Closed,
    CollectiveTimeout,
    NetFoldError,
    PeerLost,
    RailDown,
    RankMismatch,
    TransportError,
)
from netfold.host.mesh.link import HEADER, HELLO, MAGIC, NEWS, Link, Note, Receive, Send
from netfold.host.mesh.mesh import DONE, IDLE, Call, Flat, Mesh, Pending, as_bytes, culprits, no_such_peer, ranks
from netfold.wire.jobs import Plan

BURST = 4 << 20
"""Bytes that one connection moves before the others get their turn."""
GRACE = 0.1
"""Part of the timeout that a rank spends, after it ran out, on hearing whom its peers miss, and that one which gives up
waits for those who have not connected yet; at least ``FAREWELL``."""
WATCHED_SLICE = 0.01
"""Seconds between looks of whoever watches (``watch``)."""
FAREWELL = 0.2
"""Seconds that a rank which gives up spends at most on getting its news out."""


class TcpMesh(Mesh):
    """The ranks of a plan over TCP.  Owns ``listener``; opens nothing before the first message.

    timeout  seconds without a byte moving after which a wait gives up
    clock    monotonic seconds
    """

    def __init__(
        self, plan: Plan, listener: socket.socket, *, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rank, self.size = plan.rank, plan.world
        self._plan = plan
        self._timeout = timeout
        self._clock = clock
        self._call = IDLE
        self._text = b""
        self._links = {peer.rank: Link(peer.rank, peer.tcp) for peer in plan.peers if peer.rank != plan.rank}
        self._by_fd: dict[int, Link] = {}
        self._strangers: dict[int, tuple[socket.socket, bytearray]] = {}
        self._gone: set[Link] = set()
        self._waits: dict[int, set[int]] = {}
        self._facts: dict[int, str] = {}
        self._error: NetFoldError | None = None
        self._poller = select.poll()
        self._listener = listener
        listener.setblocking(False)
        listener.listen(max(16, plan.world))  # every rank may connect at once: a full backlog costs them a second
        self._poller.register(listener, select.POLLIN)
        self.bytes_sent = 0
        """Payload bytes handed to the kernel so far."""
        self.watch: Callable[[float], None] | None = None
        """Called with the time of the last progress while a wait lasts; what it raises ends the operation."""
        self._moved = clock()

    # ---- posting ---------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        link = self._link(peer)
        view = as_bytes(data, "send of")
        if not view.nbytes:
            return DONE
        head = HEADER.pack(self._call.number, view.nbytes, tag, self._text)
        pending = Send(memoryview(head), view)
        link.sends.append(pending)
        self.bytes_sent += view.nbytes
        if len(link.sends) == 1 and link.socket is not None:
            with self.spanned("send"):
                self._write(link)  # most small messages leave here, without a turn of the poll loop
        self._watch(link)
        return pending

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        link = self._link(peer)
        view = as_bytes(into, "receive into")
        if not view.nbytes:
            return DONE
        if view.readonly:
            raise ValueError("receive into a read-only array")
        pending = Receive(tag, view)
        link.receives.append(pending)
        if link.aside:
            self._take_aside(link)
        if link.current is None and link.got == HEADER.size:
            self._match(link)
        self._watch(link)
        return pending

    def _link(self, peer: int) -> Link:
        if self._error is not None:
            raise self._error
        if peer not in self._links:
            raise no_such_peer(self, peer)
        link = self._links[peer]
        if link.socket is None and not link.lost and self.rank > peer:
            self._connect(link)
        return link

    # ---- waiting ---------------------------------------------------------------------------------------------------
    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        if first:
            while not any(p.done for p in pending):
                self._turn()
            return
        for one in pending:
            while not one.done:
                self._turn()

    def flush(self) -> None:
        while any(link.sends or link.receives for link in self._links.values()):
            self._turn()

    def _turn(self) -> None:
        """Moves what can move; waits, for at most the timeout, until something does."""
        deadline = self._clock() + self._timeout
        most = self._timeout if self.watch is None else WATCHED_SLICE
        while not self._move(min(most, deadline - self._clock())):
            if self.watch is not None:
                self.watch(self._moved)
            if self._clock() >= deadline:
                self._time_out()
        self._moved = self._clock()

    def _move(self, seconds: float) -> bool:
        """One poll and its consequences; says whether any byte or connection moved."""
        if self._error is not None:
            raise self._error
        for link in self._gone:
            if link.owed or link.unsent:
                self._learn(link.rank, f"is lost: {link.lost}")
        return self._poll(seconds)

    def _poll(self, seconds: float) -> bool:
        moved = False
        with self.spanned("wait"):
            ready = self._poller.poll(max(0.0, seconds) * 1000)
        for fd, event in ready:
            link = self._by_fd.get(fd)
            if link is None:
                moved |= self._stranger(fd)
                continue
            if event & select.POLLOUT and link.sends:
                with self.spanned("send"):
                    moved |= self._write(link)
            if event & ~select.POLLOUT and link.socket is not None:
                with self.spanned("receive"):
                    moved |= self._read(link)
            self._watch(link)
        return moved

    def _watch(self, link: Link) -> None:
        if link.socket is None:
            return
        held = link.current is None and link.got == HEADER.size
        events = (0 if held else select.POLLIN) | (select.POLLOUT if link.sends else 0)
        if events != link.events:
            if not link.events:
                self._poller.register(link.socket, events)
            elif not events:  # a hang-up is reported even to those who ask for nothing: the loop would spin on it
                self._poller.unregister(link.socket)
            else:
                self._poller.modify(link.socket, events)
            link.events = events

    # ---- bytes -----------------------------------------------------------------------------------------------------
    def _write(self, link: Link) -> bool:
        assert link.socket is not None
        total = 0
        try:
            while link.sends and total < BURST:
                parts = link.sends[0].parts
                sent = link.socket.sendmsg(parts)
                total += sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][sent:]
                else:
                    link.sends.popleft().done = True
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # What the peer wrote before it went away may say why: read it before giving up.
            link.lost = error.strerror or str(error)
            self._read(link)
            self._drop(link, link.lost)
        return total > 0

    def _read(self, link: Link) -> bool:
        total = 0
        try:
            while link.socket is not None and total < BURST:
                if link.current is not None:
                    got = link.socket.recv_into(link.current.view)
                    link.current.view = link.current.view[got:]
                    if not link.current.view:
                        self._arrived(link, link.current)
                elif link.got < HEADER.size:
                    got = link.socket.recv_into(memoryview(link.header)[link.got :])
                    link.got += got
                    if link.got == HEADER.size:
                        self._match(link)
                else:
                    break  # held
                if not got:
                    self._drop(link, "it closed the connection")
                total += got
        except (BlockingIOError, InterruptedError):
            pass
        except NetFoldError:  # our own, from what the peer told us; some of them are OSErrors, but not the socket's
            raise
        except OSError as error:
            self._drop(link, error.strerror or str(error))
        return total > 0

    def _match(self, link: Link) -> None:
        """A header is in: finds the receive that it is for, if that is posted already."""
        number, nbytes, tag, text = HEADER.unpack(link.header)
        if number == NEWS:
            link.got = 0
            self._hear(tag, nbytes, text.rstrip(b"\0").decode(errors="replace"))
            return
        if not link.receives:
            return
        wanted = next((receive for receive in link.receives if receive.tag == tag), None)
        if number != self._call.number or text != self._text.ljust(76, b"\0"):
            theirs = Call(number, text.rstrip(b"\0").decode(errors="replace"))
            raise self._fail(RankMismatch, f"rank {link.rank} is at {theirs}; expected {self._call}; {_SAME}")
        if wanted is None:
            memory = bytearray(nbytes)
            link.current = Receive(tag, memoryview(memory), memory)
            return
        self._check_size(link, wanted, nbytes)
        link.receives.remove(wanted)
        link.current = wanted

    def _arrived(self, link: Link, receive: Receive) -> None:
        link.current, link.got = None, 0
        receive.done = True
        if receive.aside is not None:
            link.aside.append(receive)
            self._take_aside(link)

    def _take_aside(self, link: Link) -> None:
        """Gives messages that were put aside to receives that have been posted since."""
        for early in list(link.aside):
            wanted = next((receive for receive in link.receives if receive.tag == early.tag), None)
            if wanted is not None:
                assert early.aside is not None
                self._check_size(link, wanted, len(early.aside))
                wanted.view[:] = early.aside
                wanted.done = True
                link.receives.remove(wanted)
                link.aside.remove(early)

    def _check_size(self, link: Link, wanted: Receive, nbytes: int) -> None:
        if len(wanted.view) != nbytes:
            raise self._fail(
                RankMismatch,
                f"rank {link.rank} sends {nbytes} bytes where {len(wanted.view)} were expected "
                f"(tag {wanted.tag}); {_SAME}",
            )

    # ---- connections -----------------------------------------------------------------------------------------------
    def _hello(self, rank: int) -> bytes:
        return HELLO.pack(MAGIC, self._plan.epoch, rank, self.size, self._plan.job.encode()[:32])

    def _connect(self, link: Link) -> None:
        host, _, port = link.where.rpartition(":")
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            code = sock.connect_ex((host, int(port)))
        except (OSError, ValueError) as error:
            sock.close()
            what = f"cannot connect to rank {link.rank} at {link.where!r}: {error}"
            raise self._fail(TransportError, what) from error
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._drop(link, f"cannot connect: {errno.errorcode.get(code, code)}")
            return
        link.sends.appendleft(Note(memoryview(self._hello(self.rank))))
        self._adopt(link, sock)

    def _adopt(self, link: Link, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket = sock
        link.events = select.POLLIN | (select.POLLOUT if link.sends else 0)
        self._by_fd[sock.fileno()] = link
        self._poller.register(sock, link.events)
        for whom, why in self._facts.items():
            self._tell(self.rank, whom, why, only=link)
        for who, whoms in self._waits.items():
            for whom in whoms:
                self._tell(who, whom, "", only=link)

    def _drop(self, link: Link, why: str) -> None:
        """Takes a dead connection away.  An error only if something is still owed: a peer may leave when it is done."""
        link.lost = link.lost or why
        self._gone.add(link)
        if link.current is not None and link.current.aside is None:
            link.receives.insert(0, link.current)
        link.current, link.got = None, 0
        if link.socket is not None:
            if link.events:
                self._poller.unregister(link.socket)
                link.events = 0
            del self._by_fd[link.socket.fileno()]
            link.socket.close()
            link.socket = None

    def _stranger(self, fd: int) -> bool:
        """Somebody connects, or says who it is.  Port scanners and other jobs' ranks are sent away."""
        if fd == self._listener.fileno():
            try:
                sock, _ = self._listener.accept()
            except OSError:  # it went away again before we looked
                return False
            sock.setblocking(False)
            self._strangers[sock.fileno()] = sock, bytearray()
            self._poller.register(sock, select.POLLIN)
            return False
        if fd not in self._strangers:  # dropped by an earlier event of the same poll
            return False
        sock, data = self._strangers[fd]
        try:
            more = sock.recv(HELLO.size - len(data))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            more = b""
        data += more
        if more and len(data) < HELLO.size:
            return False
        del self._strangers[fd]
        self._poller.unregister(fd)
        rank = HELLO.unpack(data)[2] if len(data) == HELLO.size else -1
        link = self._links.get(rank)
        if link is None or link.lost or bytes(data) != self._hello(rank) or (link.socket and rank < self.rank):
            sock.close()
            return False
        if link.socket is not None:  # both connected, after a timeout: the higher rank's connection stays
            self._drop(link, "")
            self._gone.discard(link)
            link.sends = deque(send for send in link.sends if len(send.parts[0]) != HELLO.size)
        self._adopt(link, sock)
        return True

    # ---- failure ---------------------------------------------------------------------------------------------------
    def _missing(self) -> list[Link]:
        """Peers that owe us something: first those whose bytes we want, then those who do not take ours."""
        links = self._links.values()
        return [link for link in links if link.owed] + [link for link in links if link.unsent and not link.owed]

    def _hear(self, who: int, whom: int, why: str) -> None:
        """News from a peer.  Between operations it only goes on the record: the next one will run into it."""
        if why:
            if whom != self.rank:
                self._learn(whom, why)
        elif who != self.rank and whom not in self._waits.get(who, ()):
            self._waits.setdefault(who, set()).add(whom)
            self._tell(who, whom, "")
            if self._call is not IDLE and self.rank not in self._waits and self._missing():
                self._time_out()

    def _learn(self, whom: int, why: str) -> None:
        """A fact: passes it on, and gives up."""
        if whom in self._facts:
            return
        self._facts[whom] = why
        self._tell(self.rank, whom, why)
        if self._call is not IDLE:
            raise self._lost()

    def _lost(self) -> NetFoldError:
        rank, why = next(iter(self._facts.items()))
        owed = "; ".join(self._owed(link) for link in self._missing())
        return self._fail(PeerLost, f"rank {rank} {why}; {owed or 'nothing was owed'}. {_LOOK}")

    def _time_out(self) -> None:
        """Nothing moves, or others say so: tells all whom we miss, hears whom they miss, raises with the names."""
        missing = self._missing()
        owed = "; ".join(self._owed(link) for link in missing)
        self._waits[self.rank] = {link.rank for link in missing}
        for link in missing:
            if link.socket is None and not link.lost:  # it should have connected: only we can ask it why not
                self._connect(link)
        for link in missing:
            self._tell(self.rank, link.rank, "")
        deadline = self._clock() + max(FAREWELL, GRACE * self._timeout)
        while (left := deadline - self._clock()) > 0:
            self._poll(left)
        guilty = ranks(culprits(self._waits, self.rank))
        raise self._fail(
            CollectiveTimeout,
            f"nothing moved for {self._timeout:g} s: {guilty} gone, stopped, or never called; here {owed}. "
            "Expected: every rank calls within the timeout",
        )

    def _tell(self, who: int, whom: int, why: str, only: Link | None = None) -> None:
        """Passes news on to all who are connected: after a message that is on its way, before all others."""
        news = HEADER.pack(NEWS, whom, who, why.encode()[:76])
        for link in [only] if only else list(self._links.values()):
            if link.socket is None:
                continue
            first = link.sends[0] if link.sends else None
            begun = first is not None and (isinstance(first, Note) or first.begun)
            link.sends.insert(1 if begun else 0, Note(memoryview(news)))
            self._write(link)
            self._watch(link)

    def _owed(self, link: Link) -> str:
        parts = []
        if link.owed:
            parts.append(f"owes {link.owed} bytes")
        if link.unsent:
            parts.append(f"does not take {link.unsent} bytes")
        state = "" if link.socket is not None else ", never connected" if not link.lost else f", {link.lost}"
        return f"rank {link.rank} ({link.where}{state}) {' and '.join(parts) or 'owes nothing'}"

    def _fail(self, kind: type[NetFoldError], what: str) -> NetFoldError:
        me = f"job {self._plan.job!r}, rank {self.rank} of {self.size}, TCP mesh, {self._call}"
        self._error = kind(f"{me}: {what}")
        return self._error

    # ---- life ------------------------------------------------------------------------------------------------------
    def begin(self, call: Call) -> None:
        if self._error is not None:
            raise self._error
        if self._facts:
            raise self._lost()
        if self._waits:
            who, whom = next(iter(self._waits.items()))
            raise self._fail(CollectiveTimeout, f"rank {who} waits in vain for {ranks(sorted(whom))}. {_LOOK}")
        self._call = call
        self._text = call.text.encode()[:76]

    def abort(self, error: BaseException) -> None:
        told = bool(self._facts) or self.rank in self._waits
        self._error = self._error or self._fail(NetFoldError, f"gave up ({type(error).__name__}: {error}); join anew")
        self._call = IDLE
        # Those we wait for, or they for us, who have not come yet: whom they would find gone they would name.
        late = [link for link in self._links.values() if link.receives or link.sends]
        for link in self._links.values():
            if not told and link.socket is None and not link.lost and (link.receives or link.sends):
                self._connect(link)  # it waits for us, or will: without a connection it could not learn
            link.receives.clear()
            link.sends = deque(send for send in link.sends if isinstance(send, Note) or send.begun)
        if not told:
            self._tell(self.rank, self.rank, f"gave up: {type(error).__name__}")
        if not isinstance(error, RailDown):  # a rail that was found dead takes no news either
            grace = max(FAREWELL, GRACE * self._timeout)
            self._stay(grace, lambda: any(link.socket is None and not link.lost for link in late))
            self._stay(FAREWELL, lambda: any(link.sends for link in self._links.values()))
        self._shut()

    def _stay(self, seconds: float, while_: Callable[[], bool]) -> None:
        deadline = self._clock() + seconds
        while (left := deadline - self._clock()) > 0 and while_():
            self._poll(left)

    def close(self) -> None:
        self._error = self._error or Closed(f"job {self._plan.job!r}, rank {self.rank}: the mesh was closed")
        self._shut()

    def _shut(self) -> None:
        """Closes everything: whoever depends on this rank learns of it at once."""
        for link in self._links.values():
            self._drop(link, "closed by this rank")
        for sock, _ in self._strangers.values():
            sock.close()
        self._strangers.clear()
        self._listener.close()


_SAME = "call the same operations in the same order on every rank, then join anew"
_LOOK = "Look at that rank's own error; then join anew"
