# SPDX-License-Identifier: Apache-2.0
"""Random programs whose arguments have side effects, with an evaluator of P4's calling convention.

P4_16 1.2.5, section 6.8: arguments are evaluated from left to right as the call writes them (an inout argument is
read then, and the place of an out or inout argument is found then), the body works on copies, and what is out or inout
is copied back from left to right at the end. The evaluator does just that on numbers; it shares nothing with the
compiler. Variables are bytes: the fields of the header that leaves, and a header stack of the same size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

VARIABLES = 4
Env = dict[str, int]
Place = tuple[str, int, int]
"""A variable and the bits of it, highest and lowest, that an l-value names."""


@dataclass(frozen=True)
class Function:
    """A function of the generated program: directions and widths of its parameters, and what it does to its copies."""

    name: str
    params: tuple[tuple[str, str, int], ...]  # direction, name, width
    text: str
    run: Callable[[Env], int]
    width: int = 8

    @property
    def declaration(self) -> str:
        params = ", ".join(f"{d} bit<{w}> {n}" for d, n, w in self.params)
        return f"bit<{self.width}> {self.name}({params}) {{ {self.text} }}\n"


def _bump(e: Env) -> int:
    e["a"] = (e["a"] + 1) & 0xFF
    return e["a"]


def _swap(e: Env) -> int:
    e["a"], e["b"] = e["b"], e["a"]
    return (e["a"] + 3 * e["b"]) & 0xFF


def _mix(e: Env) -> int:
    e["c"] = e["a"] ^ e["b"]
    e["b"] = (e["b"] + e["a"]) & 0xFF
    return (e["c"] + 3) & 0xFF


def _chain(e: Env) -> int:
    e["a"] = (e["a"] + e["b"]) & 0xFF
    e["c"] = (3 * e["c"] + e["a"]) & 0xFF
    return e["b"]


def _nibble(e: Env) -> int:
    e["a"] = (e["a"] + e["b"] + 1) & 0xF
    return e["a"] ^ 5


FUNCTIONS = (
    Function("bump", (("inout", "a", 8),), "a = a + 1; return a;", _bump),
    Function("swap", (("inout", "a", 8), ("inout", "b", 8)), "bit<8> t = a; a = b; b = t; return a + 3 * b;", _swap),
    Function("mix", (("in", "a", 8), ("inout", "b", 8), ("out", "c", 8)),
             "c = a ^ b; b = b + a; return c + 3;", _mix),
    Function("chain", (("inout", "a", 8), ("in", "b", 8), ("inout", "c", 8)),
             "a = a + b; c = 3 * c + a; return b;", _chain),
    Function("nibble", (("inout", "a", 4), ("in", "b", 4)), "a = a + b + 1; return a ^ 5;", _nibble, 4),
)


@dataclass(frozen=True)
class Value:
    """An expression: its text and its value, which changes the variables where the text does."""

    text: str
    value: Callable[[Env], int]


@dataclass(frozen=True)
class Target:
    """An l-value: its text and what finds its place."""

    text: str
    place: Callable[[Env], Place]


def _read(env: Env, place: Place) -> int:
    name, high, low = place
    return env[name] >> low & (1 << high - low + 1) - 1


def _write(env: Env, place: Place, value: int) -> None:
    name, high, low = place
    mask = (1 << high - low + 1) - 1 << low
    env[name] = env[name] & ~mask | value << low & mask


class Generator:
    """Draws statements. `depth` limits how far calls nest."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def target(self, width: int, depth: int) -> Target:
        if width == 4:
            name, low = f"x{self.rng.randrange(VARIABLES)}", self.rng.choice([0, 2, 4])
            return Target(f"hdr.o.{name}[{low + 3}:{low}]", lambda _: (name, low + 3, low))
        if depth > 0 and self.rng.random() < 0.3:
            index = self.value(8, depth - 1)
            return Target(f"hdr.s[({index.text}) & 3].v", lambda env: (f"s{index.value(env) & 3}", 7, 0))
        name = f"x{self.rng.randrange(VARIABLES)}"
        return Target(f"hdr.o.{name}", lambda _: (name, 7, 0))

    def value(self, width: int, depth: int) -> Value:
        kind = self.rng.choice(["call", "call", "call", "binary", "mux", "read"]) if depth > 0 else "leaf"
        if kind == "leaf" and self.rng.random() < 0.2:
            number = self.rng.randrange(1 << width)
            return Value(f"{width}w{number}", lambda _: number)
        if kind in ("leaf", "read"):
            target = self.target(width, depth)
            return Value(target.text, lambda env: _read(env, target.place(env)))
        if kind == "call":
            return self.call(self.rng.choice([f for f in FUNCTIONS if f.width == width]), depth)
        a, b = self.value(width, depth - 1), self.value(width, depth - 1)
        if kind == "mux":
            condition = self.condition(depth - 1)
            text = f"({condition.text} ? {a.text} : {b.text})"
            return Value(text, lambda env: a.value(env) if condition.value(env) else b.value(env))
        if self.rng.random() < 0.5:
            return Value(f"({a.text} + {b.text})", lambda env: (a.value(env) + b.value(env)) % (1 << width))
        return Value(f"({a.text} ^ {b.text})", lambda env: a.value(env) ^ b.value(env))

    def condition(self, depth: int) -> Value:
        a, b = self.value(8, depth), self.value(8, depth)
        less = Value(f"({a.text} < {b.text})", lambda env: a.value(env) < b.value(env))
        if depth <= 0 or self.rng.random() < 0.5:
            return less
        other = self.condition(depth - 1)
        if self.rng.random() < 0.5:
            return Value(f"({less.text} && {other.text})", lambda env: less.value(env) and other.value(env))
        return Value(f"({less.text} || {other.text})", lambda env: less.value(env) or other.value(env))

    def call(self, function: Function, depth: int) -> Value:
        args: list[tuple[str, str, Value | Target]] = []
        for direction, name, width in function.params:
            drawn = self.value(width, depth - 1) if direction == "in" else self.target(width, depth - 1)
            args.append((direction, name, drawn))
        named = self.rng.random() < 0.2
        if named:
            self.rng.shuffle(args)
        texts = [f"{name} = {arg.text}" if named else arg.text for _, name, arg in args]

        def run(env: Env) -> int:
            inside: Env = {}
            places: list[tuple[str, Place]] = []
            for direction, name, arg in args:
                if isinstance(arg, Value):
                    inside[name] = arg.value(env)
                else:
                    place = arg.place(env)
                    places.append((name, place))
                    inside[name] = 0 if direction == "out" else _read(env, place)
            result = function.run(inside)
            for name, place in places:
                _write(env, place, inside[name])
            return result

        return Value(f"{function.name}({', '.join(texts)})", run)

    def statement(self, depth: int) -> tuple[str, Callable[[Env], None]]:
        kind = self.rng.random()
        if kind < 0.3:
            return self.extern_or_action(depth - 1)
        width = self.rng.choice([8, 8, 8, 4])
        value = self.value(width, depth)
        if kind > 0.85:
            condition = self.condition(depth)
            inner_text, inner = self.statement(depth - 1)

            def branch(env: Env) -> None:
                if condition.value(env):
                    inner(env)

            return f"if ({condition.text}) {{ {inner_text} }}", branch
        target = self.target(width, depth)

        def assign(env: Env) -> None:
            place = target.place(env)
            _write(env, place, value.value(env))

        return f"{target.text} = {value.text};", assign

    def extern_or_action(self, depth: int) -> tuple[str, Callable[[Env], None]]:
        """A read or write of a register, whose index may change the variables, or a call of the action."""
        kind = self.rng.choice(["read", "write", "action"])
        # BMv2 does not write what a register held to a stack element whose index is not a constant
        target = self.target(8, 0 if kind == "read" else depth)
        number, other = self.value(8, depth), self.value(8, depth)
        index = f"(bit<32>) (({number.text}) & 3)"

        def read(env: Env) -> None:
            place = target.place(env)
            _write(env, place, env[f"r{number.value(env) & 3}"])

        def write(env: Env) -> None:
            at = number.value(env) & 3
            env[f"r{at}"] = other.value(env)

        def action(env: Env) -> None:
            place = target.place(env)
            a = _read(env, place)
            b = number.value(env)
            env["x0"] = (env["x0"] + b) & 0xFF
            a = (a + env["x0"]) & 0xFF
            env["x1"] = b
            _write(env, place, a)

        if kind == "read":
            return f"cells.read({target.text}, {index});", read
        if kind == "write":
            return f"cells.write({index}, {other.text});", write
        return f"touch({target.text}, {number.text});", action


_HEAD = """
#include <core.p4>
#include <v1model.p4>
header all_t { bit<8> x0; bit<8> x1; bit<8> x2; bit<8> x3; }
header one_t { bit<8> v; }
struct headers_t { all_t o; one_t[4] s; }
struct meta_t { }
"""
_TAIL = """
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    state start { p.extract(h.o); p.extract(h.s.next); p.extract(h.s.next); p.extract(h.s.next); p.extract(h.s.next);
        transition accept; }
}
control NoCheck(inout headers_t h, inout meta_t m) { apply { } }
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) { apply { } }
control Write(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), NoCheck(), Work(), NoEgress(), NoCheck(), Write()) main;
"""


@dataclass(frozen=True)
class CallProgram:
    """A generated program, and what it does to a frame of eight bytes: its variables, then its stack."""

    source: str
    statements: tuple[tuple[str, Callable[[Env], None]], ...]

    def expected(self, frame: bytes) -> bytes:
        names = [f"x{i}" for i in range(VARIABLES)] + [f"s{i}" for i in range(VARIABLES)]
        env = dict(zip(names, frame, strict=True))
        env.update((f"r{i}", i + 1) for i in range(VARIABLES))
        for _, run in self.statements:
            run(env)
        return bytes(env[name] for name in names)


def draw(rng: random.Random, *, statements: int, depth: int = 2) -> CallProgram:
    """A program of so many statements."""
    generator = Generator(rng)
    return of([generator.statement(depth) for _ in range(statements)])


def of(drawn: Sequence[tuple[str, Callable[[Env], None]]]) -> CallProgram:
    """The program of these statements."""
    body = "\n".join(f"        {text}" for text, _ in drawn)
    cells = "".join(f"        cells.write({i}, {i + 1});\n" for i in range(VARIABLES))
    functions = "".join(f.declaration for f in FUNCTIONS)
    work = ("control Work(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {\n"
            "    register<bit<8>>(4) cells;\n"
            "    action touch(inout bit<8> a, in bit<8> b) {\n"
            "        hdr.o.x0 = hdr.o.x0 + b; a = a + hdr.o.x0; hdr.o.x1 = b; }\n"
            f"    apply {{\n{cells}"
            f"        sm.egress_spec = 1;\n{body}\n    }}\n}}")
    return CallProgram(_HEAD + functions + work + _TAIL, tuple(drawn))
