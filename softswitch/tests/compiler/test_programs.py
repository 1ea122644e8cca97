# SPDX-License-Identifier: Apache-2.0
"""Whole programs against what BMv2 made of the same frames, and what a compilation hands out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from softswitch.compiler import lower_base, parser
from softswitch.compiler.driver import CompileError, compile_file, compile_source
from softswitch.engine.linking import RUNTIME
from softswitch.engine.local import LocalEngine
from softswitch.stf import runner as stf
from switch_support import ROOT
from switch_support.compiler import program, run

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted((HERE / "programs").glob("*.stf"))
ROUTER = ROOT / "examples" / "router.p4"
TABLES = HERE / "programs" / "tables.p4"


@pytest.mark.parametrize("script", PROGRAMS, ids=lambda p: p.stem)
def test_program_does_what_bmv2_did(script: Path) -> None:
    """Every recorded frame comes out bit for bit."""
    report = stf.run(script.with_suffix(".p4"), script)

    assert report.passed, str(report)


def test_preprocessed_text_is_the_whole_program() -> None:
    """Compiling `preprocessed`, away from all files, gives the same C and the same P4Info."""
    whole = compile_file(ROUTER)
    again = compile_source(whole.preprocessed, str(ROUTER))

    assert "#include" not in whole.preprocessed
    assert again.c_source == whole.c_source
    assert again.p4info == whole.p4info


def test_compiling_twice_gives_equal_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing depends on hashes or addresses: the cache of built programs relies on it."""
    texts = []
    for folder in ("a", "b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
        texts.append(compile_file(ROUTER).c_source)

    assert texts[0] == texts[1]


def test_known_program_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second compilation of a text parses nothing and gives the same; a damaged cache is made anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = compile_file(TABLES)
    with monkeypatch.context() as patch:
        patch.setattr(parser, "parse", lambda *_: pytest.fail("parsed again"))
        assert compile_file(TABLES) == first
    for entry in (tmp_path / "softswitch").glob("program-*"):
        entry.write_bytes(entry.read_bytes()[:100] + b"\xff")

    assert compile_file(TABLES).p4info == first.p4info


def test_generated_c_names_the_p4_lines() -> None:
    """The generated C has comments with the lines of the P4 source."""
    source = compile_file(ROUTER).c_source

    assert re.search(r"/\* .*router\.p4:\d+ \*/", source)
    assert '#include "wide.h"' in source
    assert (RUNTIME / "wide.h").exists()


def test_ir_can_be_printed() -> None:
    """The dump shows stages, states, tables with their actions, and positions."""
    dump = compile_file(ROUTER).dump_ir()

    assert "\nparse:\n" in dump
    assert re.search(r"apply RouterIngress\.routes\(", dump)
    assert re.search(r"on RouterIngress\.route\(", dump)
    assert re.search(r"// .*router\.p4:\d+", dump)


HEADERS = "header in_t { bit<8> a; bit<8> b; bit<16> c; }\nheader out_t { bit<8> a; bit<8> b; bit<16> c; }\n"


@pytest.mark.parametrize(
    ("locals_", "body", "want"),
    [
        ("", "bit<8> t = hdr.i.a; t += 1; t <<= 1; hdr.o.a = t;", "0400 0000"),
        ("", "bit<16> t = hdr.i.c; t[11:4] = 0xff; hdr.o.c = t;", "0000 1ff4"),
        ("", "for (bit<8> i = 1; i < 5; i = i + 1) { if (i == 3) { continue; } hdr.o.a = hdr.o.a + i; }", "0700 0000"),
        ("", "for (bit<8> i in 2 .. 4) { hdr.o.a = hdr.o.a * 10 + i; }", "ea00 0000"),
        ("", "for (bit<8> i in 250 .. 255) { hdr.o.a = hdr.o.a + 1; }", "0600 0000"),
        ("", "for (bit<8> i in {1, 5, 7}) { if (i == 7) { break; } hdr.o.a = hdr.o.a + i; }", "0600 0000"),
        ("action f(inout bit<8> x, in bit<8> y) { x = 9; hdr.o.b = y; }", "hdr.o.a = 5; f(hdr.o.a, hdr.o.a);",
         "0905 0000"),
        ("action f(out bit<8> x) { x = 3; if (hdr.i.a == 1) { exit; } x = 4; }", "f(hdr.o.a); hdr.o.b = 1;",
         "0300 0000"),
        ("action f(out bit<8> x, inout bit<8> y) { x = 1; y = y + 1; }", "hdr.o.a = 7; f(hdr.o.a, hdr.o.a);",
         "0800 0000"),
        ("", "{ const bit<8> K = 4; hdr.o.a = K == 4 ? 8w1 : K; }", "0100 0000"),
        ("", "hdr.o.c = (bit<16>)(int<16>)(int<8>)(hdr.i.a - 3);", "0000 fffe"),
        ("", "in_t x = { 1, 2, 3 }; in_t y = x; if (x == y && y.isValid()) { hdr.o = { y.b, y.a, 7 }; }", "0201 0007"),
        ("", "out_t x = {#}; hdr.o.a = 1; if (!x.isValid()) { hdr.o.b = 2; }", "0102 0000"),
        ("", "hdr.o = { a = 1, ... };", "0100 0000"),
        ("", "hdr.o.a = ((bit<8>)1 << 9) + (8w0x80 >> 7); hdr.o.b = (bit<8>)((int<8>)-128 >> 20);", "01ff 0000"),
        ("", "hdr.o.a = hdr.i.a > 0 ? 8w3 : 4;", "0300 0000"),
    ],
)
def test_statements(locals_: str, body: str, want: str) -> None:
    """Each case is one behaviour of statements, on the frame 01 02 1234."""
    source = program(HEADERS, body, locals_=locals_)

    assert run(source, [bytes.fromhex("01021234")]) == [bytes.fromhex(want)]


def test_endless_loop_ends() -> None:
    """A loop without an end is cut off: no packet can hang the switch, and the next one passes."""
    source = program(
        HEADERS, "hdr.o.a = 1; for (bit<8> i = 0; hdr.i.a == 1; i = i + 1) { hdr.o.b = hdr.o.b + 1; } hdr.o.c = 5;"
    )

    first, second = run(source, [bytes.fromhex("01000000"), bytes.fromhex("02000000")])

    assert len(first) == 4
    assert second.hex() == "01000005"


def test_deparser_never_writes_past_its_room() -> None:
    """A program may put 5120 bytes in front of the payload; a frame that would need more is dropped and counted."""
    declarations = "header in_t { bit<8> a; }\nheader out_t { bit<2048> w; }\n"
    most, more = (program(declarations, "hdr.o.w = 1;").replace("p.emit(h.o);", "p.emit(h.o); " * n) for n in (20, 21))

    assert run(most, [b"\x01tail"]) == [(bytes(255) + b"\x01") * 20 + b"tail"]
    with LocalEngine.open(compile_source(more, "more.p4")) as engine:
        assert engine.inject(0, b"\x01tail") == []
        assert engine.stats().dropped_oversize == 1


def test_deep_nesting_compiles_and_bottomless_nesting_is_refused() -> None:
    """Deep nesting compiles, and nesting beyond the limit is refused without a crash."""
    long_sum = program(HEADERS, "hdr.o.a = " + " + ".join(["hdr.i.a"] * 700) + ";")

    assert run(long_sum, [bytes.fromhex("01021234")])[0][0] == 700 % 256
    with pytest.raises(CompileError, match="nests too deeply"):
        compile_source(program(HEADERS, f"hdr.o.a = {'(' * 20000}1{')' * 20000};"))


def test_exponential_inlining_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions that call actions twice, thirty deep, end in an error and not in a full memory."""
    monkeypatch.setattr(lower_base, "MAX_STATEMENTS", 10_000)  # a twentieth, which takes a twentieth of the time
    actions = "action f0() { hdr.o.a = hdr.o.a + 1; }\n"
    actions += "".join(f"action f{i}() {{ f{i - 1}(); f{i - 1}(); }}\n" for i in range(1, 31))

    with pytest.raises(CompileError, match="statements when calls are inlined"):
        compile_source(program(HEADERS, "f30();", locals_=actions))


def test_sizes_may_stand_after_the_name() -> None:
    """`header_t name[4]` declares a stack in a struct, as a variable, as a parameter and in a typedef, as in p4c."""
    declarations = """
header item_t { bit<8> v; }
typedef item_t pair_t[2];
header in_t { bit<8> a; }
header out_t { bit<8> a; bit<8> b; bit<8> c; }
struct nest_t { item_t items[2]; pair_t pair; }
bit<8> last(in item_t s[2]) { return s[1].v; }
"""
    body = """
        item_t stack[2];
        stack[0].setValid();
        stack[1].setValid();
        stack[1].v = hdr.i.a;
        meta.n.items[1].setValid();
        meta.n.items[1].v = hdr.i.a + 1;
        meta.n.pair[0].setValid();
        meta.n.pair[0].v = hdr.i.a + 2;
        hdr.o.a = last(stack);
        hdr.o.b = meta.n.items[1].v;
        hdr.o.c = meta.n.pair[0].v;
"""
    assert run(program(declarations, body, meta="nest_t n;"), [b"\x05"]) == [b"\x05\x06\x07"]


def test_a_comment_may_be_in_another_encoding(tmp_path: Path) -> None:
    """As for p4c, the bytes of a comment mean nothing."""
    source = tmp_path / "latin1.p4"
    text = program("header in_t { bit<8> a; } header out_t { bit<8> a; }", "hdr.o.a = 7; // caf\u00e9")
    source.write_bytes(text.encode("latin-1"))

    assert run(compile_file(source), [b"\x00"]) == [b"\x07"]
