# SPDX-License-Identifier: Apache-2.0
"""The binary control protocol (runtime/protocol.h): encodes requests, and decodes replies."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache

from softswitch.engine.entities import Count, Do, DoAction, DoGroup, DoMember, Entry, MeterConfig
from softswitch.engine.errors import ERRORS, EngineError, Internal, InvalidArgument
from softswitch.engine.program_info import (
    ActionInfo,
    DigestInfo,
    KeyField,
    MatchKind,
    MeteringInfo,
    ProfileInfo,
    ProgramInfo,
    RegisterInfo,
    TableInfo,
    Unit,
    ValueSetInfo,
)

INSERT, MODIFY, DELETE = 0, 1, 2


class Op(IntEnum):
    """Kinds of requests, with the numbers of protocol.h."""

    INFO = 1
    RESET = 2
    STATS = 3
    PACKET_OUT = 4
    TABLE_WRITE = 10
    TABLE_READ = 11
    DEFAULT_WRITE = 12
    DEFAULT_READ = 13
    TABLE_CLEAR = 14
    DIRECT_COUNTER = 15
    DIRECT_METER = 16
    MEMBER_WRITE = 20
    MEMBER_READ = 21
    GROUP_WRITE = 22
    GROUP_READ = 23
    COUNTER_READ = 30
    COUNTER_WRITE = 31
    METER_READ = 32
    METER_WRITE = 33
    REGISTER_READ = 34
    REGISTER_WRITE = 35
    REGISTER_RESET = 36
    MULTICAST_WRITE = 40
    MULTICAST_READ = 41
    CLONE_WRITE = 42
    CLONE_READ = 43
    VALUE_SET_WRITE = 44
    VALUE_SET_READ = 45
    CRC_WRITE = 46


class Reader:
    """Decodes a reply from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        """The next values, in a layout of the module `struct`."""
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def take(self, n: int) -> bytes:
        """The next ``n`` bytes.  Raises Internal where the reply ends before."""
        if self._at + n > len(self._data):
            raise Internal(f"reply cut short: expected {n} bytes at {self._at}, it has {len(self._data)}")
        self._at += n
        return self._data[self._at - n : self._at]

    def text(self) -> str:
        """The next string: a length in 2 bytes, then UTF-8."""
        (n,) = self.unpack("<H")
        return self.take(n).decode()

    def rest(self) -> bytes:
        """The bytes that have not been read."""
        return self.take(len(self._data) - self._at)


def request(op: Op, body: bytes = b"") -> bytes:
    """Encode one request of a batch: its length, its kind, and its body."""
    return struct.pack("<IH", len(body) + 2, op) + body


def split(data: bytes) -> Iterator[bytes | EngineError]:
    """Yield the replies to a batch in order: the body of each, or the error that it reports."""
    at = 0
    while at < len(data):
        size, status = struct.unpack_from("<IH", data, at)
        body = data[at + 6 : at + 4 + size]
        yield body if status == 0 else ERRORS.get(status, Internal)(body.decode(errors="replace"))
        at += 4 + size


def write_kind(kind: str) -> int:
    """The number of the kind of write "insert", "modify" or "delete".  Raises InvalidArgument."""
    try:
        return {"insert": INSERT, "modify": MODIFY, "delete": DELETE}[kind]
    except KeyError:
        raise InvalidArgument(f'"{kind}" is not one of insert, modify, delete') from None


def identity(table: TableInfo, key: bytes, mask: bytes, priority: int) -> bytes:
    """Encode what identifies an entry of its table.  Raises InvalidArgument for a key or mask of a wrong length."""
    if len(key) != table.key_bytes or len(mask) != table.key_bytes:
        raise InvalidArgument(f"table {table.name}: expected a key and mask of {table.key_bytes} bytes, "
                              f"got {len(key)} and {len(mask)}")
    return struct.pack("<i", priority) + key + mask


def table_write(what: int, entry: Entry) -> bytes:
    """The request that inserts, modifies or deletes an entry; ``what`` is a number of `write_kind`."""
    body = struct.pack("<BI", what, entry.table.index)
    body += identity(entry.table, entry.key, entry.mask, entry.priority)
    if what != DELETE:
        body += struct.pack("<QQ", entry.cookie, entry.idle_timeout_ns) + pack_do(entry.do)
    return request(Op.TABLE_WRITE, body)


def pack_do(do: Do) -> bytes:
    """Encode what an entry does: an action with its data, or a member or group of the table's profile."""
    match do:
        case DoAction(action, params):
            return struct.pack("<BI", 0, action) + params
        case DoMember(member):
            return struct.pack("<BI", 1, member)
        case DoGroup(group):
            return struct.pack("<BI", 2, group)


def direct(table: TableInfo, entry: Entry | None) -> bytes:
    """Encode which direct cell is meant: that of an entry, or (None) that of the default action."""
    head = struct.pack("<IB", table.index, entry is None)
    return head if entry is None else head + identity(table, entry.key, entry.mask, entry.priority)


def read_handle(reply: bytes) -> int:
    """The number that the engine gave an entry."""
    return int.from_bytes(reply[:8], "little")


def read_entry(reader: Reader, table: TableInfo) -> Entry:
    """Decode an entry of this table with its present counter and meter."""
    handle, priority, kind, action, size = reader.unpack("<QiBII")
    key, mask = reader.take(table.key_bytes), reader.take(table.key_bytes)
    params = reader.take(size)
    do: Do = (DoAction(action, params), DoMember(action), DoGroup(action))[kind]
    cookie, idle, since, packets, octets = reader.unpack("<5Q")
    return Entry(table, key, mask, do, priority, cookie, idle, handle, since, Count(packets, octets),
                 read_meter(reader))


def pack_meter(config: MeterConfig | None) -> bytes:
    """Encode the configuration of a meter; None: every packet is green."""
    if config is None:
        return struct.pack("<B4Q", 0, 0, 0, 0, 0)
    return struct.pack("<B4Q", 1 + config.slow, config.cir, config.cburst, config.pir, config.pburst)


def read_meter(reader: Reader) -> MeterConfig | None:
    """Decode what `pack_meter` encodes."""
    present, cir, cburst, pir, pburst = reader.unpack("<B4Q")
    return MeterConfig(cir, cburst, pir, pburst, slow=present == 2) if present else None


def pack_pairs(pairs: Sequence[tuple[int, int]]) -> bytes:
    """Encode pairs of numbers below 2^32: replicas, or members with weights.  Raises InvalidArgument."""
    try:
        return struct.pack("<I", len(pairs)) + b"".join(struct.pack("<II", a, b) for a, b in pairs)
    except struct.error as error:
        raise InvalidArgument(f"{pairs}: {error}") from None


def read_pairs(reader: Reader) -> tuple[tuple[int, int], ...]:
    """Decode what `pack_pairs` encodes."""
    (n,) = reader.unpack("<I")
    flat = reader.unpack(f"<{2 * n}I")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def one_id(ident: int | None) -> bytes:
    """Encode which member, group or session is asked for; None: all of them."""
    return struct.pack("<BI", ident is not None, ident or 0)


def chunks(first: int, n: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of ranges of at most ``size`` cells.  Raises InvalidArgument for negative numbers."""
    if first < 0 or n < 0:
        raise InvalidArgument(f"first {first} and n {n} must not be negative")
    for at in range(first, first + n, size):
        yield at, min(size, first + n - at)


@lru_cache(maxsize=64)
def read_info(described: bytes) -> ProgramInfo:
    """Decode the description of the loaded program: its tables, externs and errors.  Switches with one program share
    it."""
    r = Reader(described)

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


def _kind_bits(r: Reader) -> tuple[MatchKind, int]:
    kind, bits = r.unpack("<BI")
    return MatchKind(kind), bits
