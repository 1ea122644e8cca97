# SPDX-License-Identifier: Apache-2.0
"""The switch engine as Python sees it: every operation of the control plane on one running switch program.

    engine = Engine.over(sock)                       # a switch process behind a connected stream socket
    table = engine.table("dmac")
    key, mask = table.pack_key([(0x00AA00000001, 0xFFFFFFFFFFFF)])
    forward = table.action("forward")
    engine.insert(Entry(table, key, mask, DoAction(forward.index, forward.pack([2]))))

`softswitch.engine.local.LocalEngine` runs the switch inside this process instead. Calls raise subclasses of EngineError
(softswitch.engine.errors). Several threads may use one engine; the switch serves one request after another.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from softswitch.engine.byte_form import width
from softswitch.engine.channel import BATCH, Channel
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
    table_write,
    write_kind,
)
from softswitch.engine.entities import (
    CloneSession,
    Count,
    Default,
    DoAction,
    Entry,
    Event,
    Group,
    Member,
    MeterConfig,
    Multicast,
    Stats,
)
from softswitch.engine.errors import EngineError, InvalidArgument
from softswitch.engine.program_info import (
    DigestInfo,
    MeteringInfo,
    ProfileInfo,
    ProgramInfo,
    RegisterInfo,
    TableInfo,
    ValueSetInfo,
    find,
)
from softswitch.engine.transport import OverSocket, Transport

_PAGE = 1024
"""Most cells of a counter or meter that one request reads or writes."""


class Engine:
    """The control plane of one running switch program."""

    def __init__(self, transport: Transport) -> None:
        self._channel = Channel(transport)
        try:
            self.info = read_info(self._channel.one(request(Op.INFO)))
        except BaseException:
            self._channel.close()
            raise

    @classmethod
    def over(
        cls,
        sock: socket.socket,
        *,
        on_event: Callable[[Event], None] | None = None,
        on_end: Callable[[str], None] | None = None,
        timeout: float = 10.0,
    ) -> Engine:
        """Connects to a switch process by a connected stream socket, which the engine owns from then on.

        on_event runs on the engine's reader thread and must not call the engine. So does on_end(reason), once, when
        the switch ends by itself. Every call returns or raises within `timeout` seconds.
        """
        return cls(OverSocket(sock, on_event=on_event, on_end=on_end, timeout=timeout))

    def close(self) -> None:
        """Closes the connection, or frees the switch in process."""
        self._channel.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- names ---------------------------------------------------------------------------------------------

    def table(self, which: str | int) -> TableInfo:
        """The table of this control-plane name or p4info id. Raises InvalidArgument, as the following methods do."""
        return find(self.info.tables, "table", which)

    def register(self, which: str | int) -> RegisterInfo:
        """The register of this name or id."""
        return find(self.info.registers, "register", which)

    def counter(self, which: str | int) -> MeteringInfo:
        """The indirect or direct counter of this name or id."""
        return find(self.info.counters, "counter", which)

    def meter(self, which: str | int) -> MeteringInfo:
        """The indirect or direct meter of this name or id."""
        return find(self.info.meters, "meter", which)

    def profile(self, which: str | int) -> ProfileInfo:
        """The action profile or selector of this name or id."""
        return find(self.info.profiles, "action profile", which)

    def digest(self, which: str | int) -> DigestInfo:
        """The digest of this name or id."""
        return find(self.info.digests, "digest", which)

    def value_set(self, which: str | int) -> ValueSetInfo:
        """The parser value set of this name or id."""
        return find(self.info.value_sets, "value set", which)

    # ---- tables --------------------------------------------------------------------------------------------

    def insert(self, entry: Entry) -> int:
        """Adds an entry and returns its handle.

        Raises AlreadyExists, ResourceExhausted, NotFound (member or group), PermissionDenied, InvalidArgument.
        """
        return read_handle(self._channel.one(table_write(INSERT, entry)))

    def modify(self, entry: Entry) -> int:
        """Replaces action, cookie and timeout of the entry with this key, mask and priority."""
        return read_handle(self._channel.one(table_write(MODIFY, entry)))

    def delete(self, entry: Entry) -> None:
        """Removes the entry with this key, mask and priority."""
        self._channel.one(table_write(DELETE, entry))

    def write_entries(self, kind: str, entries: Sequence[Entry]) -> list[int | EngineError]:
        """Writes entries at once; ``kind`` is "insert", "modify" or "delete". Returns a handle or an error for each."""
        what = write_kind(kind)
        replies = self._channel.many([table_write(what, entry) for entry in entries])
        return [reply if isinstance(reply, EngineError) else read_handle(reply) for reply in replies]

    def entries(self, table: TableInfo) -> Iterator[Entry]:
        """Reads all entries of a table page by page, const ones included."""
        for reader in self._channel.pages(Op.TABLE_READ, struct.pack("<I", table.index), b"\0"):
            yield read_entry(reader, table)

    def entry(self, table: TableInfo, key: bytes, mask: bytes, priority: int = 0) -> Entry:
        """Reads one entry. Raises NotFound."""
        tail = b"\1" + struct.pack("<i", priority) + key + mask
        pages = self._channel.pages(Op.TABLE_READ, struct.pack("<I", table.index), tail)
        (found,) = [read_entry(reader, table) for reader in pages]
        return found

    def entry_at(self, table: TableInfo, slot: int) -> Entry:
        """Reads the entry whose handle has `slot` as its lower 32 bits. Raises NotFound."""
        reader = Reader(self._channel.one(request(Op.TABLE_READ, struct.pack("<IQB", table.index, slot, 2))))
        reader.unpack("<QI")
        return read_entry(reader, table)

    def clear(self, table: TableInfo) -> None:
        """Removes every entry. Raises PermissionDenied where they are const."""
        self._channel.one(request(Op.TABLE_CLEAR, struct.pack("<I", table.index)))

    def default(self, table: TableInfo) -> Default:
        """Reads the default action of a table."""
        reader = Reader(self._channel.one(request(Op.DEFAULT_READ, struct.pack("<I", table.index))))
        action, packets, octets = reader.unpack("<IQQ")
        meter = read_meter(reader)
        return Default(DoAction(action, reader.rest()), Count(packets, octets), meter)

    def set_default(self, table: TableInfo, do: DoAction | None) -> None:
        """Sets the default action; None: that of the program. Raises PermissionDenied where it is const."""
        body = b"\0" if do is None else struct.pack("<BI", 1, do.action) + do.params
        self._channel.one(request(Op.DEFAULT_WRITE, struct.pack("<I", table.index) + body))

    def write_direct_counter(self, table: TableInfo, entry: Entry | None, count: Count) -> None:
        """Sets the direct counter of an entry, or (None) of the default action."""
        cell = struct.pack("<QQ", count.packets, count.bytes)
        self._channel.one(request(Op.DIRECT_COUNTER, direct(table, entry) + cell))

    def write_direct_meter(self, table: TableInfo, entry: Entry | None, config: MeterConfig | None) -> None:
        """Configures the direct meter of an entry, or (entry None) of the default action; config None: unmetered."""
        self._channel.one(request(Op.DIRECT_METER, direct(table, entry) + pack_meter(config)))

    # ---- action profiles -----------------------------------------------------------------------------------

    def write_member(self, kind: str, profile: ProfileInfo, member: int, table: TableInfo | None = None,
                     do: DoAction | None = None) -> None:
        """Inserts, modifies or deletes a member; do.action is an index in `table`, which uses the profile."""
        body = struct.pack("<BII", write_kind(kind), profile.index, member)
        if table is not None and do is not None:
            body += struct.pack("<II", table.index, do.action) + do.params
        self._channel.one(request(Op.MEMBER_WRITE, body))

    def members(self, profile: ProfileInfo, member: int | None = None) -> list[Member]:
        """Reads all members of a profile, or one. Raises NotFound."""
        found = []
        for reader in self._channel.pages(Op.MEMBER_READ, struct.pack("<I", profile.index), one_id(member)):
            ident, action_id, size = reader.unpack("<III")
            found.append(Member(ident, action_id, reader.take(size)))
        return found

    def write_group(self, kind: str, profile: ProfileInfo, group: Group) -> None:
        """Inserts, modifies or deletes a group of an action selector."""
        body = struct.pack("<BII", write_kind(kind), profile.index, group.group)
        if kind != "delete":
            body += struct.pack("<I", group.max_size) + pack_pairs(group.members)
        self._channel.one(request(Op.GROUP_WRITE, body))

    def groups(self, profile: ProfileInfo, group: int | None = None) -> list[Group]:
        """Reads all groups of a selector, or one. Raises NotFound."""
        found = []
        for reader in self._channel.pages(Op.GROUP_READ, struct.pack("<I", profile.index), one_id(group)):
            ident, max_size = reader.unpack("<II")
            found.append(Group(ident, read_pairs(reader), max_size))
        return found

    # ---- counters, meters, registers -----------------------------------------------------------------------

    def read_counter(self, counter: MeteringInfo, first: int = 0, n: int | None = None) -> list[Count]:
        """Reads n cells (default: the rest) from `first` on. Raises OutOfRange."""
        cells: list[Count] = []
        for at, size in chunks(first, counter.size - first if n is None else n, _PAGE):
            data = self._channel.one(request(Op.COUNTER_READ, struct.pack("<IQI", counter.index, at, size)))
            cells += [Count(*pair) for pair in struct.iter_unpack("<QQ", data)]
        return cells

    def write_counter(self, counter: MeteringInfo, first: int, cells: Sequence[Count]) -> None:
        """Sets cells from `first` on."""
        for at, size in chunks(0, len(cells), _PAGE):
            body = b"".join(struct.pack("<QQ", c.packets, c.bytes) for c in cells[at : at + size])
            self._channel.one(request(Op.COUNTER_WRITE, struct.pack("<IQI", counter.index, first + at, size) + body))

    def read_meter(self, meter: MeteringInfo, first: int = 0, n: int | None = None) -> list[MeterConfig | None]:
        """Reads the configurations of n cells (default: the rest) from `first` on; None: every packet is green."""
        cells: list[MeterConfig | None] = []
        for at, size in chunks(first, meter.size - first if n is None else n, _PAGE):
            reader = Reader(self._channel.one(request(Op.METER_READ, struct.pack("<IQI", meter.index, at, size))))
            cells += [read_meter(reader) for _ in range(size)]
        return cells

    def write_meter(self, meter: MeteringInfo, first: int, cells: Sequence[MeterConfig | None]) -> None:
        """Configures cells from `first` on."""
        for at, size in chunks(0, len(cells), _PAGE):
            body = b"".join(pack_meter(cell) for cell in cells[at : at + size])
            self._channel.one(request(Op.METER_WRITE, struct.pack("<IQI", meter.index, first + at, size) + body))

    def read_register(self, register: RegisterInfo, first: int = 0, n: int | None = None) -> list[int]:
        """Reads n cells (default: the rest) from `first` on, as unsigned integers."""
        size = width(register.bits)
        cells: list[int] = []
        page = max(1, BATCH // size)
        for at, count in chunks(first, register.size - first if n is None else n, page):
            data = self._channel.one(request(Op.REGISTER_READ, struct.pack("<IQI", register.index, at, count)))
            cells += [int.from_bytes(data[i : i + size], "big") for i in range(0, len(data), size)]
        return cells

    def write_register(self, register: RegisterInfo, first: int, cells: Sequence[int]) -> None:
        """Sets cells from `first` on."""
        for cell in cells:
            if cell < 0 or cell.bit_length() > register.bits:
                raise InvalidArgument(f"register {register.name}: {cell:#x} does not fit bit<{register.bits}>")
        size = width(register.bits)
        for at, count in chunks(0, len(cells), max(1, BATCH // size)):
            body = b"".join(cell.to_bytes(size, "big") for cell in cells[at : at + count])
            self._channel.one(request(Op.REGISTER_WRITE, struct.pack("<IQI", register.index, first + at, count) + body))

    def reset_register(self, register: RegisterInfo) -> None:
        """Sets every cell to 0."""
        self._channel.one(request(Op.REGISTER_RESET, struct.pack("<I", register.index)))

    # ---- replication ---------------------------------------------------------------------------------------

    def write_multicast(self, kind: str, group: Multicast) -> None:
        """Inserts, modifies or deletes a multicast group; ids begin at 1."""
        body = struct.pack("<BI", write_kind(kind), group.group)
        self._channel.one(request(Op.MULTICAST_WRITE, body + (b"" if kind == "delete" else pack_pairs(group.replicas))))

    def multicasts(self, group: int | None = None) -> list[Multicast]:
        """Reads all multicast groups, or one. Raises NotFound."""
        found = []
        for reader in self._channel.pages(Op.MULTICAST_READ, b"", one_id(group)):
            (ident,) = reader.unpack("<I")
            found.append(Multicast(ident, read_pairs(reader)))
        return found

    def write_clone_session(self, kind: str, session: CloneSession) -> None:
        """Inserts, modifies or deletes a clone session."""
        body = struct.pack("<BI", write_kind(kind), session.session)
        if kind != "delete":
            body += struct.pack("<II", session.truncate_to, session.group) + pack_pairs(session.replicas)
        self._channel.one(request(Op.CLONE_WRITE, body))

    def clone_sessions(self, session: int | None = None) -> list[CloneSession]:
        """Reads all clone sessions, or one. Raises NotFound."""
        found = []
        for reader in self._channel.pages(Op.CLONE_READ, b"", one_id(session)):
            ident, truncate_to, group = reader.unpack("<III")
            found.append(CloneSession(ident, read_pairs(reader), truncate_to, group))
        return found

    def write_value_set(self, value_set: ValueSetInfo, members: Sequence[tuple[bytes, bytes]]) -> None:
        """Replaces all members; each is (key, mask) in byte form (program_info.pack_key(value_set.keys, ...))."""
        body = struct.pack("<II", value_set.index, len(members)) + b"".join(key + mask for key, mask in members)
        self._channel.one(request(Op.VALUE_SET_WRITE, body))

    def read_value_set(self, value_set: ValueSetInfo) -> list[tuple[bytes, bytes]]:
        """Reads all members as (key, mask) in byte form."""
        size = sum(width(key.bits) for key in value_set.keys)
        pages = self._channel.pages(Op.VALUE_SET_READ, struct.pack("<I", value_set.index), b"")
        return [(reader.take(size), reader.take(size)) for reader in pages]

    # ---- hashes --------------------------------------------------------------------------------------------

    def set_crc(self, number: int, bits: int, polynomial: int, initial: int, final_xor: int, *, data_reflected: bool,
                remainder_reflected: bool) -> None:
        """Sets the parameters of a custom CRC of 16 or 32 bits; the compiler's JSON has its number. Before, it is the
        plain CRC of these bits."""
        flags = data_reflected | remainder_reflected << 1
        body = struct.pack("<IBIIIB", number, bits, polynomial, initial, final_xor, flags)
        self._channel.one(request(Op.CRC_WRITE, body))

    # ---- the switch ----------------------------------------------------------------------------------------

    def packet_out(self, frame: bytes) -> None:
        """Sends a frame, its packet_out header first, into the pipeline from the CPU port."""
        self._channel.one(request(Op.PACKET_OUT, frame))

    def reset(self) -> None:
        """Restores the state of a new switch: entries, defaults, groups, sessions, externs, statistics.

        Parameters of custom CRCs stay, as in BMv2.
        """
        self._channel.one(request(Op.RESET))

    def stats(self) -> Stats:
        """Reads the statistics of frames."""
        return Stats(*struct.unpack("<13Q", self._channel.one(request(Op.STATS))))


def read_idle_entry(event: Event, info: ProgramInfo) -> Entry:
    """Decodes the entry that an IDLE event reports."""
    return read_entry(Reader(event.data), info.tables[event.id])
