# SPDX-License-Identifier: Apache-2.0
"""C for ir.Extern: a method op_<operation> for each operation of the runtime (runtime/softswitch.h)."""

from __future__ import annotations

from softswitch.compiler import ir
from softswitch.compiler.c_text import c_name, c_string, is_wide, limbs, width
from softswitch.compiler.diagnostics import P4Error
from softswitch.compiler.emit_packet import PacketEmitter
from softswitch.compiler.objects import ExternObject
from softswitch.compiler.program import Function
from softswitch.compiler.types import Bits, Varbit


class ExternEmitter(PacketEmitter):
    """Writes the C of calls of the runtime's operations, such as registers, counters, meters and hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.function = Function("")  # the function whose body is being written

    def extern(self, s: ir.Extern) -> None:
        if self.function.name == "deparse" and s.op in ("log", "assert_failed", "digest"):
            # the frame is incomplete: nothing may be reported until it is finished (runtime/switch.h)
            raise P4Error(s.pos, "log_msg, assert, assume and digest are not supported in a deparser")
        getattr(self, f"op_{s.op}")(s)

    def op_register_read(self, s: ir.Extern) -> None:
        reg: ExternObject = s.info
        assert s.out is not None
        index, out, t = self.fresh("i"), self.lv(s.out), s.out.type
        self.line(f"uint64_t {index} = {self.index(s.args[0])};")
        cells = f"registers[{reg.index}]"
        if is_wide(t):
            n = limbs(width(t))
            self.line(f"if ({index} < {reg.size}) ss_w_copy({out}, (const uint64_t *){cells} + {index} * {n}, {n});")
            self.line(f"else ss_w_zero({out}, {n});")
        else:
            self.line(f"{out} = {index} < {reg.size} ? ((const {cell_type(reg.type)} *){cells})[{index}] : 0;")

    def op_register_write(self, s: ir.Extern) -> None:
        reg: ExternObject = s.info
        index, t = self.fresh("i"), s.args[1].type
        self.line(f"uint64_t {index} = {self.index(s.args[0])};")
        cells = f"registers[{reg.index}]"
        if is_wide(t):
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
        self.line(f"ss_count(sw, p, {s.info.index}, {self.index(s.args[0])});")

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
        buffer, n = self.field_list(data)
        value = f"ss_hash(sw, {s.info}, {buffer}, {n})"
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
        buffer, n = self.field_list(s.args)
        if algorithm == 6:
            if payload and n.isdigit() and int(n) % 2:
                raise P4Error(s.pos, f"a checksum with payload over an odd number of header bytes ({n})")
            more = "p->payload, p->payload_len" if payload else "NULL, 0"
            self.line(f"{self.lv(s.out)} = ss_csum16({buffer}, {n}, {more});")
        else:
            self.line(f"{self.lv(s.out)} = ss_hash(sw, {algorithm}, {buffer}, {n});")

    def ones_complement(self, s: ir.Extern, payload: bool) -> None:
        """csum16 without packing fields into bytes: each is added at the position of its last bit in a 16-bit word."""
        assert s.out is not None
        bits = sum(width(v.type) for v in s.args)
        if payload and (bits + 7) // 8 % 2:
            raise P4Error(s.pos, f"a checksum with payload over an odd number of header bytes ({(bits + 7) // 8})")
        parts, end = ["0ull"], 0
        for v in s.args:
            w = width(v.type)
            end += w
            shift = -end % 16
            if is_wide(v.type):
                parts.append(f"ss_w_sum16({self.pointer(v)}, {limbs(w)}, {shift})")
            elif w > 64:
                parts.append(f"ss_sum16((uint64_t)({self.x(v)}), {shift})")
                parts.append(f"ss_sum16((uint64_t)(({self.x(v)}) >> 64), {shift})")
            elif w:
                parts.append(f"ss_sum16({self.x(v)}, {shift})")
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
        self.line(f"p->truncate_to = (uint32_t){self.x(s.args[0])};")

    def op_clone(self, s: ir.Extern) -> None:
        session = self.x(s.args[0])
        self.line(f"p->clone_asked = true; p->clone_session = (uint32_t){session}; p->clone_list = {s.info}u;")

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
