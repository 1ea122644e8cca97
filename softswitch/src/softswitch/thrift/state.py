# SPDX-License-Identifier: Apache-2.0
"""Counters, meters, registers and parser value sets over Thrift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from softswitch.engine.entities import Count
from softswitch.engine.errors import OutOfRange, ResourceExhausted
from softswitch.engine.program_info import MeteringInfo, Named, RegisterInfo, ValueSetInfo, pack_key
from softswitch.p4runtime.context import Context
from softswitch.thrift.entry_structs import count_of, counter_value, meter_config, meter_rates
from softswitch.thrift.switch import STANDARD, Switch

CELLS_MAX = 1 << 20
"""Most cells of a register in one answer."""

_N = TypeVar("_N", bound=Named)


def _fail_counter(error: str) -> NoReturn:
    raise STANDARD.InvalidCounterOperation(getattr(STANDARD.CounterOperationErrorCode, error))


def _fail_meter(error: str) -> NoReturn:
    raise STANDARD.InvalidMeterOperation(getattr(STANDARD.MeterOperationErrorCode, error))


def _fail_register(error: str) -> NoReturn:
    raise STANDARD.InvalidRegisterOperation(getattr(STANDARD.RegisterOperationErrorCode, error))


def _fail_value_set(error: str) -> NoReturn:
    raise STANDARD.InvalidParseVSetOperation(getattr(STANDARD.ParseVSetOperationErrorCode, error))


def _named(things: Sequence[_N], name: str) -> _N | None:
    return next((thing for thing in things if thing.name == name), None)


def _signed(value: int) -> int:
    """The lowest 64 bits, as the signed number that Thrift carries."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


class State:
    """The methods bm_counter_*, bm_meter_*, bm_register_* and bm_parse_vset_*."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    # ---- counters --------------------------------------------------------------------------------------------

    def _counter(self, name: str) -> tuple[Context, MeteringInfo]:
        context = self._switch.context()
        counter = _named([c for c in context.engine.info.counters if c.table < 0], name)
        return (context, counter) if counter is not None else _fail_counter("INVALID_COUNTER_NAME")

    def bm_counter_read(self, cxt_id: int, counter_name: str, index: int) -> Any:
        context, counter = self._counter(counter_name)
        if not 0 <= index < counter.size:
            _fail_counter("INVALID_INDEX")
        return counter_value(context.engine.read_counter(counter, index, 1)[0])

    def bm_counter_reset_all(self, cxt_id: int, counter_name: str) -> None:
        context, counter = self._counter(counter_name)
        for at in range(0, counter.size, 65536):
            context.engine.write_counter(counter, at, [Count()] * min(65536, counter.size - at))

    def bm_counter_write(self, cxt_id: int, counter_name: str, index: int, value: Any) -> None:
        context, counter = self._counter(counter_name)
        if not 0 <= index < counter.size:
            _fail_counter("INVALID_INDEX")
        context.engine.write_counter(counter, index, [count_of(value)])

    # ---- meters ----------------------------------------------------------------------------------------------

    def _meter(self, name: str) -> tuple[Context, MeteringInfo]:
        context = self._switch.context()
        meter = _named([m for m in context.engine.info.meters if m.table < 0], name)
        return (context, meter) if meter is not None else _fail_meter("INVALID_METER_NAME")

    def bm_meter_array_set_rates(self, cxt_id: int, meter_array_name: str, rates: Any) -> None:
        """Sets the rates of a meter array. For a direct meter, it sets those of all present entries of its table."""
        context = self._switch.context()
        direct = _named([m for m in context.engine.info.meters if m.table >= 0], meter_array_name)
        if direct is not None:
            config = meter_config(rates, _fail_meter)
            table = context.engine.info.tables[direct.table]
            for entry in list(context.engine.entries(table)):
                context.engine.write_direct_meter(table, entry, config)
            return
        context, meter = self._meter(meter_array_name)
        config = meter_config(rates, _fail_meter)
        for at in range(0, meter.size, 65536):
            context.engine.write_meter(meter, at, [config] * min(65536, meter.size - at))

    def bm_meter_set_rates(self, cxt_id: int, meter_array_name: str, index: int, rates: Any) -> None:
        context, meter = self._meter(meter_array_name)
        if not 0 <= index < meter.size:
            _fail_meter("INVALID_INDEX")
        context.engine.write_meter(meter, index, [meter_config(rates, _fail_meter)])

    def bm_meter_get_rates(self, cxt_id: int, meter_array_name: str, index: int) -> list[Any]:
        context, meter = self._meter(meter_array_name)
        if not 0 <= index < meter.size:
            _fail_meter("INVALID_INDEX")
        return meter_rates(context.engine.read_meter(meter, index, 1)[0])

    # ---- registers -------------------------------------------------------------------------------------------

    def _register(self, name: str) -> tuple[Context, RegisterInfo]:
        context = self._switch.context()
        register = _named(context.engine.info.registers, name)
        return (context, register) if register is not None else _fail_register("INVALID_REGISTER_NAME")

    def bm_register_read(self, cxt_id: int, register_array_name: str, idx: int) -> int:
        context, register = self._register(register_array_name)
        if not 0 <= idx < register.size:
            _fail_register("INVALID_INDEX")
        return _signed(context.engine.read_register(register, idx, 1)[0])

    def bm_register_read_all(self, cxt_id: int, register_array_name: str) -> list[int]:
        context, register = self._register(register_array_name)
        if register.size > CELLS_MAX:
            raise ResourceExhausted(f"register {register.name} has {register.size} cells: expected at most {CELLS_MAX} "
                                    "in an answer; read them by index")
        return [_signed(cell) for cell in context.engine.read_register(register)]

    def bm_register_write(self, cxt_id: int, register_array_name: str, index: int, value: int) -> None:
        self.bm_register_write_range(cxt_id, register_array_name, index, index + 1, value)

    def bm_register_write_range(self, cxt_id: int, register_array_name: str, start_index: int, end_index: int,
                                value: int) -> None:
        context, register = self._register(register_array_name)
        if not 0 <= start_index <= end_index <= register.size:
            _fail_register("INVALID_INDEX")
        cell = value & ((1 << register.bits) - 1)
        for at in range(start_index, end_index, 65536):
            context.engine.write_register(register, at, [cell] * min(65536, end_index - at))

    def bm_register_reset(self, cxt_id: int, register_array_name: str) -> None:
        context, register = self._register(register_array_name)
        context.engine.reset_register(register)

    # ---- parser value sets -----------------------------------------------------------------------------------

    def _value_set(self, name: str) -> tuple[Context, ValueSetInfo]:
        context = self._switch.context()
        value_set = _named(context.engine.info.value_sets, name)
        return (context, value_set) if value_set is not None else _fail_value_set("INVALID_PARSE_VSET_NAME")

    def _member(self, value_set: ValueSetInfo, value: bytes | None) -> tuple[bytes, bytes]:
        """Key and mask of a value, in which BMv2 has the fields one after another without gaps."""
        total = sum(key.bits for key in value_set.keys)
        if value is None or len(value) != (total + 7) // 8:
            raise OutOfRange(f"value set {value_set.name}: expected {(total + 7) // 8} bytes, got "
                             f"{0 if value is None else len(value)}")
        number, fields = int.from_bytes(value, "big"), []
        for key in reversed(value_set.keys):
            fields.append((number & key.ones, key.ones))
            number >>= key.bits
        return pack_key(value_set.keys, fields[::-1], f"value set {value_set.name}")

    def _value(self, value_set: ValueSetInfo, key: bytes) -> bytes:
        at, number, total = 0, 0, 0
        for field in value_set.keys:
            size = (field.bits + 7) // 8
            number = number << field.bits | int.from_bytes(key[at : at + size], "big")
            at, total = at + size, total + field.bits
        return number.to_bytes((total + 7) // 8, "big")

    def bm_parse_vset_add(self, cxt_id: int, parse_vset_name: str, value: bytes) -> None:
        context, value_set = self._value_set(parse_vset_name)
        members, new = context.engine.read_value_set(value_set), self._member(value_set, value)
        if new not in members:
            context.engine.write_value_set(value_set, [*members, new])

    def bm_parse_vset_remove(self, cxt_id: int, parse_vset_name: str, value: bytes) -> None:
        context, value_set = self._value_set(parse_vset_name)
        members, old = context.engine.read_value_set(value_set), self._member(value_set, value)
        if old in members:
            context.engine.write_value_set(value_set, [member for member in members if member != old])

    def bm_parse_vset_get(self, cxt_id: int, parse_vset_name: str) -> list[bytes]:
        context, value_set = self._value_set(parse_vset_name)
        return [self._value(value_set, key) for key, _ in context.engine.read_value_set(value_set)]

    def bm_parse_vset_clear(self, cxt_id: int, parse_vset_name: str) -> None:
        context, value_set = self._value_set(parse_vset_name)
        context.engine.write_value_set(value_set, [])
