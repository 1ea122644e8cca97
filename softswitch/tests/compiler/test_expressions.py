# SPDX-License-Identifier: Apache-2.0
"""Random typed expressions, compiled and run, against an evaluator that shares nothing with the compiler.

A node of an expression knows how it is written in P4 and what it is worth; widths go from 1 to 2100 bits, signed and
unsigned, across the borders at 64 and 128 where the generated C changes its representation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from softswitch.compiler import consteval
from softswitch.compiler.types import Bits
from switch_support.compiler import program, run

Env = dict[str, int]


@dataclass(frozen=True)
class Type:
    width: int
    signed: bool

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"

    def wrap(self, value: int) -> int:
        value %= 1 << self.width
        return value - (1 << self.width) if self.signed and value >= 1 << (self.width - 1) else value

    @property
    def range(self) -> tuple[int, int]:
        half = 1 << (self.width - 1)
        return (-half, half - 1) if self.signed else (0, 2 * half - 1)


@dataclass(frozen=True)
class Node:
    """An expression: its type, its P4 text and its value for given inputs."""

    type: Type
    text: str
    value: Callable[[Env], int]


WIDTHS = [1, 2, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 256, 320, 500, 1024, 2048, 2100]
widths = st.one_of(st.sampled_from(WIDTHS), st.integers(1, 140))
types = st.builds(Type, widths, st.booleans())


@st.composite
def literals(draw: st.DrawFn, t: Type) -> Node:
    low, high = t.range
    value = draw(st.one_of(st.sampled_from([0, 1, low, high, high - 1 if high else 0]), st.integers(low, high)))
    value = t.wrap(value)
    if value < 0:  # no negative literal has a width: write the two's complement
        return Node(t, f"(({t})({t.width}w{value % (1 << t.width):#x}))", lambda _: value)
    return Node(t, f"{t.width}{'s' if t.signed else 'w'}{value:#x}", lambda _: value)


_RAW: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}


def _raw(op: str, a: Node, b: Node) -> Node:
    return Node(a.type, f"({a.text} {op} {b.text})", lambda env: a.type.wrap(_RAW[op](a.value(env), b.value(env))))


def _saturating(op: str, a: Node, b: Node) -> Node:
    low, high = a.type.range

    def value(env: Env) -> int:
        exact = a.value(env) + b.value(env) if op == "|+|" else a.value(env) - b.value(env)
        return min(max(exact, low), high)

    return Node(a.type, f"({a.text} {op} {b.text})", value)


def _shift(op: str, a: Node, b: Node) -> Node:
    def value(env: Env) -> int:
        by = min(b.value(env), a.type.width + 1)
        return a.type.wrap(a.value(env) << by if op == "<<" else a.value(env) >> by)

    return Node(a.type, f"({a.text} {op} {b.text})", value)


def _bits(n: Node, env: Env) -> int:
    return n.value(env) % (1 << n.type.width)


def _cast(t: Type, a: Node) -> Node:
    return Node(t, f"(({t}){a.text})", lambda env: t.wrap(a.value(env)))


@st.composite
def expressions(draw: st.DrawFn, t: Type, inputs: dict[str, Type], depth: int) -> Node:
    """An expression of type `t` over the input fields."""
    leaves = [name for name, u in inputs.items() if u == t]
    kinds = ["literal"] + ["input"] * (3 if leaves else 0)
    if depth > 0:
        kinds += ["raw", "raw", "saturating", "unary", "shift", "mux", "cast", "any"]
        if not t.signed:
            kinds += ["slice", "concat"] if t.width > 1 else ["slice"]
    kind = draw(st.sampled_from(kinds))

    def sub(u: Type) -> Node:
        return draw(expressions(u, inputs, depth - 1))

    match kind:
        case "literal":
            return draw(literals(t))
        case "input":
            name = draw(st.sampled_from(leaves))
            return Node(t, f"x_{name}", lambda env: env[name])
        case "raw":
            return _raw(draw(st.sampled_from(list(_RAW))), sub(t), sub(t))
        case "saturating":
            return _saturating(draw(st.sampled_from(["|+|", "|-|"])), sub(t), sub(t))
        case "unary":
            a = sub(t)
            if draw(st.booleans()):
                return Node(t, f"(~{a.text})", lambda env: t.wrap(~a.value(env)))
            return Node(t, f"(-{a.text})", lambda env: t.wrap(-a.value(env)))
        case "shift":
            by = draw(
                st.one_of(
                    st.builds(lambda n: Node(Type(16, False), f"16w{n}", lambda _: n), st.integers(0, t.width + 2)),
                    expressions(Type(draw(st.sampled_from([4, 8, 70, 200])), False), inputs, 0),
                )
            )
            return _shift(draw(st.sampled_from(["<<", ">>"])), sub(t), by)
        case "mux":
            u = draw(types)
            op = draw(st.sampled_from(list(_COMPARE)))
            a, b, x, y = sub(u), sub(u), sub(t), sub(t)
            return Node(
                t, f"({a.text} {op} {b.text} ? {x.text} : {y.text})",
                lambda env: (x if _COMPARE[op](a.value(env), b.value(env)) else y).value(env),
            )
        case "cast":  # same signedness, other width
            return _cast(t, sub(Type(draw(widths), t.signed)))
        case "any":  # same width, other signedness
            return _cast(t, sub(Type(t.width, not t.signed)))
        case "slice":
            extra = draw(st.integers(0, 130))
            a = sub(Type(t.width + extra, draw(st.booleans())))
            lo = draw(st.integers(0, extra))
            return Node(
                t, f"({a.text})[{lo + t.width - 1}:{lo}]", lambda env: _bits(a, env) >> lo & ((1 << t.width) - 1)
            )
    cut = draw(st.integers(1, t.width - 1))
    a, b = sub(Type(cut, False)), sub(Type(t.width - cut, draw(st.booleans())))
    return Node(t, f"({a.text} ++ {b.text})", lambda env: _bits(a, env) << b.type.width | _bits(b, env))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Type], list[Node], list[Env]]:
    """Input fields, expressions over them, and values for the inputs."""
    inputs = {f"f{i}": t for i, t in enumerate(draw(st.lists(types, min_size=2, max_size=5)))}
    chosen = st.one_of(st.sampled_from(list(inputs.values())), types)
    roots = [draw(expressions(draw(chosen), inputs, 3)) for _ in range(draw(st.integers(1, 8)))]
    envs = [
        {name: draw(st.one_of(st.sampled_from(t.range), st.integers(*t.range))) for name, t in inputs.items()}
        for _ in range(3)
    ]
    return inputs, roots, envs


def header(name: str, fields: dict[str, Type]) -> tuple[str, int]:
    """A header declaration, padded to whole bytes, and the padding."""
    pad = -sum(t.width for t in fields.values()) % 8
    lines = [f"{t} {n};" for n, t in fields.items()] + ([f"bit<{pad}> pad;"] if pad else [])
    return f"header {name} {{ {' '.join(lines)} }}\n", pad


def pack(fields: dict[str, Type], values: Env, pad: int) -> bytes:
    bits = 0
    for name, t in fields.items():
        bits = bits << t.width | values[name] % (1 << t.width)
    size = sum(t.width for t in fields.values()) + pad
    return (bits << pad).to_bytes(size // 8, "big")


def check(inputs: dict[str, Type], roots: list[Node], envs: list[Env]) -> None:
    outputs = {f"r{i}": node.type for i, node in enumerate(roots)}
    in_text, in_pad = header("in_t", inputs)
    out_text, out_pad = header("out_t", outputs)
    reads = "".join(f"{t} x_{n} = hdr.i.{n};\n" for n, t in inputs.items())
    body = "".join(f"hdr.o.r{i} = {node.text};\n" for i, node in enumerate(roots))
    source = program(in_text + out_text, body, locals_=reads)
    note(source)
    frames = [pack(inputs, env, in_pad) for env in envs]
    for env, got in zip(envs, run(source, frames), strict=True):
        want = pack(outputs, {f"r{i}": node.value(env) for i, node in enumerate(roots)}, out_pad)
        assert got.hex() == want.hex(), env


@given(cases())
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_expressions_have_their_value(case: tuple[dict[str, Type], list[Node], list[Env]]) -> None:
    """Whatever is computed from header fields comes out as the language says."""
    check(*case)


@pytest.mark.parametrize("signed", [True, False])
def test_constants_saturate_at_both_ends_of_their_type(signed: bool) -> None:
    """Every sum and difference of two constants of four bits that does not fit is the nearest value that does."""
    low, high = Type(4, signed).range
    for a in range(low, high + 1):
        for b in range(low, high + 1):
            assert consteval.binary("|+|", a, b, Bits(4, signed)) == min(max(a + b, low), high)
            assert consteval.binary("|-|", a, b, Bits(4, signed)) == min(max(a - b, low), high)
