# SPDX-License-Identifier: Apache-2.0
"""C for statements: assignments of any type, control flow, parsing, tables."""

from __future__ import annotations

import os
from collections.abc import Sequence

from softswitch.compiler import ir
from softswitch.compiler.c_text import c_comment, c_name, is_wide, limbs, width
from softswitch.compiler.diagnostics import P4Error, Pos, Unsupported
from softswitch.compiler.emit_extern import ExternEmitter
from softswitch.compiler.types import BOOL, Bits, Varbit
from softswitch.compiler.wire_values import in_wire_order

MAX_ADDED = 5120  # SS_MAX_ADDED
MAX_STEPS = 1 << 16  # backward jumps a packet may make in one stage


def has_header(t: ir.Type) -> bool:
    """True if a value of this type contains headers, whose validity copying must respect."""
    match t:
        case ir.StackType():
            return True
        case ir.RecordType():
            return t.kind != "struct" or any(has_header(f) for f in t.fields.values())
    return False


class StmtEmitter(ExternEmitter):
    """Writes the C of each kind of instruction of the IR."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__()
        self.errors = errors
        self.shown: Pos | None = None
        self.targets: set[str] = set()
        self.may_overflow = False  # whether the headers of this program may not fit in front of the payload

    def stmts(self, body: list[ir.Instruction]) -> None:
        for stmt in body:
            self.show(stmt.pos)
            self.stmt(stmt)

    def show(self, pos: Pos) -> None:
        """Writes a comment with the P4 line, where it has changed: without the file's folder, so that the same program
        in another folder is the same C, and compiled once."""
        if pos.line and (self.shown is None or (pos.file, pos.line) != (self.shown.file, self.shown.line)):
            self.shown = pos
            self.line(c_comment(f"{os.path.basename(pos.file)}:{pos.line}"))

    def stmt(self, s: ir.Instruction) -> None:
        match s:
            case ir.Assign():
                self.assign(s.dst, s.src)
            case ir.Deposit():
                self.deposit(s)
            case ir.Zero():
                self.zero(s.dst)
            case ir.SetValid():
                self.set_valid(s.header, s.valid)
            case ir.Shift():
                self.shift_stack(s)
            case ir.If():
                self.if_(s)
            case ir.Label():
                if s.name in self.targets:
                    self.lines.append(f"{c_name(s.name)}: ;")
            case ir.Goto():
                if s.counted:
                    self.line(f"if (++steps > {MAX_STEPS}) {self.fail('ParserTimeout')}")
                self.line(f"goto {c_name(s.name)};")
            case ir.Extract():
                self.check_bytes(s.header)
                self.extract(s.header, s.size, self.fail, lambda h: self.set_valid(h, True, fresh=False))
            case ir.Advance():
                self.advance(s)
            case ir.Lookahead():
                self.lookahead(s)
            case ir.ParserError():
                self.line(f"{{ p->parser_error = {self.x(s.error)}; goto {c_name(self.function.exit)}; }}")
            case ir.Emit():
                self.check_bytes(s.header)
                self.emit_header(s.header)
            case ir.Apply():
                self.apply(s)
            case ir.Extern():
                self.extern(s)
            case _:
                raise AssertionError(s)

    def fail(self, error: str) -> str:
        if error not in self.errors:
            raise P4Error(self.shown or Pos("", 0, 1), f"error.{error} is missing, which core.p4 declares")
        return f"{{ p->parser_error = {self.errors.index(error)}; goto {c_name(self.function.exit)}; }}"

    def check_bytes(self, header: ir.LValue) -> None:
        rec = header.type
        assert isinstance(rec, ir.RecordType)
        if rec.bits % 8:
            where = self.shown or Pos("", 0, 1)
            raise P4Error(where, f"header {rec.p4} has {rec.bits} bits; only whole bytes can be extracted or emitted")
        self.check_varbits([t for _, t in ir.scalar_fields(rec)])

    def check_varbits(self, fields: Sequence[ir.Type]) -> None:
        bits = 0
        for t in fields:
            if isinstance(t, Varbit) and bits % 8:
                raise Unsupported(self.shown or Pos("", 0, 1), "a varbit that does not begin at a byte of its header, "
                                  "or of a list of fields")
            bits += 0 if isinstance(t, Varbit) else width(t)

    def check_room(self, header: ir.LValue, leaves: Sequence[ir.LValue]) -> None:
        """Checks that the header fits: the output has room for what was parsed and SS_MAX_ADDED bytes more."""
        if self.function.name != "deparse" or not self.may_overflow:
            return
        assert isinstance(header.type, ir.RecordType)
        size = str(header.type.bits // 8)
        size += "".join(f" + {self.lv(v)}.bits / 8" for v in leaves if isinstance(v.type, Varbit))
        # A length that no frame may have: the runtime drops the frame and counts it (dropped_oversize).
        self.line(f"if (limit - o < (ptrdiff_t)(parts->ref_len + {size}))")
        self.line("    { *parts = (ss_parts){ .head = SS_NO_FRAME }; return; }")

    def if_(self, s: ir.If) -> None:
        if not s.then and not s.other:
            return
        condition = self.x(s.condition if s.then else ir.UnaryOp(BOOL, "!", s.condition))
        with self.braces(f"if ({_bare(condition)})"):
            self.stmts(s.then or s.other)
        if s.then and s.other:
            with self.braces("else"):
                self.stmts(s.other)
        self.shown = None

    # ---- assignment ---------------------------------------------------------------------------------------------

    def assign(self, dst: ir.LValue, src: ir.Value) -> None:
        t = dst.type
        if isinstance(t, ir.RecordType | ir.StackType):
            if isinstance(src, ir.Const):
                self.zero(dst)
                return
            assert isinstance(src, ir.LValue)
            self.copy(dst, src)
        elif isinstance(t, Varbit):
            self.line(f"memcpy(&{self.lv(dst)}, &{self.lv(src)}, sizeof {self.lv(dst)});")
        elif in_wire_order(t):
            self.assign_wire(dst, src)
        elif is_wide(t):
            self.assign_wide(dst, src)
        else:
            value = self.x(src)
            self.line(f"{self.lv(dst)} = {_bare(value)};")

    def assign_wide(self, dst: ir.LValue, src: ir.Value) -> None:
        text = self.lv(dst)
        if isinstance(src, ir.LValue | ir.Const) or _limbwise(src) or not _reads(src, ir.root(dst)):
            self.wide(src, text)
            return
        self.line(f"ss_w_copy({text}, {self.pointer(src)}, {limbs(width(dst.type))});")

    def copy(self, dst: ir.LValue, src: ir.LValue) -> None:
        """Copies a struct, header, union or stack. An invalid header invalidates the target, not its fields (BMv2)."""
        t = dst.type
        packet = any(isinstance(r := ir.root(x), ir.Var) and r.storage == "packet" for x in (dst, src))
        if isinstance(t, ir.StackType):
            for i in range(t.size):
                at = ir.const(i, ir.U32)
                self.copy(ir.StackElement(t.item, dst, at), ir.StackElement(t.item, src, at))
            self.line(f"{self.lv(dst)}.next = {self.lv(src)}.next;")
            return
        assert isinstance(t, ir.RecordType)
        if t.kind == "header":
            d, s = self.lv(dst), self.lv(src)
            self.line(f"if ({s}._valid) {d} = {s}; else {d}._valid = false;")
            if isinstance(dst, ir.Field) and isinstance(dst.base.type, ir.RecordType) and dst.base.type.kind == "union":
                with self.braces(f"if ({d}._valid)"):
                    self.invalidate_siblings(dst)
        elif t.kind == "struct" and not has_header(t) and not packet:
            self.line(f"{self.lv(dst)} = {self.lv(src)};")
        else:
            for name, f in t.fields.items():
                a, b = ir.Field(f, dst, name), ir.Field(f, src, name)
                if t.kind == "union":  # memberwise, without invalidating the others
                    self.line(
                        f"if ({self.lv(b)}._valid) {self.lv(a)} = {self.lv(b)}; else {self.lv(a)}._valid = false;"
                    )
                else:
                    self.assign(a, b)

    def zero(self, dst: ir.LValue) -> None:
        t = dst.type
        text = self.lv(dst)
        if isinstance(t, Bits | type(BOOL)) and not is_wide(t):
            self.line(f"{text} = 0;")
        elif in_wire_order(t):
            self.line(f"{text} = NULL;")
        elif isinstance(dst, ir.Var) and dst.storage == "packet":
            assert isinstance(t, ir.RecordType)
            for name, f in t.fields.items():
                self.zero(ir.Field(f, dst, name))
        else:
            self.line(f"memset(&{text}, 0, sizeof {text});")

    def deposit(self, s: ir.Deposit) -> None:
        if in_wire_order(s.dst.type):
            self.deposit_wire(s)
            return
        w, part = width(s.dst.type), width(s.src.type)
        text = self.lv(s.dst)
        if w > 128:
            self.deposit_limbs(text, s)
            return
        hole = ((1 << w) - 1) & ~(((1 << part) - 1) << s.lo)
        value = f"({self.ctype(w)}){self.x(s.src)}"
        self.line(f"{text} = ({text} & {self.scalar_const(hole, w)}) | ({value} << {s.lo});")

    def set_valid(self, header: ir.LValue, valid: bool, *, fresh: bool = True) -> None:
        """Writes setValid() or setInvalid(); fresh: an invalid header gets zero fields, as by BMv2's add_header."""
        text = self.lv(header)
        if not valid:
            count = self.count_length(header, text, "-")
            self.line(f"if ({text}._valid) {{ {count}{text}._valid = false; }}" if count else f"{text}._valid = false;")
            return
        if fresh:
            zero = f"memset(&{text}, 0, sizeof {text}); {text}._valid = true;"
            self.line(f"if (!{text}._valid) {{ {self.count_length(header, text, '+')}{zero} }}")
        else:
            self.line(f"{text}._valid = true;")
        self.invalidate_siblings(header)

    def count_length(self, header: ir.LValue, text: str, sign: str) -> str:
        """Adjusts packet_length in egress for headers that become valid or invalid, as BMv2 does."""
        root, rec = ir.root(header), header.type
        if not isinstance(root, ir.Var) or root.storage != "state" or not isinstance(rec, ir.RecordType):
            return ""
        size = str(rec.bits // 8)
        if sign == "-":
            parts = self.header_parts(rec, text)
            size += f" + (int32_t){parts[2]}.bits / 8" if parts[1] is not None else ""
        return f"p->length_change {sign}= {size}; "

    def invalidate_siblings(self, header: ir.LValue) -> None:
        whole = header.base.type if isinstance(header, ir.Field) else None
        if isinstance(header, ir.Field) and isinstance(whole, ir.RecordType) and whole.kind == "union":
            for name, t in whole.fields.items():
                if name != header.name:
                    self.line(f"{self.lv(ir.Field(t, header.base, name))}._valid = false;")

    def shift_stack(self, s: ir.Shift) -> None:
        t = s.stack.type
        assert isinstance(t, ir.StackType)
        text, size = self.lv(s.stack), t.size
        n = min(abs(s.count), size)
        item = f"sizeof {text}.e[0]"
        if s.count > 0:
            if n < size:
                self.line(f"memmove(&{text}.e[{n}], &{text}.e[0], {size - n} * {item});")
            self.line(f"memset(&{text}.e[0], 0, {n} * {item});")
            self.line(f"{text}.next = {text}.next + {n} < {size} ? {text}.next + {n} : {size};")
        else:
            if n < size:
                self.line(f"memmove(&{text}.e[0], &{text}.e[{n}], {size - n} * {item});")
            self.line(f"memset(&{text}.e[{size - n}], 0, {n} * {item});")
            self.line(f"{text}.next = {text}.next > {n} ? {text}.next - {n} : 0;")

    # ---- parsing ------------------------------------------------------------------------------------------------

    def advance(self, s: ir.Advance) -> None:
        if isinstance(s.bits, ir.Const) and s.bits.value % 8 == 0:
            self.line(f"if (end - c < {s.bits.value // 8}) {self.fail('PacketTooShort')}")
            self.line(f"c += {s.bits.value // 8};")
            return
        bits = self.fresh("bits")
        self.line(f"uint64_t {bits} = {self.x(s.bits)};")
        self.line(f"if ({bits} % 8) {self.fail('ParserInvalidArgument')}")
        self.line(f"if (end - c < (ptrdiff_t)({bits} / 8)) {self.fail('PacketTooShort')}")
        self.line(f"c += {bits} / 8;")

    def lookahead(self, s: ir.Lookahead) -> None:
        leaves = self.leaves(s.dst)
        total = sum(width(t) for _, t in leaves)
        self.line(f"if (end - c < {(total + 7) // 8}) {self.fail('PacketTooShort')}")
        self.unpack("c", leaves)
        self.validate(s.dst)

    def validate(self, lv: ir.LValue) -> None:
        """Makes all headers in a value valid."""
        match lv.type:
            case ir.RecordType() as rec:
                if rec.kind == "header":
                    self.line(f"{self.lv(lv)}._valid = true;")
                for name, t in rec.fields.items():
                    self.validate(ir.Field(t, lv, name))
            case ir.StackType() as arr:
                for i in range(arr.size):
                    self.validate(ir.StackElement(arr.item, lv, ir.const(i, ir.U32)))
                self.line(f"{self.lv(lv)}.next = {arr.size};")

    def leaves(self, lv: ir.LValue) -> list[tuple[str, ir.Type]]:
        if isinstance(lv.type, ir.RecordType):
            found: list[tuple[str, ir.Type]] = []
            for name, t in lv.type.fields.items():
                found += self.leaves(ir.Field(t, lv, name))
            return found
        if isinstance(lv.type, ir.StackType):
            items = [ir.StackElement(lv.type.item, lv, ir.const(i, ir.U32)) for i in range(lv.type.size)]
            return [leaf for item in items for leaf in self.leaves(item)]
        if isinstance(lv.type, Varbit):
            raise Unsupported(self.shown or Pos("", 0, 1), f"lookahead of a {lv.type} is not supported")
        return [(self.lv(lv), lv.type)]

    # ---- tables -------------------------------------------------------------------------------------------------

    def apply(self, s: ir.Apply) -> None:
        table = s.table
        key = self.table_key(s.keys)
        selector, n = "NULL", "0"
        if s.selectors:
            selector, n = self.field_list(s.selectors)
        entry = c_name(s.entry)
        self.line(f"ss_entry {entry} = ss_lookup(sw, p, {table.index}, {key}, {selector}, {n});")
        self.line(f"{c_name(s.hit.name)} = {entry}.hit;")
        self.line(f"{c_name(s.run.name)} = {entry}.action;")
        bodies = [(i, case) for i, case in enumerate(s.cases) if case.body]
        if not bodies:
            return
        with self.braces(f"switch ({entry}.action)"):
            for i, case in bodies:
                with self.braces(f"case {i}: {c_comment(table.actions[i].name)}"):
                    self.unpack_each(f"{entry}.params", [(c_name(v.name), v.type) for v in case.params])
                    self.stmts(case.body)
                    self.line("break;")
        self.shown = None


def emitted_bytes(body: list[ir.Instruction]) -> int:
    """The most bytes that the statements of a deparser can write; more than any limit where they loop."""
    total = 0
    for s in body:
        match s:
            case ir.Emit():
                assert isinstance(s.header.type, ir.RecordType)
                total += (
                    sum(t.width if isinstance(t, Varbit) else ir.bits_of(t) for _, t in ir.scalar_fields(s.header.type))
                    // 8
                )
            case ir.If():
                total += emitted_bytes(s.then) + emitted_bytes(s.other)
            case ir.Goto(counted=True):
                total += 1 << 30
    return total


def _bare(text: str) -> str:
    """The text without a pair of parentheses around all of it."""
    if text.startswith("(") and text.endswith(")"):
        depth = 0
        for i, ch in enumerate(text):
            depth += (ch == "(") - (ch == ")")
            if depth == 0:
                return text[1:-1] if i == len(text) - 1 else text
    return text


def _limbwise(e: ir.Value) -> bool:
    """True if limb i of the result depends only on limbs up to i of operands, which are read before it is written."""
    match e:
        case ir.LValue() | ir.Const():
            return True
        case ir.UnaryOp():
            return _limbwise(e.a)
        case ir.BinaryOp(op="&" | "|" | "^" | "+" | "-"):
            return _limbwise(e.a) and _limbwise(e.b)
        case ir.Mux():
            return _limbwise(e.a) and _limbwise(e.b)
        case ir.BinaryOp(op="<<" | ">>"):
            return False
    return True  # computed into a temporary before the loop


def _reads(e: ir.Value, var: ir.Value) -> bool:
    """True if the expression reads this variable or a part of it."""
    match e:
        case ir.LValue():
            return ir.root(e) is var
        case ir.UnaryOp() | ir.Cast() | ir.Slice():
            return _reads(e.a, var)
        case ir.BinaryOp():
            return _reads(e.a, var) or _reads(e.b, var)
        case ir.Mux():
            return _reads(e.a, var) or _reads(e.b, var) or _reads(e.c, var)
    return False
