# SPDX-License-Identifier: Apache-2.0
"""Entries, match keys, actions, meters and counters as BMv2's Thrift structs, both ways.

BMv2's handle of an entry is 32 bits: its place in the table (24 bits), and how often the place was used before (8
bits). Here the least priority wins where P4Runtime's greatest does; one is TOP_PRIORITY minus the other, as in BMv2.
"""

from collections.abc import Sequence
from typing import Any

from softswitch.engine.entities import Count, Do, DoAction, DoMember, Entry, MeterConfig
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.program_info import ActionInfo, KeyField, MatchKind, TableInfo
from softswitch.p4runtime.context import Context
from softswitch.thrift.switch import STANDARD, fail_table

TOP_PRIORITY = 2**31 - 1
_PLACE_BITS = 24
_TYPE = STANDARD.BmMatchParamType


def handle_of(entry: Entry) -> int:
    """BMv2's handle of an entry, as the signed number that Thrift carries."""
    unsigned = (entry.handle >> 32 & 0xFF) << _PLACE_BITS | entry.handle & 0xFFFFFF
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


def _bytes_of(value: int, bits: int) -> bytes:
    return value.to_bytes((bits + 7) // 8, "big")


def shortest(value: int) -> bytes:
    """A value in as few bytes as hold it, at least one: so BMv2 tells action parameters."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def find_table(context: Context, name: str) -> TableInfo:
    """The table of exactly this name."""
    found = next((t for t in context.engine.info.tables if t.name == name), None)
    return found if found is not None else fail_table("INVALID_TABLE_NAME")


def find_action(table: TableInfo, name: str) -> ActionInfo:
    """The action of exactly this name."""
    found = next((a for a in table.actions if a.name == name), None)
    return found if found is not None else fail_table("INVALID_ACTION_NAME")


def pack_params(action: ActionInfo, data: Sequence[bytes] | None) -> bytes:
    """Action parameters in byte form; bits above a parameter's width are cut off, as BMv2 does when it uses them."""
    given = data or []
    if len(given) != len(action.param_bits):
        fail_table("BAD_ACTION_DATA")
    return action.pack([int.from_bytes(one, "big") & ((1 << bits) - 1)
                        for one, bits in zip(given, action.param_bits, strict=True)])


def _value(data: bytes | None, key: KeyField) -> int:
    if data is None or len(data) != (key.bits + 7) // 8:
        fail_table("BAD_MATCH_KEY")
    return int.from_bytes(data, "big") & key.ones


def _field(key: KeyField, param: Any) -> tuple[int, int]:
    """(value, mask) of one field of a match key."""
    match key.match:
        case MatchKind.EXACT:
            if param.type == _TYPE.VALID and param.valid is not None and key.bits == 1:
                return int(bool(param.valid.key)), key.ones
            if param.type == _TYPE.EXACT and param.exact is not None:
                return _value(param.exact.key, key), key.ones
        case MatchKind.LPM:
            if param.type == _TYPE.LPM and param.lpm is not None:
                length = param.lpm.prefix_length
                if length is not None and 0 <= length <= key.bits:
                    return key.prefix(_value(param.lpm.key, key), length)
        case MatchKind.TERNARY | MatchKind.OPTIONAL:
            if param.type == _TYPE.TERNARY and param.ternary is not None:
                mask = _value(param.ternary.mask, key)
                if key.match is MatchKind.TERNARY or mask in (0, key.ones):
                    return _value(param.ternary.key, key) & mask, mask
        case MatchKind.RANGE:
            if param.type == _TYPE.RANGE and param.range is not None:
                low, high = _value(param.range.start, key), _value(param.range.end_, key)
                if low <= high:
                    return low, high
    return fail_table("BAD_MATCH_KEY")


def _param(key: KeyField, value: int, mask: int) -> Any:
    low, high = _bytes_of(value, key.bits), _bytes_of(mask, key.bits)
    match key.match:
        case MatchKind.EXACT:
            return STANDARD.BmMatchParam(_TYPE.EXACT, exact=STANDARD.BmMatchParamExact(low))
        case MatchKind.LPM:
            return STANDARD.BmMatchParam(_TYPE.LPM, lpm=STANDARD.BmMatchParamLPM(low, mask.bit_count()))
        case MatchKind.RANGE:
            return STANDARD.BmMatchParam(_TYPE.RANGE, range=STANDARD.BmMatchParamRange(low, high))
        case _:
            return STANDARD.BmMatchParam(_TYPE.TERNARY, ternary=STANDARD.BmMatchParamTernary(low, high))


def identity(table: TableInfo, match_key: Sequence[Any] | None, options: Any) -> tuple[bytes, bytes, int]:
    """Key, mask and priority of an entry."""
    given = match_key or []
    if len(given) != len(table.keys):
        fail_table("BAD_MATCH_KEY")
    key, mask = table.pack_key([_field(key, param) for key, param in zip(table.keys, given, strict=True)])
    if not table.has_priority:
        return key, mask, 0
    priority = options.priority if options is not None and options.priority is not None else 0
    if priority < 0:
        raise InvalidArgument(f"table {table.name}: expected a priority from 0 on, got {priority}")
    return key, mask, TOP_PRIORITY - priority


def do_entry(table: TableInfo, do: Do) -> Any:
    """The action of an entry, as BmActionEntry."""
    kinds = STANDARD.BmActionEntryType
    if isinstance(do, DoAction):
        action = table.actions[do.action]
        return STANDARD.BmActionEntry(kinds.ACTION_DATA, action.name,
                                      [shortest(value) for value in action.unpack(do.params)])
    if isinstance(do, DoMember):
        return STANDARD.BmActionEntry(kinds.MBR_HANDLE, mbr_handle=signed(do.member))
    return STANDARD.BmActionEntry(kinds.GRP_HANDLE, grp_handle=signed(do.group))


def signed(ident: int) -> int:
    """An id of 32 bits as the signed number that Thrift carries."""
    return ident - (1 << 32) if ident >> 31 else ident


def mt_entry(context: Context, table: TableInfo, entry: Entry) -> Any:
    """An entry, as BmMtEntry."""
    priority = TOP_PRIORITY - entry.priority if table.has_priority else -1
    if table.has_priority and table.const_entries:  # p4c numbers the program's own from 1 on
        priority = 1 + sum(other.priority > entry.priority for other in context.engine.entries(table))
    match = [_param(key, *pair) for key, pair in zip(table.keys, entry.fields, strict=True)]
    found = STANDARD.BmMtEntry(match, STANDARD.BmAddEntryOptions(priority), handle_of(entry),
                               do_entry(table, entry.do))
    if entry.idle_timeout_ns:
        limit = 2**31 - 1
        found.life = STANDARD.BmMtEntryLife(min(entry.idle_timeout_ns // 1_000_000, limit),
                                            min(entry.since_hit_us // 1000, limit))
    return found


def meter_config(rates: Sequence[Any] | None, fail: Any) -> MeterConfig:
    """BMv2's two rates (units a microsecond) as the engine's. `fail` raises for a name."""
    given = rates or []
    if len(given) != 2:
        fail("BAD_RATES_LIST")
    numbers = []
    for rate in given:
        value, burst = rate.units_per_micros, rate.burst_size
        if value is None or not 0 <= value < 1e12:
            fail("INVALID_INFO_RATE_VALUE")
        if burst is None or burst < 0:
            fail("INVALID_BURST_SIZE_VALUE")
        numbers.append((value, burst))
    (cir, cburst), (pir, pburst) = numbers
    if pir < cir:
        fail("INVALID_INFO_RATE_VALUE")
    whole = all(abs(rate * 1e6 - round(rate * 1e6)) < 1e-6 for rate in (cir, pir))
    slow = not whole and pir <= 1e6  # a fraction of a unit a second counts
    scale = 1e12 if slow else 1e6
    return MeterConfig(round(cir * scale), cburst, round(pir * scale), pburst, slow)


def meter_rates(config: MeterConfig | None) -> list[Any]:
    """The engine's meter as BMv2's rates; none where it was not configured."""
    if config is None:
        return []
    limit = 2**31 - 1
    scale = 1e12 if config.slow else 1e6
    return [STANDARD.BmMeterRateConfig(rate / scale, min(burst, limit))
            for rate, burst in ((config.cir, config.cburst), (config.pir, config.pburst))]


def counter_value(count: Count) -> Any:
    """A counter cell as BmCounterValue, of signed numbers."""
    return STANDARD.BmCounterValue(*(n - (1 << 64) if n >> 63 else n for n in (count.bytes, count.packets)))


def count_of(value: Any) -> Count:
    """BmCounterValue as a counter cell."""
    top = (1 << 64) - 1
    if value is None:
        raise InvalidArgument("expected a BmCounterValue, got none")
    return Count((value.packets or 0) & top, (value.bytes or 0) & top)
