# SPDX-License-Identifier: Apache-2.0
"""Wide values where they are held by several, changed in place, kept by registers and copied with packets.

A value whose width is a multiple of 64 is a byte string that variables share, another one an array of limbs; 2048 and
200 bits stand for the two, and no program can tell them apart.
"""

from __future__ import annotations

import random
from binascii import crc32
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from softswitch.compiler.cell_reads import referring_reads
from softswitch.compiler.driver import compile_source
from softswitch.compiler.ir import U32, Assign, BinaryOp, Const, Extern, If, Instruction, Label, Var
from softswitch.compiler.types import BOOL, Bits
from softswitch.engine.entities import CloneSession, EventKind
from softswitch.engine.local import LocalEngine
from switch_support.checksum import checksum

OPERATIONS = {
    "swap": "bit<W> t = h.a.w; h.a.w = h.b.w; h.b.w = t;",
    "in_place": "h.a.w = h.a.w + h.b.w; h.b.w = h.a.w; h.a.w[15:0] = 16w0xbeef; h.a.w[W-1:W-3] = 3w5;",
    "read_before_write": "cells.read(x, 0); cells.write(0, h.a.w); h.b.w = x;",
    "held_over_a_write": "cells.read(x, 0); h.a.w = x; cells.write(0, h.b.w);",
    "held_in_part": "cells.read(x, 0); h.a.w = (bit<W>) x[W-9:8]; cells.write(0, h.b.w);",
    "written_in_a_branch": "cells.read(x, 0); if (h.b.w != 0) { cells.write(0, h.a.w); } h.b.w = x;",
    "accumulate": "cells.read(x, 0); h.a.w = x + h.a.w; cells.write(0, h.a.w); cells.read(x, 1); "
                  "h.b.w = x - h.b.w; cells.write(1, h.b.w);",
    "beyond_the_end": "cells.read(h.a.w, 4); cells.write(4, h.b.w);",
    "halves": "h.b.w = h.a.w[W/2-1:0] ++ h.a.w[W-1:W/2]; h.a.w = (bit<W>) h.b.w[W-9:0];",
    "anew": "h.a.setInvalid(); h.a.setValid(); h.b.w = h.b.w + h.s[1].w;",
    "stack": "h.s[0] = h.a; h.s.push_front(1); h.s[0] = h.b; h.a.w = 1;",
    "index": "bit<8> i = (bit<8>) h.a.w[0:0]; h.s[0].setValid(); h.s[1].setValid(); h.s[i].w = h.b.w;",
    "choose": "h.a.w = h.a.w < h.b.w ? h.b.w : h.a.w; x = h.a.w ^ h.b.w; h.b.w = h.a.w == h.b.w ? 1 : x;",
    "signed": "h.b.w = (bit<W>) ((int<W>) h.a.w >> 5); h.a.w = (bit<W>) (int<W>) (int<24>) h.a.w[23:0];",
    "resubmit": "if (sm.instance_type == 6) { h.b.w = m.kept; } else { m.kept = h.a.w + 1; "
                "resubmit_preserving_field_list(1); }",
    "recirculate": "if (sm.instance_type == 4) { h.b.w = m.kept; } else { m.again = 1; m.kept = h.b.w; "
                   "h.a.w = h.a.w + 1; }",
    "clone": "m.kept = h.a.w; h.a.w = 7; clone_preserving_field_list(CloneType.I2E, 5, 1);",
    "table": "found.apply();",
    "digest": "digest<bits_t>(1, { h.a.w }); log_msg(\"{}\", { h.b.w });",
    "sum": "x = h.a.w;",
    "hash": "hash(h.c.crc, HashAlgorithm.crc32, 32w0, { h.op.op, h.a.w, 8w9, h.b.w }, 64w0x100000000);",
}
NAMES = list(OPERATIONS)
SOURCE = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<8> op; }
header word_t { bit<W> w; }
header crc_t { bit<32> crc; bit<16> sum; }
struct headers_t { op_t op; word_t a; word_t b; crc_t c; word_t[2] s; }
struct meta_t { @field_list(1) bit<W> kept; bit<8> again; }
struct bits_t { bit<W> w; }
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.op); p.extract(h.a); p.extract(h.b); p.extract(h.c); transition accept; }
}
control Check(inout headers_t h, inout meta_t m) { apply {} }
control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    register<bit<W>>(4) cells;
    bit<W> x = 0;
    action take(bit<W> value) { h.b.w = value; }
    table found { key = { h.a.w: exact; } actions = { take; NoAction; } default_action = NoAction();
                  const entries = { 3: take(9); } }
BODY
    apply { sm.egress_spec = 1; ALL }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        if (sm.instance_type == 1) { h.b.w = m.kept; }
        if (m.again == 1) { recirculate_preserving_field_list(1); }
    }
}
control Make(inout headers_t h, inout meta_t m) { apply {
    update_checksum(h.op.op == SUM, { h.a.w, 8w1, h.b.w, h.op.op }, h.c.sum, HashAlgorithm.csum16);
} }
control Write(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Check(), Work(), Out(), Make(), Write()) main;
"""


@dataclass
class Switch:
    """The program with words of one width."""

    width: int
    engine: LocalEngine

    def word(self, value: int) -> bytes:
        return (value % (1 << self.width)).to_bytes(self.width // 8, "big")

    def send(self, name: str, a: int, b: int) -> list[list[int]]:
        """Of each frame that leaves: a, b, CRC and checksum as one number, and the words of the stack."""
        frame = bytes([NAMES.index(name)]) + self.word(a) + self.word(b) + bytes(6) + b"payload"
        size, found = self.width // 8, []
        for _, out in self.engine.inject(0, frame):
            assert out[0] == NAMES.index(name)
            assert out.endswith(b"payload")
            rest = out[7 + 2 * size : -7]
            words = [out[1 : 1 + size], out[1 + size : 1 + 2 * size], out[1 + 2 * size : 7 + 2 * size]]
            words += [rest[i : i + size] for i in range(0, len(rest), size)]
            found.append([int.from_bytes(word, "big") for word in words])
        return found


@pytest.fixture(scope="module", params=[2048, 200])
def switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    width: int = request.param
    actions = "".join(f"    action {name}() {{ {body} }}\n" for name, body in OPERATIONS.items() if "if (" not in body
                      and "apply" not in body)
    chain = "".join(
        f"if (h.op.op == {i}) {{ {f'{name}();' if f'action {name}()' in actions else body} }}\n"
        for i, (name, body) in enumerate(OPERATIONS.items())
    )
    text = SOURCE.replace("BODY", actions).replace("ALL", chain).replace("SUM", str(NAMES.index("sum")))
    with LocalEngine.open(compile_source(text, "wide.p4", defines={"W": str(width)})) as engine:
        yield Switch(width, engine)


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def test_values_are_those_of_whole_numbers(switch: Switch) -> None:
    """Whoever holds a value keeps it while others change theirs, in headers, variables, registers and stacks."""
    draw = random.Random(switch.width)
    width, engine = switch.width, switch.engine
    engine.write_clone_session("insert", CloneSession(5, ((2, 0),)))
    cells = engine.register("cells")
    full = (1 << width) - 1

    def sent(name: str) -> tuple[list[list[int]], list[int]]:
        engine.write_register(cells, 0, [old, older])
        out = switch.send(name, a, b)
        return out, engine.read_register(cells, 0, 2)

    for _ in range(20):
        a, b, old, older = (draw.choice([draw.getrandbits(width), 0, 1, full, full ^ 1]) for _ in range(4))

        total, half = (a + b) & full, width // 2
        mixed = (a & (1 << half) - 1) << half | a >> half
        edited = total & full >> 3 & ~0xFFFF | 0xBEEF | 5 << (width - 3)
        assert sent("swap") == ([[b, a, 0]], [old, older])
        assert sent("in_place") == ([[edited, total, 0]], [old, older])
        assert sent("read_before_write") == ([[a, old, 0]], [a, older])
        assert sent("held_over_a_write") == ([[old, b, 0]], [b, older])
        assert sent("held_in_part") == ([[(old >> 8) & (full >> 16), b, 0]], [b, older])
        assert sent("written_in_a_branch") == ([[a, old, 0]], [a if b else old, older])
        sums = [(old + a) & full, (older - b) & full]
        assert sent("accumulate") == ([[*sums, 0]], sums)
        assert sent("beyond_the_end") == ([[0, b, 0]], [old, older])
        assert sent("halves") == ([[mixed & full >> 8, mixed, 0]], [old, older])
        assert sent("anew") == ([[0, b, 0]], [old, older])
        assert sent("stack") == ([[1, b, 0, b, a]], [old, older])
        assert sent("index") == ([[a, b, 0, *((0, b) if a & 1 else (b, 0))]], [old, older])
        assert sent("choose")[0] == [[max(a, b), 1 if max(a, b) == b else max(a, b) ^ b, 0]]
        assert sent("signed")[0] == [[signed(a & 0xFFFFFF, 24) & full, (signed(a, width) >> 5) & full, 0]]
        assert sent("resubmit")[0] == [[a, (a + 1) & full, 0]]
        assert sent("recirculate")[0] == [[(a + 1) & full, b, 0]]
        assert sorted(sent("clone")[0]) == sorted([[a, a, 0], [7, b, 0]])


def test_values_reach_tables_digests_logs_and_hashes(switch: Switch) -> None:
    """Keys, parameters, digests, logs and hashes have the bytes that the wire has."""
    a, b = random.Random(1).getrandbits(switch.width), random.Random(2).getrandbits(switch.width)
    switch.engine.take()
    switch.engine.events.clear()

    assert switch.send("table", 3, b) == [[3, 9, 0]]
    assert switch.send("table", 4, b) == [[4, b, 0]]
    data = bytes([NAMES.index("hash")]) + switch.word(a) + b"\x09" + switch.word(b)
    assert switch.send("hash", a, b) == [[a, b, crc32(data) << 16]]
    data = switch.word(a) + b"\x01" + switch.word(b) + bytes([NAMES.index("sum")])
    assert switch.send("sum", a, b) == [[a, b, checksum(data)]]
    switch.send("digest", a, b)
    events = {event.kind: event.data for event in switch.engine.events}
    assert events[EventKind.DIGEST] == switch.word(a)
    assert int(events[EventKind.LOG].decode(), 16) == b


def reads(*body: Instruction) -> bool:
    """True if the first instruction may refer to its cell."""
    return id(body[0]) in referring_reads(list(body))


def test_a_read_refers_to_its_cell_only_while_nothing_can_change_it() -> None:
    """A variable that is used up before the register is written may point into the register; no other one."""
    wide = Bits(256)
    x, y, other = Var(wide, "x"), Var(wide, "y"), Var(wide, "other", "state")
    register, at, one = object(), Const(U32, 0), Const(wide, 1)
    read = Extern("register_read", x, [at], register)
    write = Extern("register_write", None, [at, one], register)
    computes = Assign(other, BinaryOp(wide, "+", x, one))
    again = Extern("register_read", x, [at], register)
    assert reads(read, computes, write)
    assert reads(read, write, again, computes)
    assert reads(read, Extern("register_write", None, [at, x], register))
    assert not reads(read, write, computes), "the cell has changed"
    assert not reads(read, Assign(y, x), write), "another variable holds it"
    assert not reads(read, If(Const(BOOL, 1), [write], []), computes), "the cell may have changed"
    assert not reads(read, If(Const(BOOL, 1), [computes], [])), "used in a list that did not read it"
    assert not reads(read, Label("here"), computes), "others may come to the label"
    assert reads(read, Extern("register_write", None, [at, one], object()), computes), "another register's cell"
