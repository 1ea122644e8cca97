# SPDX-License-Identifier: Apache-2.0
"""Digests (P4Runtime 9.7, 16.3): values from the data plane, collected in lists, each once until acknowledged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from finsy.proto import p4d, p4i, p4r, p4t

from softswitch.engine.byte_form import unpack_fields
from softswitch.engine.errors import AlreadyExists, InvalidArgument, NotFound
from softswitch.engine.program_info import DigestInfo
from softswitch.p4runtime import bytestrings
from softswitch.p4runtime.translation import Types

log = logging.getLogger(__name__)

_LIST_MAX = 10_000
"""Most values in a list."""
KEPT_MAX = 100_000
"""Most values of one digest that wait to be sent or acknowledged; further ones are dropped and counted."""


@dataclass
class _Stream:
    config: p4r.DigestEntry.Config
    waiting: dict[bytes, None] = field(default_factory=dict)  # in order, each once
    unacknowledged: dict[int, tuple[float, frozenset[bytes]]] = field(default_factory=dict)  # by list, oldest first
    sent: set[bytes] = field(default_factory=set)
    """The values of all unacknowledged lists, none of which is in two."""
    lost: int = 0
    since: float = 0.0
    """When the first of those that wait came."""
    next_list: int = 1

    @property
    def limit(self) -> int:
        """Most values of a list."""
        unset = _LIST_MAX if self.config.max_timeout_ns else 1
        return min(self.config.max_list_size or unset, _LIST_MAX)

    def wait(self, now: float) -> float | None:
        """Seconds until its next list is to be sent; None where only further values make it due."""
        if len(self.waiting) >= self.limit:
            return 0.0
        if not self.waiting or not self.config.max_timeout_ns:
            return None
        return max(0.0, self.since + self.config.max_timeout_ns / 1e9 - now)


class Digests:
    """Collects values and passes complete lists to `send`; a thread sends lists whose time-out has expired."""

    def __init__(
        self, send: Callable[[p4r.DigestList], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._changed = threading.Condition()
        self._streams: dict[int, _Stream] = {}
        self._schemas: dict[int, tuple[DigestInfo, p4t.P4DataTypeSpec]] = {}
        self._types = p4t.P4TypeInfo()
        self._translated = Types(self._types, dict, "")
        self._closed = False
        self._thread: threading.Thread | None = None

    def describe(self, infos: dict[int, DigestInfo], p4info: p4i.P4Info, types: Types | None = None) -> None:
        """Sets the types of the digests, and what translates them; must be called before the first event."""
        self._types = p4info.type_info
        self._translated = types or Types(p4info.type_info, dict, "")
        specs = {d.preamble.id: d.type_spec for d in p4info.digests}
        self._schemas = {ident: (info, specs[ident]) for ident, info in infos.items()}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    # ---- configuration -------------------------------------------------------------------------------------

    def configure(self, kind: str, message: p4r.DigestEntry) -> None:
        ident, config = message.digest_id, message.config
        if ident not in self._schemas:
            raise NotFound(f"the program has no digest with id {ident:#010x}")
        given = (config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns)
        if min(given) < 0:
            raise InvalidArgument(f"digest {ident:#010x}: max_timeout_ns, max_list_size, ack_timeout_ns: expected 0 or "
                                  f"more, got {', '.join(map(str, given))}")
        kept = p4r.DigestEntry.Config()
        kept.CopyFrom(config)
        with self._changed:
            if kind == "insert":
                if ident in self._streams:
                    raise AlreadyExists(f"digest {ident:#010x} is configured already")
                self._streams[ident] = _Stream(kept)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="softswitch-digests", daemon=True)
                    self._thread.start()
            elif ident not in self._streams:
                raise NotFound(f"digest {ident:#010x} is not configured")
            elif kind == "modify":
                self._streams[ident].config = kept
                self._changed.notify()  # what waits may be due now
            else:
                del self._streams[ident]

    def configurations(self, ident: int) -> Iterator[p4r.Entity]:
        with self._changed:
            found = {i: s.config for i, s in self._streams.items() if ident in (0, i)}
        if ident and not found:
            raise NotFound(f"digest {ident:#010x} is not configured")
        for digest, config in found.items():
            entity = p4r.Entity()
            entity.digest_entry.digest_id = digest
            entity.digest_entry.config.CopyFrom(config)
            yield entity

    # ---- data plane and controller -------------------------------------------------------------------------

    def receive(self, index: int, data: bytes) -> None:
        """Takes a value from the data plane; `index` is the number of the digest in the engine."""
        ident = next((i for i, (info, _) in self._schemas.items() if info.index == index), None)
        ready = None
        with self._changed:
            stream = self._streams.get(ident or 0)
            if stream is None or ident is None:
                return
            now = self._clock()
            self._forget_old(stream, now)
            if data in stream.waiting or data in stream.sent:
                return
            if len(stream.waiting) + len(stream.sent) >= KEPT_MAX:
                stream.lost += 1
                if stream.lost.bit_count() == 1:
                    log.warning("digest %#010x: its lists are not acknowledged: %d values lost so far", ident,
                                stream.lost)
                return
            if not stream.waiting:
                stream.since = now
            stream.waiting[data] = None
            if len(stream.waiting) >= stream.limit:
                ready = self._take(ident, stream, now)
            elif len(stream.waiting) == 1 and stream.config.max_timeout_ns:
                self._changed.notify()
        if ready is not None:
            self._send(ready)

    def acknowledge(self, ack: p4r.DigestListAck) -> None:
        """Acknowledges a list, whose values may be reported again from then on. Raises NotFound."""
        with self._changed:
            stream = self._streams.get(ack.digest_id)
            if stream is None or ack.list_id not in stream.unacknowledged:
                raise NotFound(f"digest {ack.digest_id:#010x}: list {ack.list_id} is not waiting to be acknowledged")
            stream.sent -= stream.unacknowledged.pop(ack.list_id)[1]

    @staticmethod
    def _forget_old(stream: _Stream, now: float) -> None:
        """Forgets lists that were not acknowledged in time; their values may be reported again."""
        limit = stream.config.ack_timeout_ns / 1e9
        while stream.unacknowledged:
            number, (sent, values) = next(iter(stream.unacknowledged.items()))
            if now - sent < limit:
                return
            stream.sent -= values
            del stream.unacknowledged[number]

    def _take(self, ident: int, stream: _Stream, now: float) -> p4r.DigestList:
        message = p4r.DigestList(digest_id=ident, list_id=stream.next_list, timestamp=time.time_ns())
        info, spec = self._schemas[ident]
        taken = list(islice(stream.waiting, stream.limit))
        for data in taken:
            values = zip(unpack_fields(data, info.field_bits), info.field_bits, strict=True)
            _fill(message.data.add(), spec, values, self._types, self._translated)
        if stream.config.ack_timeout_ns:
            stream.unacknowledged[stream.next_list] = (now, frozenset(taken))
            stream.sent.update(taken)
        stream.next_list += 1
        for data in taken:
            del stream.waiting[data]
        return message

    def _watch(self) -> None:
        while True:
            ready = []
            with self._changed:
                if self._closed:
                    return
                now = self._clock()
                for ident, stream in self._streams.items():
                    while stream.wait(now) == 0.0:
                        ready.append(self._take(ident, stream, now))
                if not ready:
                    waits = [wait for s in self._streams.values() if (wait := s.wait(now)) is not None]
                    self._changed.wait(min(waits, default=None))
            for message in ready:
                self._send(message)


def _fill(
    data: p4d.P4Data, spec: p4t.P4DataTypeSpec, values: Iterator[tuple[int, int]], types: p4t.P4TypeInfo,
    translated: Types,
) -> None:
    """Fills the message with the values of the fields, and their bits, in the structure of the digest's P4 type."""
    kind = spec.WhichOneof("type_spec")
    if kind == "struct":
        data.struct.SetInParent()
        for member in types.structs[spec.struct.name].members:
            _fill(data.struct.members.add(), member.type_spec, values, types, translated)
    elif kind == "header":
        data.header.is_valid = True
        for header_member in types.headers[spec.header.name].members:
            data.header.bitstrings.append(bytestrings.encode(next(values)[0]))
            del header_member
    elif kind == "tuple":
        data.tuple.SetInParent()
        for part in spec.tuple.members:
            _fill(data.tuple.members.add(), part, values, types, translated)
    elif kind == "bool":
        data.bool = next(values)[0] != 0
    elif kind == "serializable_enum":
        data.enum_value = bytestrings.encode(next(values)[0])
    elif kind == "new_type":
        new = types.new_types[spec.new_type.name]
        if new.HasField("original_type"):
            _fill(data, new.original_type, values, types, translated)
        else:
            value, bits = next(values)
            data.bitstring = translated.codec(spec.new_type.name, bits).encode(value)
    else:
        data.bitstring = bytestrings.encode(next(values)[0])
