# SPDX-License-Identifier: Apache-2.0
"""C for bit strings: headers out of and into packets, and fields packed for keys, hashes, checksums and digests.

Fields are handled in groups that begin and end at byte borders. A group of up to 128 bits is one load and some
shifts; a wide field between byte borders is referred to (emit_wire.py) or becomes byte-swapped limbs;
only a wide field that shares a byte with a neighbour takes the slow path, which handles bit strings one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softswitch.compiler import ir
from softswitch.compiler.c_text import c_name, is_wide, limbs, u64, width
from softswitch.compiler.emit_wire import PASSED, WireEmitter
from softswitch.compiler.types import BOOL, Bits, Varbit
from softswitch.compiler.wire_values import in_wire_order, is_piece, size_of


@dataclass
class FieldGroup:
    """Neighbouring fields from byte `at` on; `aligned` where they also end at a byte border and fit a scalar."""

    at: int
    bits: int
    fields: list[int]
    aligned: bool


def group(widths: Sequence[int]) -> list[FieldGroup]:
    """Cuts fields, given by their widths, into groups."""
    groups: list[FieldGroup] = []
    start, offset, members = 0, 0, []  # type: int, int, list[int]
    for i, w in enumerate(widths):
        members.append(i)
        offset += w
        if offset % 8 == 0 or i == len(widths) - 1:
            bits = offset - start
            ok = (len(members) == 1 and bits % 8 == 0) or bits <= 128
            groups.append(FieldGroup(start // 8, bits, members, ok))
            start, members = offset, []
    return groups


def stretches(values: Sequence[ir.Value], least: int) -> list[tuple[list[ir.Value], ir.Value | None]]:
    """Cuts fields into those in wire order of at least so many bytes, each by itself, and stretches of others."""
    found: list[tuple[list[ir.Value], ir.Value | None]] = []
    rest: list[ir.Value] = []
    bits = 0
    for v in values:
        if bits % 8 == 0 and (in_wire_order(v.type) or is_piece(v)) and size_of(v) >= least:
            if rest:
                found.append((rest, None))
            found.append(([], v))
            rest = []
        else:
            rest.append(v)
            bits += width(v.type)
    return [*found, (rest, None)] if rest else found


class PacketEmitter(WireEmitter):
    """Writes the C that turns bytes of a packet into fields of headers, and fields into bytes."""

    # ---- from bytes to fields -----------------------------------------------------------------------------------

    def unpack(self, base: str, fields: Sequence[tuple[str, ir.Type]]) -> None:
        """Reads fields (C l-value, type) that lie one after another at byte pointer `base`."""
        for g in group([width(t) for _, t in fields]):
            chosen = [fields[i] for i in g.fields]
            where = f"{base} + {g.at}" if g.at else base
            if not g.aligned:
                self.unpack_slowly(where, chosen)
            elif len(chosen) == 1 and is_wide(chosen[0][1]):
                lv, t = chosen[0]
                if in_wire_order(t):
                    self.line(f"{lv} = {where};")
                else:
                    self.line(f"ss_w_load({lv}, {limbs(width(t))}, {where}, {g.bits // 8});")
            else:
                self.unpack_group(where, g, chosen)

    def unpack_group(self, where: str, g: FieldGroup, chosen: Sequence[tuple[str, ir.Type]]) -> None:
        size = (g.bits + 7) // 8
        pad = size * 8 - g.bits
        load = f"ss_load({where}, {size})" if size <= 8 else f"ss_load_128({where}, {size})"
        if len(chosen) == 1 and not pad:
            lv, t = chosen[0]
            self.line(f"{lv} = {load}{' != 0' if t == BOOL else ''};")
            return
        name = self.fresh("g")
        with self.braces(""):
            self.line(f"{'uint64_t' if size <= 8 else 'ss_u128'} {name} = {load};")
            left = g.bits + pad
            for lv, t in chosen:
                left -= width(t)
                part = f"({name} >> {left})" if left else name
                if size > 8 and width(t) <= 64:
                    part = f"(uint64_t){part}"
                value = self.mask(part, width(t))
                self.line(f"{lv} = {value}{' != 0' if t == BOOL else ''};")

    def unpack_slowly(self, where: str, chosen: Sequence[tuple[str, ir.Type]]) -> None:
        at = 0
        for lv, t in chosen:
            w = width(t)
            if w > 64:
                temp = self.fresh("w")
                wire = in_wire_order(t)
                dst = lv if w > 128 and not wire else temp
                if dst == temp:
                    self.line(f"uint64_t {temp}[{limbs(w)}];")
                self.line(f"ss_w_bits_get({dst}, {where}, {at}, {w});")
                if wire:
                    new = self.room(w // 8, lasting=True)
                    self.line(f"ss_w_store({new}, {w // 8}, {temp}, {limbs(w)}); {lv} = {new};")
                if w <= 128:
                    self.line(f"{lv} = ss_w_get128({temp}, 2, 0);")
            else:
                self.line(f"{lv} = ss_bits_get({where}, {at}, {w});")
            at += w

    # ---- from fields to bytes -----------------------------------------------------------------------------------

    def pack(self, base: str, values: Sequence[ir.Value]) -> None:
        """Writes scalars one after another to byte pointer `base`; a last partial byte is padded with zeros."""
        for g in group([width(v.type) for v in values]):
            chosen = [values[i] for i in g.fields]
            where = f"{base} + {g.at}" if g.at else base
            if not g.bits:
                continue
            if not g.aligned:
                self.pack_slowly(where, g, chosen)
            elif self.has_bytes(chosen[0]):
                self.line(f"ss_b_copy({where}, {self.bytes(chosen[0])}, {g.bits // 8});")
            elif len(chosen) == 1 and is_wide(chosen[0].type):
                w = width(chosen[0].type)
                self.line(f"ss_w_store({where}, {g.bits // 8}, {self.pointer(chosen[0])}, {limbs(w)});")
            else:
                self.pack_group(where, g, chosen)

    def pack_group(self, where: str, g: FieldGroup, chosen: Sequence[ir.Value]) -> None:
        size = (g.bits + 7) // 8
        ctype = "uint64_t" if size <= 8 else "ss_u128"
        left = size * 8
        parts = []
        constant = 0
        for v in chosen:
            left -= width(v.type)
            if isinstance(v, ir.Const):
                constant |= v.value << left
            elif width(v.type):
                text = self.x(v)
                parts.append(f"({ctype}){text} << {left}" if left else f"({ctype}){text}")
        if constant or not parts:
            parts.append(self.scalar_const(constant, 64 if size <= 8 else 128))
        self.line(f"ss_store{'' if size <= 8 else '_128'}({where}, {size}, {' | '.join(parts)});")

    def pack_slowly(self, where: str, g: FieldGroup, chosen: Sequence[ir.Value]) -> None:
        if g.bits % 8:
            self.line(f"({where})[{g.bits // 8}] = 0;")
        at = 0
        for v in chosen:
            w = width(v.type)
            if w > 64:
                if w <= 128:
                    temp = self.fresh("w")
                    self.line(f"uint64_t {temp}[2]; ss_w_set128({temp}, 2, {self.x(v)});")
                else:
                    temp = self.pointer(v)
                self.line(f"ss_w_bits_put({where}, {at}, {w}, {temp});")
            elif w:
                self.line(f"ss_bits_put({where}, {at}, {w}, {self.x(v)});")
            at += w

    def pack_each(self, base: str, values: Sequence[ir.Value]) -> int:
        """The runtime's byte form: each value in whole bytes of its own; returns the size."""
        at = 0
        for v in values:
            size = (width(v.type) + 7) // 8
            where = f"{base} + {at}" if at else base
            if self.has_bytes(v):
                self.line(f"ss_b_copy({where}, {self.bytes(v)}, {size});")
            elif is_wide(v.type):
                self.line(f"ss_w_store({where}, {size}, {self.pointer(v)}, {limbs(width(v.type))});")
            elif size > 8:
                self.line(f"ss_store_128({where}, {size}, {self.x(v)});")
            elif size:
                self.line(f"ss_store({where}, {size}, {self.x(v)});")
            at += size
        return at

    def table_key(self, keys: Sequence[ir.Value]) -> str:
        """Writes a key in byte form as 64-bit words, padded with zeros, and returns the name of the array."""
        key = self.fresh("key")
        sizes = [(width(k.type) + 7) // 8 for k in keys]
        self.line(f"uint64_t {key}[{max(1, (sum(sizes) + 7) // 8)}] = {{ 0 }};")
        at = 0
        for k, size in zip(keys, sizes, strict=True):
            if size > 8:
                self.pack_each(f"(uint8_t *){key} + {at}", [k])
            elif size:
                self.line(f"ss_key_put({key}, {at}, {size}, {self.x(k)});")
            at += size
        return key

    def unpack_each(self, base: str, fields: Sequence[tuple[str, ir.Type]]) -> None:
        at = 0
        for lv, t in fields:
            size = (width(t) + 7) // 8
            where = f"{base} + {at}" if at else base
            if in_wire_order(t):
                self.line(f"{lv} = ss_b_kept(sw, {where}, {size});")
            elif is_wide(t):
                self.line(f"ss_w_load({lv}, {limbs(width(t))}, {where}, {size});")
            elif size > 8:
                self.line(f"{lv} = ss_load_128({where}, {size});")
            else:
                self.line(f"{lv} = ss_load({where}, {size}){' != 0' if t == BOOL else ''};")
            at += size

    def field_list(self, values: Sequence[ir.Value]) -> tuple[str, str]:
        """Packs a list of fields into a new buffer: (pointer, size in bytes); with varbits the size is dynamic."""
        self.check_varbits([v.type for v in values])
        total = sum(t.width if isinstance(t := v.type, Varbit) else width(t) for v in values)
        buffer = self.fresh("b")
        self.line(f"uint8_t {buffer}[{(total + 7) // 8 + 16}];")
        if not any(isinstance(v.type, Varbit) for v in values):
            self.pack(buffer, values)
            return buffer, str((total + 7) // 8)
        at = self.fresh("n")
        self.line(f"uint32_t {at} = 0;")
        run: list[ir.Value] = []

        def flush() -> None:
            bits = sum(width(v.type) for v in run)
            if bits:
                self.pack(f"({buffer} + {at})", run)
                self.line(f"{at} += {(bits + 7) // 8};")
            run.clear()

        for v in values:
            if isinstance(v.type, Varbit):
                flush()
                text = self.lv(v)
                self.line(f"memcpy({buffer} + {at}, {text}.data, {text}.bits / 8); {at} += {text}.bits / 8;")
            else:
                run.append(v)
        flush()
        return buffer, at

    def check_varbits(self, fields: Sequence[ir.Type]) -> None:
        """Refuses a varbit among these neighbours that begins within a byte; defined in emit_stmt.py."""

    # ---- headers ------------------------------------------------------------------------------------------------

    def header_parts(
        self, rec: ir.RecordType, text: str
    ) -> tuple[list[tuple[str, ir.Type]], Varbit | None, str, list[tuple[str, ir.Type]]]:
        """The leaves before the varbit, the type and C name of the varbit, and the leaves after it."""
        before: list[tuple[str, ir.Type]] = []
        after: list[tuple[str, ir.Type]] = []
        varbit: Varbit | None = None
        varbit_text = ""
        for path, t in ir.scalar_fields(rec):
            member = ".".join([text, *map(c_name, path)])
            if isinstance(t, Varbit):
                varbit, varbit_text = t, member
            else:
                (before if varbit is None else after).append((member, t))
        return before, varbit, varbit_text, after

    def extract(
        self,
        header: ir.LValue,
        size: ir.Value | None,
        fail: Callable[[str], str],
        set_valid: Callable[[ir.LValue], None],
    ) -> None:
        rec = header.type
        assert isinstance(rec, ir.RecordType)
        name = self.lv(header)
        if isinstance(header, ir.StackElement) or "[ss_at(" in name:  # evaluate an index once
            pointer = self.fresh("h")
            self.line(f"struct {c_name(rec.name)} *{pointer} = &{name};")
            name = f"(*{pointer})"
        before, varbit, var_text, after = self.header_parts(rec, name)
        first, rest = (sum(width(t) for _, t in part) for part in (before, after))
        total = (first + rest) // 8
        if varbit is None:
            self.line(f"if (end - c < {total}) {fail('PacketTooShort')}")
            self.unpack("c", before)
            self.line(f"c += {total};")
            length = str(total)
        else:
            # The order of the errors is that of the specification (12.8.2, Variable-width extraction) and BMv2.
            assert size is not None
            bits = self.fresh("bits")
            self.line(f"uint64_t {bits} = {self.x(size)};")
            self.line(f"if ({bits} % 8) {fail('ParserInvalidArgument')}")
            self.line(f"if (end - c < (ptrdiff_t)({total} + {bits} / 8)) {fail('PacketTooShort')}")
            self.line(f"if ({bits} > {varbit.width}) {fail('HeaderTooShort')}")
            self.unpack("c", before)
            self.line(f"{var_text}.bits = (uint32_t){bits};")
            self.line(f"memcpy({var_text}.data, c + {first // 8}, {bits} / 8);")
            if after:
                self.unpack(f"(c + {first // 8} + {bits} / 8)", after)
            self.line(f"c += {total} + {bits} / 8;")
            length = f"{total} + {bits} / 8"
        self.extracted(header, length)
        set_valid(header)

    def extracted(self, header: ir.LValue, size: str) -> None:
        """Called for each header that is extracted, from the `size` bytes before c; emit_trace.py records it."""

    def emitted(self, header: ir.LValue) -> None:
        """Called for each valid header that is emitted; emit_trace.py records it."""

    def check_room(self, header: ir.LValue, leaves: Sequence[ir.LValue]) -> None:
        """Writes the check that the header fits into the output; defined in emit_stmt.py."""

    def emit_header(self, header: ir.LValue) -> None:
        rec = header.type
        assert isinstance(rec, ir.RecordType)
        name = self.lv(header)
        with self.braces(f"if ({name}._valid)"):
            leaves = list(_leaves(header))
            self.check_room(header, leaves)
            self.emitted(header)
            cut = next((i for i, v in enumerate(leaves) if isinstance(v.type, Varbit)), None)
            self.append(leaves[:cut])
            if cut is not None:
                text = self.lv(leaves[cut])
                self.line(f"memcpy(o, {text}.data, {text}.bits / 8);")
                self.line(f"o += {text}.bits / 8;")
                self.append(leaves[cut + 1 :])

    def append(self, leaves: Sequence[ir.LValue]) -> None:
        """Appends fields to the frame that leaves: long values in wire order where they lie, all else by writing."""
        for values, long in stretches(leaves, PASSED):
            if long is not None:
                self.line(f"o = ss_parts_pass(sw, p, parts, out, o, {self.bytes(long)}, {size_of(long)});")
            else:
                self.pack("o", values)
                self.line(f"o += {sum(width(v.type) for v in values) // 8};")


def _leaves(header: ir.LValue) -> list[ir.LValue]:
    assert isinstance(header.type, ir.RecordType)
    found: list[ir.LValue] = []
    for name, t in header.type.fields.items():
        member = ir.Field(t, header, name)
        if isinstance(t, ir.RecordType):
            found.extend(_leaves(member))
        else:
            found.append(member)
    return found


__all__ = ["Bits", "PacketEmitter", "group", "u64"]
