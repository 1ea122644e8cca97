# SPDX-License-Identifier: Apache-2.0
"""What of a program reaches the generated C: numbers, and identifiers, comments and strings that we make."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cbuild import cc
from softswitch.compiler import c_text
from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.driver import compile_source
from softswitch.compiler.preprocess import INCLUDE_DIR, LIBRARY, preprocess
from softswitch.engine.linking import RUNTIME
from switch_support import needs

MARKER = "zqMARKERqz"
PROGRAM = """
#include <core.p4>
#include <v1model.p4>
#line 7 "@FILE@"
@NOTE@
header @NAME@_t { bit<8> @NAME@; bit<200> wide; @name("@TEXT@") bit<8> other; }
struct headers_t { @NAME@_t a; }
struct meta_t { @NOTE@ bit<8> m_@NAME@; }
struct told_t { bit<8> f_@NAME@; }
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.a); transition select(h.a.other) { 1: s_@NAME@; default: accept; } }
    state s_@NAME@ { verify(h.a.@NAME@ == 0, error.NoMatch); transition accept; }
}
control Check(inout headers_t h, inout meta_t m) { apply {} }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    @name("r@TEXT@") register<bit<32>>(16) r_@NAME@;
    @NOTE@ action a_@NAME@(bit<9> p_@NAME@) { s.egress_spec = p_@NAME@; }
    @name("t@TEXT@") table t_@NAME@ {
        key = { h.a.other: exact @name("k@TEXT@"); }
        actions = { a_@NAME@; NoAction; }
    }
    apply {
        bit<8> v_@NAME@ = h.a.@NAME@ + 1;
        log_msg("l@TEXT@ {}", { v_@NAME@ });
        digest<told_t>(1, { v_@NAME@ });
        assert(v_@NAME@ != 0);
        t_@NAME@.apply();
        m.m_@NAME@ = v_@NAME@;
    }
}
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply {} }
control Write(packet_out p, in headers_t h) { apply { p.emit(h.a); } }
V1Switch(Parse(), Check(), In(), Out(), Check(), Write()) main;
"""

# What C could take for its own: the end of a comment or string, directives, escapes, trigraphs, other line ends.
BREAKING = st.lists(
    st.sampled_from(["*/", "/*", "//", '\\"', "\\", "\\\\", "'", "??/", "??=", "#", "%n", "%s", "{}", ";", "\t", "\r",
                     "\u2028", "\x0b", "\x7f", "é", "\x00", "x**// C code /*", "*//*", MARKER, "$", "@", "`", " "]),
    max_size=8,
).map("".join)
NAMES = st.one_of(
    st.sampled_from(["main", "system", "__x86_64_", "errno", "stdin", "EOF", "asm", "INT_MAX", "__attribute__", "u_a",
                     "ss_lookup", "state", "_Pragma", "__LINE_", "unix", "linux", "NULL", "s", "p", "sw", "w1", "hit"]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True),
)


def source(**parts: str) -> str:
    """PROGRAM with these parts."""
    text = PROGRAM
    for place in ("FILE", "NOTE", "NAME", "TEXT"):
        text = text.replace(f"@{place}@", parts.get(place, {"NAME": "name", "FILE": "a.p4"}.get(place, "")))
    return text


def c_of(**parts: str) -> str:
    """The generated C of the program with these parts, or "" where it is refused."""
    try:
        return compile_source(source(**parts), parts.get("SOURCE", "pushed.p4"), include=LIBRARY).c_source
    except CompileError:
        return ""


def code_of(c_source: str) -> str:
    """The generated C without comments and strings, as C's own rules delimit them."""
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', " ", c_source, flags=re.DOTALL)


def compiles(c_source: str, folder: Path) -> None:
    """Fails where gcc has anything to say about the generated C."""
    needs.require("sanitizers")
    (folder / "program.c").write_text(c_source)
    subprocess.run(["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-trigraphs",
                    "-Wno-missing-field-initializers", "-Wno-type-limits",
                    f"-I{RUNTIME}", f"-I{cc.HERE}", str(folder / "program.c")], check=True, timeout=60)


def test_a_line_directive_does_not_end_a_comment(tmp_path: Path) -> None:
    """The file name of #line once closed the comment that it stood in: the rest was code of the switch."""
    text = c_of(FILE=f"x**// int {MARKER}(void) {{ return 0; }} /*")

    assert text
    assert MARKER not in code_of(text)
    compiles(text, tmp_path)


@given(st.fixed_dictionaries({"FILE": BREAKING, "TEXT": BREAKING, "NAME": NAMES, "SOURCE": BREAKING}))
@settings(max_examples=60, deadline=None)
@example({"FILE": "x**// C code /*", "TEXT": "", "NAME": "a", "SOURCE": "*/ int x; /*"})
@example({"FILE": "", "TEXT": 'x\\"); system(\\"', "NAME": "a", "SOURCE": "\n#include </etc/passwd>\n"})
def test_no_text_of_a_program_is_code(parts: dict[str, str]) -> None:
    """Names, annotations, strings and #line: outside of comments and strings, only what is ours or u_NAME is left."""
    text = c_of(**parts)

    code = code_of(text)
    assert MARKER not in code
    assert not re.search(r"[\\'#$@`\x00-\x09\x0b-\x1f\x7f-\U0010ffff]|//|/\*|\*/|\bsystem\b|\basm\b",
                         code.replace("#include", ""))
    assert c_text.verify(text) == text if text else True


def test_gcc_takes_what_is_generated_from_hostile_names(tmp_path: Path) -> None:
    """Names that are words, macros and functions of C, and texts with what ends comments and strings."""
    for number, name in enumerate(["system", "__x86_64_", "errno", "EOF", "asm", "INT_MAX", "ss_lookup", "unix"]):
        text = c_of(NAME=name, TEXT='*/ ??/ \\" // \\\\', FILE="*/ // \\", SOURCE=f"{number}*/")
        assert text, name
        compiles(text, tmp_path)


@pytest.mark.parametrize("foreign", [
    "s*/x", '"', "int x;\n#define y", "asm(\"\")", "system", "u_\\\n", "'a'", "u_a $", "/* * */", '"a;b"', "é", "",
])
def test_a_generated_file_with_anything_else_is_refused(foreign: str) -> None:
    """The last look at the finished file, whichever part of the compiler wrote it."""
    good = c_of()
    assert c_text.verify(good) == good
    with pytest.raises(ValueError, match="never writes"):
        c_text.verify(good.replace("static void init", foreign + "\n static void init") if foreign else "")


@pytest.mark.parametrize(("ours", "theirs"), [
    ("bit<32>         instance_type;", "bit<64> instance_type;"),
    ("error           parser_error;", "bit<32> parser_error;"),
    ("in HashAlgorithm algo,", "string algo,"),
    ("bit<32> size);", "bit<64> size);"),
    ("control VerifyChecksum<H, M>(inout H hdr,", "control VerifyChecksum<H, M>(inout M hdr,"),
    ("enum MeterType { packets, bytes }", "enum MeterType { bytes, packets }"),
])
def test_another_architecture_is_refused(ours: str, theirs: str) -> None:
    """A pushed program contains v1model.p4: one with other fields or parameters reached memory that is not its own."""
    define = "#define V1MODEL_VERSION 20200408\n"
    library = "".join((INCLUDE_DIR / file).read_text() for file in ("core.p4", "v1model.p4"))
    library = library.replace('#include "core.p4"', "")
    assert ours in library
    text = source().replace("#include <core.p4>", "").replace("register<bit<32>>", "register<bit<32>, bit<32>>")

    def with_library(library: str) -> str:
        return text.replace("#include <v1model.p4>", define + library)

    compile_source(with_library(library), "good.p4", include=LIBRARY)

    with pytest.raises(CompileError, match=r"declared otherwise|needs 'inout"):
        compile_source(with_library(library.replace(ours, theirs)), "bad.p4", include=LIBRARY)


@pytest.mark.parametrize("what", ['"/etc/passwd"', "</etc/passwd>", '"../include/v1model.p4"', "<../include/core.p4>",
                                  '"/proc/self/environ"', "<./core.p4>", '"lexer.py"'])
def test_a_pushed_program_reads_no_files(what: str) -> None:
    """#include names core.p4 and v1model.p4 alone; the error shows nothing of any file."""
    with pytest.raises(CompileError, match=r"may include core\.p4 and v1model\.p4 alone"):
        preprocess(f"#include {what}\n", "pushed.p4", include=LIBRARY)


def test_a_file_named_like_ours_beside_a_pushed_program_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that the switch runs in is none to look for core.p4 in."""
    (tmp_path / "core.p4").write_text(MARKER)
    monkeypatch.chdir(tmp_path)

    assert MARKER not in preprocess('#include "core.p4"\n', "pushed.p4", include=LIBRARY)
