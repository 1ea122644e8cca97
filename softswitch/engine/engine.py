# SPDX-License-Identifier: Apache-2.0
"""The switch engine as Python sees it: every control-plane operation, and, in process, frames in and out.

    with Engine.in_process(compile_file(Path("l2.p4"))) as engine:
        table = engine.table("dmac")
        key, mask = table.pack_key([(0x00AA00000001, 0xFFFFFFFFFFFF)])
        forward = table.action("forward")
        engine.insert(Entry(table, key, mask, DoAction(forward.index, forward.pack([2]))))
        engine.inject(1, frame)                      # [(2, frame)]

`Engine.over(sock)` speaks to a switch process instead. Calls raise EngineError subclasses
(softswitch.engine.entities); an engine may be used from several threads, the switch serves one request after another.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from softswitch.engine.codec import (
    DELETE,
    INSERT,
    MODIFY,
    Op,
    Reader,
    chunks,
    direct,
    one_id,
    pack_meter,
    pack_pairs,
    read_entry,
    read_handle,
    read_info,
    read_meter,
    read_pairs,
    request,
    split,
    table_write,
    write_kind,
)
from softswitch.engine.entities import (
    CloneSession,
    Count,
    Default,
    DigestInfo,
    DoAction,
    EngineError,
    Entry,
    Event,
    Group,
    Internal,
    InvalidArgument,
    Member,
    MeterConfig,
    MeteringInfo,
    Multicast,
    Named,
    ProfileInfo,
    ProgramInfo,
    RegisterInfo,
    TableInfo,
    ValueSetInfo,
    by_name,
    width,
)
from softswitch.engine.transport import MESSAGE_MAX, OverSocket, Transport

if TYPE_CHECKING:
    from softswitch.engine.linking import Compiled
    from softswitch.engine.local import LocalEngine

_BATCH = 256 * 1024
_PAGE = 1024

_N = TypeVar("_N", bound=Named)


@dataclass(frozen=True)
class Stats:
    """What happened to frames since the start or the last reset (ss_stats)."""

    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    packet_ins: int
    dropped_ingress: int
    dropped_egress: int
    dropped_queue: int
    dropped_oversize: int
    dropped_passes: int
    parser_errors: int
    asserts_failed: int
    digests: int


class Engine:
    """One running switch program."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        try:
            self.info = read_info(Reader(self._one(request(Op.INFO))))
        except BaseException:
            transport.close()
            raise

    @classmethod
    def in_process(
        cls, program: Compiled | str | Path, *, cpu_port: int | None = None, seed: int = 1
    ) -> LocalEngine:
        """Opens a compiled program, C text, a C file, or a library made by `linking.build`, inside this process."""
        from softswitch.engine.local import LocalEngine  # an Engine itself

        return LocalEngine.open(program, cpu_port=cpu_port, seed=seed)

    @classmethod
    def over(
        cls,
        sock: socket.socket,
        *,
        on_event: Callable[[Event], None] | None = None,
        on_end: Callable[[str], None] | None = None,
        timeout: float = 10.0,
    ) -> Engine:
        """Speaks to a switch process through a connected stream socket, which the engine then owns.

        on_event runs on the engine's reader thread and must not call the engine; on_end(reason) likewise, once, when
        the switch goes away by itself. Every call answers or raises within `timeout` seconds.
        """
        return cls(OverSocket(sock, on_event=on_event, on_end=on_end, timeout=timeout))

    def close(self) -> None:
        """Closes the connection, or frees the switch in process."""
        self._transport.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- names ---------------------------------------------------------------------------------------------

    def table(self, which: str | int) -> TableInfo:
        """The table of this control-plane name or p4info id; likewise the others below."""
        return _find(self.info.tables, "table", which)

    def register(self, which: str | int) -> RegisterInfo:
        """The register of this name or id."""
        return _find(self.info.registers, "register", which)

    def counter(self, which: str | int) -> MeteringInfo:
        """The indirect or direct counter of this name or id."""
        return _find(self.info.counters, "counter", which)

    def meter(self, which: str | int) -> MeteringInfo:
        """The indirect or direct meter of this name or id."""
        return _find(self.info.meters, "meter", which)

    def profile(self, which: str | int) -> ProfileInfo:
        """The action profile or selector of this name or id."""
        return _find(self.info.profiles, "action profile", which)

    def digest(self, which: str | int) -> DigestInfo:
        """The digest of this name or id."""
        return _find(self.info.digests, "digest", which)

    def value_set(self, which: str | int) -> ValueSetInfo:
        """The parser value set of this name or id."""
        return _find(self.info.value_sets, "value set", which)

    # ---- tables --------------------------------------------------------------------------------------------

    def insert(self, entry: Entry) -> int:
        """Adds an entry and returns its handle. AlreadyExists, ResourceExhausted, NotFound (member or group)..."""
        return read_handle(self._one(table_write(INSERT, entry)))

    def modify(self, entry: Entry) -> int:
        """Replaces action, cookie and timeout of the entry with this key, mask and priority."""
        return read_handle(self._one(table_write(MODIFY, entry)))

    def delete(self, entry: Entry) -> None:
        """Removes the entry with this key, mask and priority."""
        self._one(table_write(DELETE, entry))

    def write_entries(self, kind: str, entries: Sequence[Entry]) -> list[int | EngineError]:
        """Many inserts, modifies or deletes ("insert", "modify", "delete") at once: a handle or an error for each."""
        what = write_kind(kind)
        replies = self._many([table_write(what, entry) for entry in entries])
        return [reply if isinstance(reply, EngineError) else read_handle(reply) for reply in replies]

    def entries(self, table: TableInfo) -> Iterator[Entry]:
        """All entries of a table, const ones included, page by page."""
        for reader in self._pages(Op.TABLE_READ, struct.pack("<I", table.index), b"\0"):
            yield read_entry(reader, table)

    def entry(self, table: TableInfo, key: bytes, mask: bytes, priority: int = 0) -> Entry:
        """One entry. Raises NotFound."""
        tail = b"\1" + struct.pack("<i", priority) + key + mask
        (found,) = [read_entry(r, table) for r in self._pages(Op.TABLE_READ, struct.pack("<I", table.index), tail)]
        return found

    def clear(self, table: TableInfo) -> None:
        """Removes every entry. PermissionDenied where they are const."""
        self._one(request(Op.TABLE_CLEAR, struct.pack("<I", table.index)))

    def default(self, table: TableInfo) -> Default:
        """The default action."""
        reader = Reader(self._one(request(Op.DEFAULT_READ, struct.pack("<I", table.index))))
        action, packets, octets = reader.unpack("<IQQ")
        meter = read_meter(reader)
        return Default(DoAction(action, reader.rest()), Count(packets, octets), meter)

    def set_default(self, table: TableInfo, do: DoAction | None) -> None:
        """Sets the default action, or (None) restores the program's. PermissionDenied where it is const."""
        body = b"\0" if do is None else struct.pack("<BI", 1, do.action) + do.params
        self._one(request(Op.DEFAULT_WRITE, struct.pack("<I", table.index) + body))

    def write_direct_counter(self, table: TableInfo, entry: Entry | None, count: Count) -> None:
        """Sets the direct counter of an entry, or (None) of the default action."""
        self._one(request(Op.DIRECT_COUNTER, direct(table, entry) + struct.pack("<QQ", count.packets, count.bytes)))

    def write_direct_meter(self, table: TableInfo, entry: Entry | None, config: MeterConfig | None) -> None:
        """Sets (None: unsets) the direct meter of an entry, or (entry None) of the default action."""
        self._one(request(Op.DIRECT_METER, direct(table, entry) + pack_meter(config)))

    # ---- action profiles -----------------------------------------------------------------------------------

    def write_member(self, kind: str, profile: ProfileInfo, member: int, table: TableInfo | None = None,
                     do: DoAction | None = None) -> None:
        """Inserts, modifies or deletes a member; do.action indexes the actions of `table`, one of the profile's."""
        body = struct.pack("<BII", write_kind(kind), profile.index, member)
        if table is not None and do is not None:
            body += struct.pack("<II", table.index, do.action) + do.params
        self._one(request(Op.MEMBER_WRITE, body))

    def members(self, profile: ProfileInfo, member: int | None = None) -> list[Member]:
        """All members, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(Op.MEMBER_READ, struct.pack("<I", profile.index), one_id(member)):
            ident, action_id, size = reader.unpack("<III")
            found.append(Member(ident, action_id, reader.take(size)))
        return found

    def write_group(self, kind: str, profile: ProfileInfo, group: Group) -> None:
        """Inserts, modifies or deletes a group of an action selector."""
        body = struct.pack("<BII", write_kind(kind), profile.index, group.group)
        if kind != "delete":
            body += struct.pack("<I", group.max_size) + pack_pairs(group.members)
        self._one(request(Op.GROUP_WRITE, body))

    def groups(self, profile: ProfileInfo, group: int | None = None) -> list[Group]:
        """All groups, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(Op.GROUP_READ, struct.pack("<I", profile.index), one_id(group)):
            ident, max_size = reader.unpack("<II")
            found.append(Group(ident, read_pairs(reader), max_size))
        return found

    # ---- counters, meters, registers -----------------------------------------------------------------------

    def read_counter(self, counter: MeteringInfo, first: int = 0, n: int | None = None) -> list[Count]:
        """n cells (default: the rest) from `first`. Raises OutOfRange."""
        cells: list[Count] = []
        for at, size in chunks(first, counter.size - first if n is None else n, _PAGE):
            data = self._one(request(Op.COUNTER_READ, struct.pack("<IQI", counter.index, at, size)))
            cells += [Count(*pair) for pair in struct.iter_unpack("<QQ", data)]
        return cells

    def write_counter(self, counter: MeteringInfo, first: int, cells: Sequence[Count]) -> None:
        """Sets cells from `first` on."""
        for at, size in chunks(0, len(cells), _PAGE):
            body = b"".join(struct.pack("<QQ", c.packets, c.bytes) for c in cells[at : at + size])
            self._one(request(Op.COUNTER_WRITE, struct.pack("<IQI", counter.index, first + at, size) + body))

    def read_meter(self, meter: MeteringInfo, first: int = 0, n: int | None = None) -> list[MeterConfig | None]:
        """Configurations of n cells (default: the rest) from `first`; None: passes all as green."""
        cells: list[MeterConfig | None] = []
        for at, size in chunks(first, meter.size - first if n is None else n, _PAGE):
            reader = Reader(self._one(request(Op.METER_READ, struct.pack("<IQI", meter.index, at, size))))
            cells += [read_meter(reader) for _ in range(size)]
        return cells

    def write_meter(self, meter: MeteringInfo, first: int, cells: Sequence[MeterConfig | None]) -> None:
        """Configures cells from `first` on."""
        for at, size in chunks(0, len(cells), _PAGE):
            body = b"".join(pack_meter(cell) for cell in cells[at : at + size])
            self._one(request(Op.METER_WRITE, struct.pack("<IQI", meter.index, first + at, size) + body))

    def read_register(self, register: RegisterInfo, first: int = 0, n: int | None = None) -> list[int]:
        """n cells (default: the rest) from `first`, as unsigned integers."""
        size = width(register.bits)
        cells: list[int] = []
        page = max(1, _BATCH // size)
        for at, count in chunks(first, register.size - first if n is None else n, page):
            data = self._one(request(Op.REGISTER_READ, struct.pack("<IQI", register.index, at, count)))
            cells += [int.from_bytes(data[i : i + size], "big") for i in range(0, len(data), size)]
        return cells

    def write_register(self, register: RegisterInfo, first: int, cells: Sequence[int]) -> None:
        """Sets cells from `first` on."""
        for cell in cells:
            if cell < 0 or cell.bit_length() > register.bits:
                raise InvalidArgument(f"register {register.name}: {cell:#x} does not fit bit<{register.bits}>")
        size = width(register.bits)
        for at, count in chunks(0, len(cells), max(1, _BATCH // size)):
            body = b"".join(cell.to_bytes(size, "big") for cell in cells[at : at + count])
            self._one(request(Op.REGISTER_WRITE, struct.pack("<IQI", register.index, first + at, count) + body))

    def reset_register(self, register: RegisterInfo) -> None:
        """Sets every cell to 0."""
        self._one(request(Op.REGISTER_RESET, struct.pack("<I", register.index)))

    # ---- replication ---------------------------------------------------------------------------------------

    def write_multicast(self, kind: str, group: Multicast) -> None:
        """Inserts, modifies or deletes a multicast group; ids 1 and up."""
        body = struct.pack("<BI", write_kind(kind), group.group)
        self._one(request(Op.MULTICAST_WRITE, body + (b"" if kind == "delete" else pack_pairs(group.replicas))))

    def multicasts(self, group: int | None = None) -> list[Multicast]:
        """All multicast groups, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(Op.MULTICAST_READ, b"", one_id(group)):
            (ident,) = reader.unpack("<I")
            found.append(Multicast(ident, read_pairs(reader)))
        return found

    def write_clone_session(self, kind: str, session: CloneSession) -> None:
        """Inserts, modifies or deletes a clone session."""
        body = struct.pack("<BI", write_kind(kind), session.session)
        if kind != "delete":
            body += struct.pack("<II", session.truncate_to, session.group) + pack_pairs(session.replicas)
        self._one(request(Op.CLONE_WRITE, body))

    def clone_sessions(self, session: int | None = None) -> list[CloneSession]:
        """All clone sessions, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(Op.CLONE_READ, b"", one_id(session)):
            ident, truncate_to, group = reader.unpack("<III")
            found.append(CloneSession(ident, read_pairs(reader), truncate_to, group))
        return found

    def write_value_set(self, value_set: ValueSetInfo, members: Sequence[tuple[bytes, bytes]]) -> None:
        """Replaces all members; each is (key, mask) in byte form (entities.pack_key(value_set.keys, ...))."""
        body = struct.pack("<II", value_set.index, len(members)) + b"".join(key + mask for key, mask in members)
        self._one(request(Op.VALUE_SET_WRITE, body))

    def read_value_set(self, value_set: ValueSetInfo) -> list[tuple[bytes, bytes]]:
        """All members as (key, mask) in byte form."""
        size = sum(width(key.bits) for key in value_set.keys)
        pages = self._pages(Op.VALUE_SET_READ, struct.pack("<I", value_set.index), b"")
        return [(reader.take(size), reader.take(size)) for reader in pages]

    # ---- the switch ----------------------------------------------------------------------------------------

    def packet_out(self, frame: bytes) -> None:
        """Sends a frame, its packet_out header first, into the pipeline from the CPU port."""
        self._one(request(Op.PACKET_OUT, frame))

    def reset(self) -> None:
        """Everything as at the start: entries, defaults, groups, sessions, registers, counters, meters, statistics."""
        self._one(request(Op.RESET))

    def stats(self) -> Stats:
        """What happened to frames."""
        return Stats(*struct.unpack("<13Q", self._one(request(Op.STATS))))

    # ---- requests and replies ------------------------------------------------------------------------------

    def _many(self, requests: Sequence[bytes]) -> list[bytes | EngineError]:
        replies: list[bytes | EngineError] = []
        at = 0
        while at < len(requests):
            batch: list[bytes] = []
            size = 0
            while at < len(requests) and (not batch or size + len(requests[at]) <= _BATCH):
                batch.append(requests[at])
                size += len(requests[at])
                at += 1
            if size > MESSAGE_MAX - 64:
                raise InvalidArgument(f"a request of {size} bytes is longer than the switch takes ({MESSAGE_MAX - 64})")
            with self._lock:
                data = self._transport.exchange(b"".join(batch))
            answers = list(split(data))
            if not 0 < len(answers) <= len(batch):
                raise Internal(f"the switch gave {len(answers)} replies to {len(batch)} requests")
            at -= len(batch) - len(answers)    # what found no room in the reply was not done
            replies += answers
        return replies

    def _one(self, request: bytes) -> bytes:
        (reply,) = self._many([request])
        if isinstance(reply, EngineError):
            raise reply
        return reply

    def _pages(self, op: Op, head: bytes, tail: bytes) -> Iterator[Reader]:
        """A reader placed on each record of a paged read in turn; the caller consumes exactly one record."""
        cursor = 0
        while True:
            reader = Reader(self._one(request(op, head + struct.pack("<Q", cursor) + tail)))
            cursor, n = reader.unpack("<QI")
            for _ in range(n):
                yield reader
            if cursor == 0:
                return


def _find(things: Sequence[_N], kind: str, which: str | int) -> _N:
    found = [t for t in things if t.id == which] if isinstance(which, int) else by_name(things, which)
    if len(found) != 1:
        have = ", ".join(t.name for t in things) or "none"
        raise InvalidArgument(f"{kind} {which} is {'ambiguous' if found else 'unknown'} (the program has {have})")
    return found[0]


def read_idle_entry(event: Event, info: ProgramInfo) -> Entry:
    """The entry that an IDLE event reports."""
    return read_entry(Reader(event.data), info.tables[event.id])
