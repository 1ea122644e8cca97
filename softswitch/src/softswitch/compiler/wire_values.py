# SPDX-License-Identifier: Apache-2.0
"""Which values are byte strings in the order of the wire, and which of them lie somewhere already.

Values of bit<W> and int<W> with W > 128 and W % 64 == 0 are such strings, held by pointer (emit_wire.py); other wide
values are arrays of limbs (emit_wide.py).
"""

from __future__ import annotations

from softswitch.compiler import ir
from softswitch.compiler.c_text import is_wide, width
from softswitch.compiler.types import Bits


def in_wire_order(t: ir.Type) -> bool:
    """True if values of a type are byte strings in wire order."""
    return is_wide(t) and width(t) % 64 == 0


def has_pointers(t: ir.Type) -> bool:
    """True if values of a type are or contain values in wire order."""
    match t:
        case ir.RecordType():
            return any(has_pointers(f) for f in t.fields.values())
        case ir.StackType():
            return has_pointers(t.item)
    return in_wire_order(t)


def size_of(e: ir.Value) -> int:
    """Bytes of a value that ends at byte borders."""
    return width(e.type) // 8


def is_piece(e: ir.Value) -> bool:
    """True if this is a slice at byte borders of a value in wire order."""
    return isinstance(e, ir.Slice) and in_wire_order(e.a.type) and e.lo % 8 == 0 and width(e.type) % 8 == 0


def refers(e: ir.Value) -> bool:
    """True if a value in wire order already has a place in memory: a pointer to it needs no computing."""
    match e:
        case ir.LValue() | ir.Const():
            return in_wire_order(e.type)
        case ir.Cast(a=a):
            return in_wire_order(a.type) and width(e.type) <= width(a.type) and refers(a)
        case ir.Slice(a=a):
            return is_piece(e) and refers(a)
        case ir.Mux(a=a, b=b):
            return refers(a) and refers(b)
    return False


def parts_of(e: ir.Value) -> list[ir.Value]:
    """The operands of a concatenation, from the highest part on; parts without bits are left out."""
    if isinstance(e, ir.BinaryOp) and e.op == "++":
        return [*parts_of(e.a), *parts_of(e.b)]
    return [e] if width(e.type) else []


def same_bits(e: ir.Value) -> bool:
    """True if this is a cast that changes nothing but the sign."""
    return isinstance(e, ir.Cast) and isinstance(e.a.type, Bits) and e.a.type.width == width(e.type)
