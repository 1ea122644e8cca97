# SPDX-License-Identifier: Apache-2.0
"""C for ir.Extern: a method op_<operation> for each operation of the runtime (runtime/softswitch.h)."""

from __future__ import annotations

from softswitch.compiler import ir
from softswitch.compiler.c_text import c_name, c_string, is_wide, limbs, width
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.emit_packet import PacketEmitter, stretches
from softswitch.compiler.emit_wire import REFERRED
from softswitch.compiler.objects import ExternObject
from softswitch.compiler.program import Function
from softswitch.compiler.types import Bits, Varbit
from softswitch.compiler.wire_values import in_wire_order, size_of


class ExternEmitter(PacketEmitter):
    """Writes the C of calls of the runtime's operations, such as registers, counters, meters and hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.function = Function("")  # the function whose body is being written
        self.referring: set[int] = set()  # ids of its register reads that may refer to the cell (cell_reads.py)

    def extern(self, s: ir.Extern) -> None:
        if self.function.name == "deparse" and s.op in ("log", "assert_failed", "digest"):
            # the frame is incomplete: nothing may be reported until it is finished (runtime/switch.h)
            raise Unsupported(s.pos, "log_msg, assert, assume and digest are not supported in a deparser")
        getattr(self, f"op_{s.op}")(s)

    def op_register_read(self, s: ir.Extern) -> None:
        reg: ExternObject = s.info
        assert s.out is not None
        index, out, t = self.fresh("i"), self.lv(s.out), s.out.type
        self.line(f"uint64_t {index} = {self.index(s.args[0])};")
        cells = f"ss_register_cells(sw, {reg.index})"
        if in_wire_order(t):
            size = width(t) // 8
            cell = f"(const uint8_t *){cells} + {index} * {size}"
            if id(s) not in self.referring:
                cell = f"ss_b_kept(sw, {cell}, {size})"
            self.line(f"{out} = {index} < {reg.size} ? {cell} : NULL;")
        elif is_wide(t):
            n = limbs(width(t))
            self.line(f"if ({index} < {reg.size}) ss_w_copy({out}, (const uint64_t *){cells} + {index} * {n}, {n});")
            self.line(f"else ss_w_zero({out}, {n});")
        else:
            self.line(f"{out} = {index} < {reg.size} ? ((const {cell_type(reg.type)} *){cells})[{index}] : 0;")

    def op_register_write(self, s: ir.Extern) -> None:
        reg: ExternObject = s.info
        index, t = self.fresh("i"), s.args[1].type
        self.line(f"uint64_t {index} = {self.index(s.args[0])};")
        cells = f"ss_register_cells(sw, {reg.index})"
        if in_wire_order(t):
            size, value = width(t) // 8, self.bytes(s.args[1])
            self.line(f"if ({index} < {reg.size}) ss_b_copy((uint8_t *){cells} + {index} * {size}, {value}, {size});")
        elif is_wide(t):
            n = limbs(width(t))
            value = self.pointer(s.args[1])
            self.line(f"if ({index} < {reg.size}) ss_w_copy((uint64_t *){cells} + {index} * {n}, {value}, {n});")
        else:
            ctype = cell_type(reg.type)
            value = self.x(s.args[1])
            self.line(f"if ({index} < {reg.size}) (({ctype} *){cells})[{index}] = ({ctype}){value};")

    def index(self, e: ir.Value) -> str:
        w = width(e.type)
        if w > 128:
            return f"ss_w_amount({self.pointer(e)}, {limbs(w)})"
        return self.x(e) if w <= 64 else f"ss_amount128({self.x(e)})"

    def op_count(self, s: ir.Extern) -> None:
        index = self.fresh("i")
        self.line(f"uint64_t {index} = {self.index(s.args[0])};")
        self.line(f"if ({index} < {s.info.size}) ss_count(sw, {s.info.index}, {index});")

    def op_meter(self, s: ir.Extern) -> None:
        assert s.out is not None
        self.line(f"{self.lv(s.out)} = ss_meter(sw, p, {s.info.index}, {self.index(s.args[0])});")

    def op_direct_meter(self, s: ir.Extern) -> None:
        assert s.out is not None
        self.line(f"{self.lv(s.out)} = ss_direct_meter(sw, p, &{c_name(s.info)});")

    def op_random(self, s: ir.Extern) -> None:
        assert s.out is not None
        self.line(f"{self.lv(s.out)} = ss_random(sw, {self.x(s.args[0])}, {self.x(s.args[1])});")

    def op_hash(self, s: ir.Extern) -> None:
        assert s.out is not None
        base, limit, *data = s.args
        value = self.hashed(s.info, data)
        if isinstance(limit, ir.Const):
            value = f"({value} % {self.x(ir.const(limit.value or 1, limit.type))})"  # BMv2: max 0 counts as 1
        else:
            top = self.fresh("max")
            self.line(f"uint64_t {top} = {self.x(limit)};")
            value = f"({value} % ({top} ? {top} : 1))"
        self.line(f"{self.lv(s.out)} = {self.x(base)} + {value};")

    def op_checksum(self, s: ir.Extern) -> None:
        assert s.out is not None
        algorithm, payload = s.info
        if algorithm == 6 and not any(isinstance(v.type, Varbit) for v in s.args):
            self.ones_complement(s, payload)
            return
        if algorithm == 6:
            buffer, n = self.field_list(s.args)
            if payload and n.isdigit() and int(n) % 2:
                raise P4Error(s.pos, f"a checksum with payload over an odd number of header bytes ({n})")
            more = "p->payload, p->payload_len" if payload else "NULL, 0"
            self.line(f"{self.lv(s.out)} = ss_csum16({buffer}, {n}, {more});")
        else:
            self.line(f"{self.lv(s.out)} = {self.hashed(algorithm, s.args)};")

    def hashed(self, algorithm: int, values: list[ir.Value]) -> str:
        """The hash of a list of fields: long ones are read where they lie, the others are packed between them."""
        pieces = stretches(values, REFERRED)
        if any(isinstance(v.type, Varbit) for v in values) or all(long is None for _, long in pieces):
            buffer, n = self.field_list(values)
            return f"ss_hash(sw, {algorithm}, {buffer}, {n})"
        runs, n = self.fresh("r"), self.fresh("n")
        self.line(f"ss_run {runs}[{len(pieces)}];")
        self.line(f"uint32_t {n} = 0;")
        for short, long in pieces:
            if long is None:
                bytes_, size = self.field_list(short)
            else:
                bytes_, size = self.bytes(long), str(size_of(long))
            self.line(f"{n} = ss_run_add({runs}, {n}, {bytes_}, {size});")
        return f"ss_hash_runs(sw, {algorithm}, {runs}, {n})"

    def ones_complement(self, s: ir.Extern, payload: bool) -> None:
        """csum16 without packing fields into bytes: each is added at the position of its last bit in a 16-bit word."""
        assert s.out is not None
        bits = sum(width(v.type) for v in s.args)
        if payload and (bits + 7) // 8 % 2:
            raise P4Error(s.pos, f"a checksum with payload over an odd number of header bytes ({(bits + 7) // 8})")
        parts, end = ["0ull"], 0
        runs: dict[int, list[ir.Value]] = {}  # how far above a word's end they end -> long values
        for v in s.args:
            w = width(v.type)
            end += w
            shift = -end % 16
            if in_wire_order(v.type):
                runs.setdefault(shift, []).append(v)
            elif is_wide(v.type):
                parts.append(f"ss_w_sum16({self.pointer(v)}, {limbs(w)}, {shift})")
            elif w > 64:
                parts.append(f"ss_sum16((uint64_t)({self.x(v)}), {shift})")
                parts.append(f"ss_sum16((uint64_t)(({self.x(v)}) >> 64), {shift})")
            elif w:
                parts.append(f"ss_sum16({self.x(v)}, {shift})")
        for shift, values in runs.items():
            name, n = self.fresh("r"), self.fresh("n")
            self.line(f"ss_run {name}[{len(values)}];")
            self.line(f"uint32_t {n} = 0;")
            for v in values:
                self.line(f"{n} = ss_run_add({name}, {n}, {self.bytes(v)}, {size_of(v)});")
            parts.append(f"(ss_run_sum16(sw, {name}, {n}) << {shift})")
        if payload:
            parts.append("(uint16_t)~ss_csum16(p->payload, p->payload_len, NULL, 0)")
        self.line(f"{self.lv(s.out)} = ss_sum16_end({' + '.join(parts)});")

    def op_value_set(self, s: ir.Extern) -> None:
        assert s.out is not None
        key = self.fresh("key")
        size = sum((width(a.type) + 7) // 8 for a in s.args)
        self.line(f"uint8_t {key}[{max(1, size)}];")
        self.pack_each(key, s.args)
        self.line(f"{self.lv(s.out)} = ss_value_set_has(sw, {s.info.index}, {key});")

    def op_digest(self, s: ir.Extern) -> None:
        buffer = self.fresh("b")
        size = sum((width(a.type) + 7) // 8 for a in s.args)
        self.line(f"uint8_t {buffer}[{max(1, size)}];")
        self.pack_each(buffer, s.args)
        self.line(f"ss_digest(sw, {s.info.index}, {buffer}, {size});")

    def op_truncate(self, s: ir.Extern) -> None:
        length = self.fresh("n")
        self.line(f"uint32_t {length} = (uint32_t){self.x(s.args[0])};")
        self.line(f"if ({length} < p->truncate_to) p->truncate_to = {length};")

    def op_clone(self, s: ir.Extern) -> None:
        session = f"(uint32_t){self.x(s.args[0])} & SS_SESSIONS"
        self.line(f"p->clone_asked = true; p->clone_session = {session}; p->clone_list = {s.info}u;")

    def op_resubmit(self, s: ir.Extern) -> None:
        self.line(f"p->resubmit_asked = true; p->resubmit_list = {s.info}u;")

    def op_recirculate(self, s: ir.Extern) -> None:
        self.line(f"p->recirculate_asked = true; p->recirculate_list = {s.info}u;")

    def op_assert_failed(self, s: ir.Extern) -> None:
        self.line(f"ss_assert_failed(sw, {c_string(s.info)});")

    def op_log(self, s: ir.Extern) -> None:
        text = self.fresh("text")
        pieces = s.info.split("{}")
        size = len(s.info.encode()) + sum(40 + width(a.type) // 3 for a in s.args) + 1
        self.line(f"char {text}[{size}];")
        at = self.fresh("n")
        self.line(f"int {at} = 0;")
        for i, piece in enumerate(pieces):
            if piece:
                self.line(f'{at} += snprintf({text} + {at}, sizeof {text} - {at}, "%s", {c_string(piece)});')
            if i < len(s.args):
                self.log_value(s.args[i], text, at)
        if s.info == "":
            self.line(f"{text}[0] = 0;")
        self.line(f"ss_log(sw, {text});")

    def log_value(self, e: ir.Value, text: str, at: str) -> None:
        room = f"{text} + {at}, sizeof {text} - {at}"
        t = e.type
        if isinstance(t, Bits) and t.width > 64:
            pointer = self.pointer(e) if t.width > 128 else self.fresh("w")
            n = limbs(t.width)
            if t.width <= 128:
                self.line(f"uint64_t {pointer}[2]; ss_w_set128({pointer}, 2, {self.x(e)});")
            self.line(f'{at} += snprintf({room}, "0x");')
            self.line(
                f'for (int i = {n}; i-- > 0;) {at} += snprintf({room}, "%016llx", (unsigned long long){pointer}[i]);'
            )
        elif isinstance(t, Bits) and t.signed:
            self.line(f'{at} += snprintf({room}, "%lld", (long long){self.sext(e)});')
        elif isinstance(t, Varbit):
            self.line(f'{at} += snprintf({room}, "varbit");')
        else:
            self.line(f'{at} += snprintf({room}, "%llu", (unsigned long long){self.x(e)});')


def cell_type(t: ir.Type) -> str:
    """The C type of a register cell with up to 128 bits."""
    w = width(t)
    return "ss_u128" if w > 64 else next(f"uint{size}_t" for size in (8, 16, 32, 64) if w <= size)


def stride(t: ir.Type) -> int:
    """Bytes of a register cell."""
    w = width(t)
    return next((size // 8 for size in (8, 16, 32, 64, 128) if w <= size), 8 * limbs(w))
