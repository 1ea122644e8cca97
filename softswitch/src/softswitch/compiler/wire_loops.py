# SPDX-License-Identifier: Apache-2.0
"""Loops over the words of wide values in the order of the wire, each a C function of its own.

A tree of & | ^ ~ + - and ?: becomes one loop over words of 64 bits, carries included. What the tree is made of are the
function's arguments, so that all places of a program that compute alike share one function: compilers see each loop
once, and see that what it writes overlaps nothing that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.compiler import ir
from softswitch.compiler.c_text import u64, width
from softswitch.compiler.emit_wide import stays_in_words
from softswitch.compiler.wire_values import refers, same_bits, size_of


@dataclass(frozen=True)
class ConstantTable:
    """A constant whose words differ, and the name of the pointer to its bytes."""

    name: str
    value: int
    width: int


class WordLoop:
    """The loop that computes a value.

    leaves      the values that it reads, in the order of its arguments
    conditions  the conditions that it is told, behind them
    tables      constants that it reads
    text        what it does: loops with the same text do the same
    """

    def __init__(self, e: ir.Value) -> None:
        self.leaves: list[ir.Value] = []
        self.conditions: list[ir.Value] = []
        self.tables: list[ConstantTable] = []
        self._size = size_of(e)
        self._known: dict[str, str] = {}  # a leaf that is a place -> its argument
        self._before: list[str] = []
        self._carries = 0
        self._swaps = _moves_bits(e)
        lanes = lanes_added(e)
        if lanes is not None:
            bits, a, b = lanes
            self._value = f"ss_b_add{bits}(to, {self._leaf(a)}, {self._leaf(b)}, {self._size});"
        else:
            self._value = self._word(e)
        self._is_call = lanes is not None
        parts = [f"{self._size} {len(self.leaves)} {len(self.conditions)}", *self._before, self._value]
        self.text = "\n".join([*parts, *(f"{t.name} {t.value:#x}" for t in self.tables)])

    def function(self, name: str, tables: list[str]) -> list[str]:
        """The lines of the function; `tables` are the declarations of its constants."""
        arguments = ["uint8_t *restrict to", *(f"const uint8_t *a{i}" for i in range(len(self.leaves))),
                     *(f"bool c{i}" for i in range(len(self.conditions)))]
        # Words from first to last, in any order of bytes where no bit moves; or, with carries, from last to first.
        head = f"for (int i = {self._size - 8}; i >= 0; i -= 8)" if self._carries else \
            f"for (int i = 0; i < {self._size}; i += 8)"
        carries = ", ".join(f"carry{i} = 0" for i in range(self._carries))
        begin = [f"static SS_LOOP void {name}({', '.join(arguments)})", "{"]
        if self._is_call:
            return [*begin, f"    {self._value}", "}", ""]
        return [
            *begin,
            *(f"    {text}" for text in tables),
            *([f"    uint64_t {carries};"] if carries else []),
            f"    {head} {{",
            *(f"        {text}" for text in self._before),
            f"        {'ss_store64' if self._swaps else 'ss_b_put'}(to + i, {self._value});",
            "    }",
            "}",
            "",
        ]

    def _load(self, pointer: str) -> str:
        """The word at byte i; in the machine's order of bytes where only its bits count and not what it is worth."""
        return f"{'ss_load64' if self._swaps else 'ss_b_word'}({pointer} + i)"

    def _word(self, e: ir.Value) -> str:
        """An expression for the word at byte i of a value; what it needs before, in the loop, is in `_before`."""
        match e:
            case ir.Const():
                words = {e.value >> i & (1 << 64) - 1 for i in range(0, width(e.type), 64)}
                if len(words) == 1:
                    word = words.pop()
                    return u64(word if self._swaps else int.from_bytes(word.to_bytes(8, "big"), "little"))
                table = ConstantTable(f"b{len(self.tables)}", e.value, width(e.type))
                self.tables.append(table)
                return self._load(table.name)
            case ir.Cast(a=a) if same_bits(e):
                return self._word(a)
            case ir.UnaryOp(op="~"):
                return f"~{self._word(e.a)}"
            case ir.UnaryOp(op="-"):
                return self._carried("ss_subb", "0", self._word(e.a))
            case ir.BinaryOp(op="&" | "|" | "^"):
                return f"({self._word(e.a)} {e.op} {self._word(e.b)})"
            case ir.BinaryOp(op="+" | "-"):
                x, y = self._word(e.a), self._word(e.b)
                if stays_in_words(e):
                    return f"({x} {e.op} {y})"
                return self._carried("ss_addc" if e.op == "+" else "ss_subb", x, y)
            case ir.Mux() if not refers(e):
                self.conditions.append(e.c)
                condition = f"c{len(self.conditions) - 1}"
                return f"({condition} ? {self._word(e.a)} : {self._word(e.b)})"
        return self._load(self._leaf(e))

    def _leaf(self, e: ir.Value) -> str:
        """The argument that has the bytes of a value."""
        key = str(e)
        if isinstance(e, ir.LValue) and key in self._known:
            return self._known[key]
        self.leaves.append(e)
        name = f"a{len(self.leaves) - 1}"
        if isinstance(e, ir.LValue):
            self._known[key] = name
        return name

    def _carried(self, function: str, a: str, b: str) -> str:
        carry, value = f"carry{self._carries}", f"l{self._carries}"
        self._carries += 1
        self._before.append(f"uint64_t {value} = {function}({a}, {b}, &{carry});")
        return value


def lanes_added(e: ir.Value) -> tuple[int, ir.Value, ir.Value] | None:
    """For a sum of lanes that no carry leaves, ((a & ~T) + (b & ~T)) ^ ((a ^ b) & T), where T has the top bit of every
    lane: the bits of a lane, a and b."""
    match e:
        case ir.BinaryOp(
            op="^",
            a=ir.BinaryOp(
                op="+",
                a=ir.BinaryOp(op="&", a=ir.LValue() as a, b=ir.Const(value=low)),
                b=ir.BinaryOp(op="&", a=ir.LValue() as b, b=ir.Const(value=other)),
            ),
            b=ir.BinaryOp(
                op="&", a=ir.BinaryOp(op="^", a=ir.LValue() as c, b=ir.LValue() as d), b=ir.Const(value=top)
            ),
        ):
            same = (str(a), str(b)) == (str(c), str(d)) and low == other == top ^ (1 << width(e.type)) - 1
            for bits in (8, 16, 32):
                if same and top == sum(1 << i for i in range(bits - 1, width(e.type), bits)):
                    return bits, a, b
    return None


def _moves_bits(e: ir.Value) -> bool:
    """True if a loop over this tree adds or subtracts."""
    match e:
        case ir.Cast(a=a) if same_bits(e):
            return _moves_bits(a)
        case ir.UnaryOp():
            return e.op == "-" or _moves_bits(e.a)
        case ir.BinaryOp(op="+" | "-"):
            return True
        case ir.BinaryOp(op="&" | "|" | "^") | ir.Mux():
            return _moves_bits(e.a) or _moves_bits(e.b)
    return False
