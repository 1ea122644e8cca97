# SPDX-License-Identifier: Apache-2.0
"""Indexed state: counters, meters, registers (P4Runtime 9.3, 9.4, 9.10). Registers are readable here, unlike BMv2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from finsy.proto import p4r

from softswitch.engine.errors import InvalidArgument, OutOfRange
from softswitch.engine.program_info import MeteringInfo, RegisterInfo
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.metering import counted, decode_count, decode_meter, encode_count, encode_meter

_A = TypeVar("_A", MeteringInfo, RegisterInfo)


def _cells(array: _A, message: p4r.CounterEntry | p4r.MeterEntry | p4r.RegisterEntry) -> range:
    """The cells that a message addresses: one, or all where it has no index."""
    if not message.HasField("index"):
        return range(array.size)
    index = message.index.index
    if not 0 <= index < array.size:
        raise OutOfRange(f"{array.name}[{index}]: the index must be within 0..{array.size - 1}")
    return range(index, index + 1)


def _only_modify(kind: str, what: str) -> None:
    if kind != "modify":
        raise InvalidArgument(f"{what} can be modified, not {kind}ed: its cells are always there")


def _pages(cells: range, page: int = 1024) -> Iterator[range]:
    for at in range(cells.start, cells.stop, page):
        yield range(at, min(at + page, cells.stop))


def _asked(one: _A | None, every: Sequence[_A]) -> Sequence[_A]:
    return every if one is None else [one]


def write_counter(context: Context, kind: str, message: p4r.CounterEntry) -> None:
    """Sets one cell of a counter, or all.  Raises InvalidArgument, OutOfRange."""
    counter = context.schema.counter(message.counter_id)
    _only_modify(kind, f"counter {counter.name}")
    count = decode_count(message.data, counter.name)
    for page in _pages(_cells(counter, message)):
        now = context.engine.read_counter(counter, page.start, len(page))
        context.engine.write_counter(counter, page.start, [counted(counter, count, cell) for cell in now])


def read_counters(context: Context, asked: p4r.CounterEntry) -> Iterator[p4r.Entity]:
    """Reads the requested cells of counters.  Raises InvalidArgument, OutOfRange."""
    one = context.schema.counter(asked.counter_id) if asked.counter_id else None
    for counter in _asked(one, list(context.schema.counters.values())):
        for page in _pages(_cells(counter, asked)):
            for index, count in zip(page, context.engine.read_counter(counter, page.start, len(page)), strict=True):
                entity = p4r.Entity()
                entity.counter_entry.counter_id = counter.id
                entity.counter_entry.index.index = index
                encode_count(count, entity.counter_entry.data)
                yield entity


def write_meter(context: Context, kind: str, message: p4r.MeterEntry) -> None:
    """Configures one cell, or all; no configuration: all packets are green.  Raises InvalidArgument, OutOfRange."""
    meter = context.schema.meter(message.meter_id)
    _only_modify(kind, f"meter {meter.name}")
    config = decode_meter(message.config, meter.name) if message.HasField("config") else None
    for page in _pages(_cells(meter, message)):
        context.engine.write_meter(meter, page.start, [config] * len(page))


def read_meters(context: Context, asked: p4r.MeterEntry) -> Iterator[p4r.Entity]:
    """Reads the requested cells of meters.  Raises InvalidArgument, OutOfRange."""
    one = context.schema.meter(asked.meter_id) if asked.meter_id else None
    for meter in _asked(one, list(context.schema.meters.values())):
        for page in _pages(_cells(meter, asked)):
            for index, config in zip(page, context.engine.read_meter(meter, page.start, len(page)), strict=True):
                entity = p4r.Entity()
                entity.meter_entry.meter_id = meter.id
                entity.meter_entry.index.index = index
                if config is not None:
                    encode_meter(config, entity.meter_entry.config)
                yield entity


def write_register(context: Context, kind: str, message: p4r.RegisterEntry) -> None:
    """Sets one cell of a register, or all.  Raises InvalidArgument, OutOfRange."""
    register = context.schema.register(message.register_id)
    _only_modify(kind, f"register {register.name}")
    if message.data.WhichOneof("data") != "bitstring":
        raise InvalidArgument(
            f"register {register.name}: expected a bitstring of {register.bits} bits, "
            f"got {message.data.WhichOneof('data') or 'nothing'}"
        )
    codec = context.schema.register_codec(register)
    value = codec.decode(message.data.bitstring, f"register {register.name}")
    for page in _pages(_cells(register, message)):
        context.engine.write_register(register, page.start, [value] * len(page))


def read_registers(context: Context, asked: p4r.RegisterEntry) -> Iterator[p4r.Entity]:
    """Reads the requested cells of registers.  Raises InvalidArgument, OutOfRange."""
    one = context.schema.register(asked.register_id) if asked.register_id else None
    for register in _asked(one, list(context.schema.registers.values())):
        codec = context.schema.register_codec(register)
        for page in _pages(_cells(register, asked)):
            for index, value in zip(page, context.engine.read_register(register, page.start, len(page)), strict=True):
                entity = p4r.Entity()
                entity.register_entry.register_id = register.id
                entity.register_entry.index.index = index
                entity.register_entry.data.bitstring = codec.encode(value)
                yield entity
