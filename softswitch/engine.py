# SPDX-License-Identifier: Apache-2.0
"""The switch engine as Python sees it: every control-plane operation, and, in process, frames in and out.

    with Engine.in_process(compile_file(Path("l2.p4"))) as engine:
        table = engine.table("dmac")
        key, mask = table.pack_key([(0x00AA00000001, 0xFFFFFFFFFFFF)])
        forward = table.action("forward")
        engine.insert(Entry(table, key, mask, DoAction(forward.index, forward.pack([2]))))
        engine.inject(1, frame)                      # [(2, frame)]

`Engine.over(sock)` speaks to a switch process instead. Calls raise EngineError subclasses (softswitch.entities); an
engine may be used from several threads, the switch serves one request after another.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from softswitch import cc
from softswitch.entities import (
    ERRORS,
    ActionInfo,
    CloneSession,
    Count,
    Default,
    DigestInfo,
    Do,
    DoAction,
    DoGroup,
    DoMember,
    EngineError,
    Entry,
    Event,
    Group,
    Internal,
    InvalidArgument,
    KeyField,
    MatchKind,
    Member,
    MeterConfig,
    MeteringInfo,
    Multicast,
    Named,
    ProfileInfo,
    ProgramInfo,
    RegisterInfo,
    TableInfo,
    Unit,
    ValueSetInfo,
    by_name,
    width,
)
from softswitch.transport import MESSAGE_MAX, InProcess, OverSocket, Transport

RUNTIME = Path(__file__).parent / "runtime"
CORE = ("pipeline.c", "tables.c", "entries.c", "profiles.c", "state.c", "pre.c", "value_sets.c", "hash.c", "control.c",
        "info.c")
"""The runtime's C files that every program links with."""

_BATCH = 256 * 1024
_PAGE = 1024
_INSERT, _MODIFY, _DELETE = 0, 1, 2

_N = TypeVar("_N", bound=Named)


class Compiled(Protocol):
    """What the compiler hands over (softswitch.compiler.driver.Program)."""

    @property
    def c_source(self) -> str:
        """The C file that defines ss_the_program."""


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


def build(
    program: Compiled | str | Path,
    *,
    extra: Sequence[str] = ("capture.c",),
    kind: cc.Kind = "shared",
    name: str = "switch",
    flags: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> Path:
    """Builds a compiled program (or its C text, or C file) with the runtime; `extra` names more files of runtime/.

    The default is the library that Engine.in_process loads; it links with the runtime as a library of its own, which
    is built once, so that a new program costs its own C file alone. Raises cc.BuildError.
    """
    source = program if isinstance(program, str | Path) else program.c_source
    own: list[cc.Source] = [source, *(RUNTIME / file for file in extra)]
    core = [RUNTIME / file for file in CORE]
    flags = ["-g", *flags]
    if kind == "exe":
        return cc.build([*own, *core], kind=kind, name=name, include=[RUNTIME], flags=flags, cache_dir=cache_dir)
    runtime = cc.build(core, kind="shared", name="runtime", include=[RUNTIME], flags=flags, cache_dir=cache_dir)
    return cc.build(own, kind=kind, name=name, include=[RUNTIME], flags=flags, libs=[str(runtime)], cache_dir=cache_dir)


class Engine:
    """One running switch program."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self.info = _read_info(_Reader(self._one(_op(1))))

    @classmethod
    def in_process(
        cls, program: Compiled | str | Path, *, cpu_port: int | None = None, seed: int = 1
    ) -> LocalEngine:
        """Opens a compiled program, C text, a C file, or a library made by `build`, inside this process."""
        built = isinstance(program, Path) and program.suffix == ".so"
        library = program if isinstance(program, Path) and built else build(program)
        return LocalEngine(InProcess(library, cpu_port=cpu_port, seed=seed))

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
        return _find(self.info.registers, "register", which)

    def counter(self, which: str | int) -> MeteringInfo:
        return _find(self.info.counters, "counter", which)

    def meter(self, which: str | int) -> MeteringInfo:
        return _find(self.info.meters, "meter", which)

    def profile(self, which: str | int) -> ProfileInfo:
        return _find(self.info.profiles, "action profile", which)

    def digest(self, which: str | int) -> DigestInfo:
        return _find(self.info.digests, "digest", which)

    def value_set(self, which: str | int) -> ValueSetInfo:
        return _find(self.info.value_sets, "value set", which)

    # ---- tables --------------------------------------------------------------------------------------------

    def insert(self, entry: Entry) -> int:
        """Adds an entry and returns its handle. AlreadyExists, ResourceExhausted, NotFound (member or group)..."""
        return _handle(self._one(_table_write(_INSERT, entry)))

    def modify(self, entry: Entry) -> int:
        """Replaces action, cookie and timeout of the entry with this key, mask and priority."""
        return _handle(self._one(_table_write(_MODIFY, entry)))

    def delete(self, entry: Entry) -> None:
        """Removes the entry with this key, mask and priority."""
        self._one(_table_write(_DELETE, entry))

    def write_entries(self, kind: str, entries: Sequence[Entry]) -> list[int | EngineError]:
        """Many inserts, modifies or deletes ("insert", "modify", "delete") at once: a handle or an error for each."""
        what = {"insert": _INSERT, "modify": _MODIFY, "delete": _DELETE}[kind]
        replies = self._many([_table_write(what, entry) for entry in entries])
        return [reply if isinstance(reply, EngineError) else _handle(reply) for reply in replies]

    def entries(self, table: TableInfo) -> Iterator[Entry]:
        """All entries of a table, const ones included, page by page."""
        for reader in self._pages(11, struct.pack("<I", table.index), b"\0"):
            yield _read_entry(reader, table)

    def entry(self, table: TableInfo, key: bytes, mask: bytes, priority: int = 0) -> Entry:
        """One entry. Raises NotFound."""
        tail = b"\1" + struct.pack("<i", priority) + key + mask
        (found,) = [_read_entry(r, table) for r in self._pages(11, struct.pack("<I", table.index), tail)]
        return found

    def clear(self, table: TableInfo) -> None:
        """Removes every entry. PermissionDenied where they are const."""
        self._one(_op(14, struct.pack("<I", table.index)))

    def default(self, table: TableInfo) -> Default:
        """The default action."""
        reader = _Reader(self._one(_op(13, struct.pack("<I", table.index))))
        action, packets, octets = reader.unpack("<IQQ")
        meter = _read_meter(reader)
        return Default(DoAction(action, reader.rest()), Count(packets, octets), meter)

    def set_default(self, table: TableInfo, do: DoAction | None) -> None:
        """Sets the default action, or (None) restores the program's. PermissionDenied where it is const."""
        body = b"\0" if do is None else struct.pack("<BI", 1, do.action) + do.params
        self._one(_op(12, struct.pack("<I", table.index) + body))

    def write_direct_counter(self, table: TableInfo, entry: Entry | None, count: Count) -> None:
        """Sets the direct counter of an entry, or (None) of the default action."""
        self._one(_op(15, _direct(table, entry) + struct.pack("<QQ", count.packets, count.bytes)))

    def write_direct_meter(self, table: TableInfo, entry: Entry | None, config: MeterConfig | None) -> None:
        """Sets (None: unsets) the direct meter of an entry, or (entry None) of the default action."""
        self._one(_op(16, _direct(table, entry) + _meter(config)))

    # ---- action profiles -----------------------------------------------------------------------------------

    def write_member(self, kind: str, profile: ProfileInfo, member: int, table: TableInfo | None = None,
                     do: DoAction | None = None) -> None:
        """Inserts, modifies or deletes a member; do.action indexes the actions of `table`, one of the profile's."""
        body = struct.pack("<BII", _what(kind), profile.index, member)
        if table is not None and do is not None:
            body += struct.pack("<II", table.index, do.action) + do.params
        self._one(_op(20, body))

    def members(self, profile: ProfileInfo, member: int | None = None) -> list[Member]:
        """All members, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(21, struct.pack("<I", profile.index), _one_id(member)):
            ident, action_id, size = reader.unpack("<III")
            found.append(Member(ident, action_id, reader.take(size)))
        return found

    def write_group(self, kind: str, profile: ProfileInfo, group: Group) -> None:
        """Inserts, modifies or deletes a group of an action selector."""
        body = struct.pack("<BII", _what(kind), profile.index, group.group)
        if kind != "delete":
            body += struct.pack("<I", group.max_size) + _pairs(group.members)
        self._one(_op(22, body))

    def groups(self, profile: ProfileInfo, group: int | None = None) -> list[Group]:
        """All groups, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(23, struct.pack("<I", profile.index), _one_id(group)):
            ident, max_size = reader.unpack("<II")
            found.append(Group(ident, _read_pairs(reader), max_size))
        return found

    # ---- counters, meters, registers -----------------------------------------------------------------------

    def read_counter(self, counter: MeteringInfo, first: int = 0, n: int | None = None) -> list[Count]:
        """n cells (default: the rest) from `first`. Raises OutOfRange."""
        cells: list[Count] = []
        for at, size in _chunks(first, counter.size - first if n is None else n, _PAGE):
            data = self._one(_op(30, struct.pack("<IQI", counter.index, at, size)))
            cells += [Count(*pair) for pair in struct.iter_unpack("<QQ", data)]
        return cells

    def write_counter(self, counter: MeteringInfo, first: int, cells: Sequence[Count]) -> None:
        """Sets cells from `first` on."""
        for at, size in _chunks(0, len(cells), _PAGE):
            body = b"".join(struct.pack("<QQ", c.packets, c.bytes) for c in cells[at : at + size])
            self._one(_op(31, struct.pack("<IQI", counter.index, first + at, size) + body))

    def read_meter(self, meter: MeteringInfo, first: int = 0, n: int | None = None) -> list[MeterConfig | None]:
        """Configurations of n cells (default: the rest) from `first`; None: passes all as green."""
        cells: list[MeterConfig | None] = []
        for at, size in _chunks(first, meter.size - first if n is None else n, _PAGE):
            reader = _Reader(self._one(_op(32, struct.pack("<IQI", meter.index, at, size))))
            cells += [_read_meter(reader) for _ in range(size)]
        return cells

    def write_meter(self, meter: MeteringInfo, first: int, cells: Sequence[MeterConfig | None]) -> None:
        """Configures cells from `first` on."""
        for at, size in _chunks(0, len(cells), _PAGE):
            body = b"".join(_meter(cell) for cell in cells[at : at + size])
            self._one(_op(33, struct.pack("<IQI", meter.index, first + at, size) + body))

    def read_register(self, register: RegisterInfo, first: int = 0, n: int | None = None) -> list[int]:
        """n cells (default: the rest) from `first`, as unsigned integers."""
        size = width(register.bits)
        cells: list[int] = []
        page = max(1, _BATCH // size)
        for at, count in _chunks(first, register.size - first if n is None else n, page):
            data = self._one(_op(34, struct.pack("<IQI", register.index, at, count)))
            cells += [int.from_bytes(data[i : i + size], "big") for i in range(0, len(data), size)]
        return cells

    def write_register(self, register: RegisterInfo, first: int, cells: Sequence[int]) -> None:
        """Sets cells from `first` on."""
        for cell in cells:
            if cell < 0 or cell.bit_length() > register.bits:
                raise InvalidArgument(f"register {register.name}: {cell:#x} does not fit bit<{register.bits}>")
        size = width(register.bits)
        for at, count in _chunks(0, len(cells), max(1, _BATCH // size)):
            body = b"".join(cell.to_bytes(size, "big") for cell in cells[at : at + count])
            self._one(_op(35, struct.pack("<IQI", register.index, first + at, count) + body))

    def reset_register(self, register: RegisterInfo) -> None:
        """Sets every cell to 0."""
        self._one(_op(36, struct.pack("<I", register.index)))

    # ---- replication ---------------------------------------------------------------------------------------

    def write_multicast(self, kind: str, group: Multicast) -> None:
        """Inserts, modifies or deletes a multicast group; ids 1 and up."""
        body = struct.pack("<BI", _what(kind), group.group)
        self._one(_op(40, body + (b"" if kind == "delete" else _pairs(group.replicas))))

    def multicasts(self, group: int | None = None) -> list[Multicast]:
        """All multicast groups, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(41, b"", _one_id(group)):
            (ident,) = reader.unpack("<I")
            found.append(Multicast(ident, _read_pairs(reader)))
        return found

    def write_clone_session(self, kind: str, session: CloneSession) -> None:
        """Inserts, modifies or deletes a clone session."""
        body = struct.pack("<BI", _what(kind), session.session)
        if kind != "delete":
            body += struct.pack("<II", session.truncate_to, session.group) + _pairs(session.replicas)
        self._one(_op(42, body))

    def clone_sessions(self, session: int | None = None) -> list[CloneSession]:
        """All clone sessions, or one (NotFound where it is not there)."""
        found = []
        for reader in self._pages(43, b"", _one_id(session)):
            ident, truncate_to, group = reader.unpack("<III")
            found.append(CloneSession(ident, _read_pairs(reader), truncate_to, group))
        return found

    def write_value_set(self, value_set: ValueSetInfo, members: Sequence[tuple[bytes, bytes]]) -> None:
        """Replaces all members; each is (key, mask) in byte form (entities.pack_key(value_set.keys, ...))."""
        body = struct.pack("<II", value_set.index, len(members)) + b"".join(key + mask for key, mask in members)
        self._one(_op(44, body))

    def read_value_set(self, value_set: ValueSetInfo) -> list[tuple[bytes, bytes]]:
        """All members as (key, mask) in byte form."""
        size = sum(width(key.bits) for key in value_set.keys)
        return [(r.take(size), r.take(size)) for r in self._pages(45, struct.pack("<I", value_set.index), b"")]

    # ---- the switch ----------------------------------------------------------------------------------------

    def packet_out(self, frame: bytes) -> None:
        """Sends a frame, its packet_out header first, into the pipeline from the CPU port."""
        self._one(_op(4, frame))

    def reset(self) -> None:
        """Everything as at the start: entries, defaults, groups, sessions, registers, counters, meters, statistics."""
        self._one(_op(2))

    def stats(self) -> Stats:
        """What happened to frames."""
        return Stats(*struct.unpack("<13Q", self._one(_op(3))))

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
            answers = list(_split(data))
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

    def _pages(self, op: int, head: bytes, tail: bytes) -> Iterator[_Reader]:
        """A reader placed on each record of a paged read in turn; the caller consumes exactly one record."""
        cursor = 0
        while True:
            reader = _Reader(self._one(_op(op, head + struct.pack("<Q", cursor) + tail)))
            cursor, n = reader.unpack("<QI")
            for _ in range(n):
                yield reader
            if cursor == 0:
                return


class LocalEngine(Engine):
    """An Engine whose switch lives in this process: frames go in and come out by call, and the test owns the clock."""

    def __init__(self, transport: InProcess) -> None:
        self._local = transport
        self._frames: list[tuple[int, bytes]] = []
        self.events: list[Event] = []
        """Reports so far, in order; the caller may clear it."""
        super().__init__(transport)

    def __enter__(self) -> LocalEngine:
        return self

    def inject(self, port: int, frame: bytes, *, now_us: int | None = None) -> list[tuple[int, bytes]]:
        """Runs one frame through the switch: the (port, frame) pairs that leave, in order; reports go to `events`."""
        if now_us is not None:
            self.advance(now_us)
        if not 0 <= port <= 511:
            raise InvalidArgument(f"port {port} is not within 0..511")
        self._local.receive(port, frame)
        return self.take()

    @property
    def now_us(self) -> int:
        """The switch's clock, microseconds since its start."""
        return self._local.now_us

    def advance(self, now_us: int) -> int | None:
        """Sets the clock (microseconds since the start) and reports idle entries; the time of the next one, if any."""
        if now_us < self._local.now_us:
            raise InvalidArgument(f"time goes back from {self._local.now_us} to {now_us} us")
        self._local.now_us = now_us
        due = self._local.tick()
        self._collect()
        return due

    def take(self) -> list[tuple[int, bytes]]:
        """Frames that left since the last call (after packet_out, say)."""
        self._collect()
        frames, self._frames = self._frames, []
        return frames

    def limit_output(self, frames: int = 0xFFFFFFFF, depth: int = 0) -> None:
        """Has queues take only so many frames until the next take(), and report `depth` frames queued."""
        self._local.limit(frames, depth)

    def _collect(self) -> None:
        frames, events = self._local.take()
        self._frames += frames
        self.events += events


class _Reader:
    """Reads a reply from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def take(self, n: int) -> bytes:
        if self._at + n > len(self._data):
            raise Internal(f"reply cut short: expected {n} bytes at {self._at}, it has {len(self._data)}")
        self._at += n
        return self._data[self._at - n : self._at]

    def text(self) -> str:
        (n,) = self.unpack("<H")
        return self.take(n).decode()

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def _op(op: int, body: bytes = b"") -> bytes:
    return struct.pack("<IH", len(body) + 2, op) + body


def _split(data: bytes) -> Iterator[bytes | EngineError]:
    at = 0
    while at < len(data):
        size, status = struct.unpack_from("<IH", data, at)
        body = data[at + 6 : at + 4 + size]
        yield body if status == 0 else ERRORS.get(status, Internal)(body.decode(errors="replace"))
        at += 4 + size


def _find(things: Sequence[_N], kind: str, which: str | int) -> _N:
    found = [t for t in things if t.id == which] if isinstance(which, int) else by_name(things, which)
    if len(found) != 1:
        have = ", ".join(t.name for t in things) or "none"
        raise InvalidArgument(f"{kind} {which} is {'ambiguous' if found else 'unknown'} (the program has {have})")
    return found[0]


def _what(kind: str) -> int:
    try:
        return {"insert": _INSERT, "modify": _MODIFY, "delete": _DELETE}[kind]
    except KeyError:
        raise InvalidArgument(f'"{kind}" is not one of insert, modify, delete') from None


def _identity(table: TableInfo, key: bytes, mask: bytes, priority: int) -> bytes:
    if len(key) != table.key_bytes or len(mask) != table.key_bytes:
        raise InvalidArgument(f"table {table.name}: expected a key and mask of {table.key_bytes} bytes, "
                              f"got {len(key)} and {len(mask)}")
    return struct.pack("<i", priority) + key + mask


def _table_write(what: int, entry: Entry) -> bytes:
    body = struct.pack("<BI", what, entry.table.index)
    body += _identity(entry.table, entry.key, entry.mask, entry.priority)
    if what != _DELETE:
        body += struct.pack("<QQ", entry.cookie, entry.idle_timeout_us) + _do(entry.do)
    return _op(10, body)


def _do(do: Do) -> bytes:
    match do:
        case DoAction(action, params):
            return struct.pack("<BI", 0, action) + params
        case DoMember(member):
            return struct.pack("<BI", 1, member)
        case DoGroup(group):
            return struct.pack("<BI", 2, group)


def _direct(table: TableInfo, entry: Entry | None) -> bytes:
    head = struct.pack("<IB", table.index, entry is None)
    return head if entry is None else head + _identity(table, entry.key, entry.mask, entry.priority)


def _handle(reply: bytes) -> int:
    return int.from_bytes(reply[:8], "little")


def _read_entry(reader: _Reader, table: TableInfo) -> Entry:
    handle, priority, kind, action, size = reader.unpack("<QiBII")
    key, mask = reader.take(table.key_bytes), reader.take(table.key_bytes)
    params = reader.take(size)
    do: Do = (DoAction(action, params), DoMember(action), DoGroup(action))[kind]
    cookie, idle, since, packets, octets = reader.unpack("<5Q")
    return Entry(table, key, mask, do, priority, cookie, idle, handle, since, Count(packets, octets),
                 _read_meter(reader))


def read_idle_entry(event: Event, info: ProgramInfo) -> Entry:
    """The entry that an IDLE event reports."""
    return _read_entry(_Reader(event.data), info.tables[event.id])


def _meter(config: MeterConfig | None) -> bytes:
    if config is None:
        return struct.pack("<B4Q", 0, 0, 0, 0, 0)
    return struct.pack("<B4Q", 1, config.cir, config.cburst, config.pir, config.pburst)


def _read_meter(reader: _Reader) -> MeterConfig | None:
    present, *rates = reader.unpack("<B4Q")
    return MeterConfig(*rates) if present else None


def _pairs(pairs: Sequence[tuple[int, int]]) -> bytes:
    try:
        return struct.pack("<I", len(pairs)) + b"".join(struct.pack("<II", a, b) for a, b in pairs)
    except struct.error as error:
        raise InvalidArgument(f"{pairs}: {error}") from None


def _read_pairs(reader: _Reader) -> tuple[tuple[int, int], ...]:
    (n,) = reader.unpack("<I")
    flat = reader.unpack(f"<{2 * n}I")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _one_id(ident: int | None) -> bytes:
    return struct.pack("<BI", ident is not None, ident or 0)


def _chunks(first: int, n: int, size: int) -> Iterator[tuple[int, int]]:
    if first < 0 or n < 0:
        raise InvalidArgument(f"first {first} and n {n} must not be negative")
    for at in range(first, first + n, size):
        yield at, min(size, first + n - at)


def _read_info(r: _Reader) -> ProgramInfo:
    def keys() -> tuple[KeyField, ...]:
        (n,) = r.unpack("<I")
        return tuple(KeyField(r.text(), *_kind_bits(r)) for _ in range(n))

    def count() -> range:
        return range(r.unpack("<I")[0])

    def named(index: int) -> tuple[int, str, int]:
        return index, r.text(), r.unpack("<I")[0]

    def table(index: int) -> TableInfo:
        index, name, ident = named(index)
        size, flags, profile, counter, meter = r.unpack("<QBiii")
        fields = keys()
        actions = tuple(ActionInfo(i, r.text(), r.unpack("<I")[0], tuple(r.unpack("<I")[0] for _ in count()))
                        for i in count())
        return TableInfo(index, name, ident, size, fields, actions, bool(flags & 1), bool(flags & 2), bool(flags & 4),
                         profile, counter, meter)

    def metering(index: int) -> MeteringInfo:
        index, name, ident = named(index)
        size, unit, owner = r.unpack("<QBi")
        return MeteringInfo(index, name, ident, size, Unit(unit), owner)

    def profile(index: int) -> ProfileInfo:
        index, name, ident = named(index)
        size, selector, group = r.unpack("<QBI")
        return ProfileInfo(index, name, ident, size, bool(selector), group)

    source = r.text()
    packet_in, packet_out, cpu_port = r.unpack("<iiI")
    return ProgramInfo(
        source, packet_in, packet_out, cpu_port,
        tables=tuple(table(i) for i in count()),
        registers=tuple(RegisterInfo(*named(i), *r.unpack("<QI")) for i in count()),
        counters=tuple(metering(i) for i in count()),
        meters=tuple(metering(i) for i in count()),
        profiles=tuple(profile(i) for i in count()),
        digests=tuple(DigestInfo(*named(i), tuple(r.unpack("<I")[0] for _ in count())) for i in count()),
        value_sets=tuple(ValueSetInfo(*named(i), r.unpack("<Q")[0], keys()) for i in count()),
        errors=tuple(r.text() for _ in count()),
    )


def _kind_bits(r: _Reader) -> tuple[MatchKind, int]:
    kind, bits = r.unpack("<BI")
    return MatchKind(kind), bits
