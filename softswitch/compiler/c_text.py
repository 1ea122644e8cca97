# SPDX-License-Identifier: Apache-2.0
"""Pieces of C source: names, literals, and the sizes of P4 types in C."""

from __future__ import annotations

from softswitch.compiler import ir
from softswitch.compiler.types import Bits

_C_WORDS = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "asm", "typeof",
    "bool", "true", "false", "errno", "unix", "linux", "NULL", "_valid", "alignas", "alignof", "constexpr",
}


def c_name(name: str) -> str:
    """The C identifier for a P4 name."""
    return name + "_" if name in _C_WORDS else name


def c_string(text: str) -> str:
    """A C string literal."""
    out = []
    for byte in text.encode():
        ch = chr(byte)
        out.append(f"\\{byte:03o}" if byte < 32 or byte > 126 or ch in '"\\' or ch == "?" else ch)
    return '"' + "".join(out) + '"'


def limbs(width: int) -> int:
    return (width + 63) // 64


def is_wide(t: ir.Type) -> bool:
    return isinstance(t, Bits) and t.width > 128


def width(t: ir.Type) -> int:
    return t.width if isinstance(t, Bits) else 1


def u64(value: int) -> str:
    return f"{value}ull" if value < 1 << 16 else f"{value:#x}ull"
