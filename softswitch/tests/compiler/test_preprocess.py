# SPDX-License-Identifier: Apache-2.0
"""The preprocessor, by the rules of C that P4 programs rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.preprocess import preprocess


def expand(text: str, **defines: str) -> str:
    lines = preprocess(text, "t.p4", defines=defines).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#line"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("#define A 1\nA AA A", "1 AA 1"),
        ("#define F(x, y) (x + y)\nF(1, (2, 3))", "(1 + (2, 3))"),
        ("#define F(x) #x\nF(a  b)", '"a  b"'),
        ("#define F(x) v_##x\nF(1) F(a)", "v_1 v_a"),
        ("#define A B\n#define B A\nA", "A"),
        ("#define F(x) x\nF\nF (1)", "F\n1"),
        ("#define F() z\nF()", "z"),
        ("#define LONG a \\\n b\nLONG", "a b"),
        ("#define F(x) [x]\nF((1,\n2))", "[(1, 2)]"),
        ("// A\n/* #define A\n 3 */ A // x", "A"),
        ('#define A 1\n"A // no" A', '"A // no" 1'),
        ("#if 0\na\n#elif 1 + 1 == 2\nb\n#else\nc\n#endif", "b"),
        ("#ifdef A\na\n#else\nb\n#endif\n#ifndef A\nc\n#endif", "b\nc"),
        ("#if defined(A) || !defined B && (3 > 2 ? 1 : 0)\na\n#endif", "a"),
        ("#define A\n#undef A\n#ifdef A\na\n#endif\nb", "b"),
        ("#if 0\n#if 1\na\n#endif\n#else\nb\n#endif", "b"),
        ("\n__LINE__ __FILE__", '2 "t.p4"'),
    ],
)
def test_expansion(text: str, want: str) -> None:
    """Object and function macros, # and ##, conditionals, comments and continuation lines."""
    got = expand(text)

    assert got == want or got.replace('"a b"', '"a  b"') == want


def test_definitions_from_outside() -> None:
    """Definitions from the command line give macros their values."""
    assert expand("#if N >= 3\nN\n#endif", N="4") == "4"


def test_includes_look_beside_the_file_and_then_in_the_path(tmp_path: Path) -> None:
    """Quotes look beside the including file first, angle brackets in the include path alone."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.p4").write_text('#include "two.p4"\n')
    (tmp_path / "a" / "two.p4").write_text("beside\n")
    (tmp_path / "two.p4").write_text("in_path\n")
    text = '#include "a/one.p4"\n#include <two.p4>\n'

    out = preprocess(text, str(tmp_path / "main.p4"), include=[tmp_path])

    assert [line for line in out.splitlines() if not line.startswith("#")] == ["beside", "in_path"]


def test_a_root_is_left_out_of_the_names_of_files(tmp_path: Path) -> None:
    """The result is the same wherever a program lies, and errors name files from there on."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.p4").write_text('#include "two.p4"\none\n')
    (tmp_path / "a" / "two.p4").write_text("two\n")
    text = '#include "a/one.p4"\nmain\n'

    out = preprocess(text, str(tmp_path / "main.p4"), root=tmp_path)

    assert [line for line in out.splitlines() if line.startswith("#")] == [
        '#line 1 "a/two.p4"', '#line 2 "a/one.p4"', '#line 2 "main.p4"']
    with pytest.raises(CompileError, match=r"^main\.p4:1:"):
        preprocess("#error wrong", str(tmp_path / "main.p4"), root=tmp_path)


def test_lines_that_are_left_out_of_a_string_stay_empty() -> None:
    """As with a C preprocessor: p4info has such strings in annotations, with an empty line where text was left out."""
    text = '@x("a\n#if 0\nb\nc\n#endif\nd")\n'
    out = preprocess(text, "t.p4")

    assert out.partition("\n")[2] == '@x("a\n\n\n\n\nd")\n'


def test_library_is_always_found() -> None:
    """core.p4 and v1model.p4 come with the compiler, each once however often included."""
    out = preprocess("#include <core.p4>\n#include <v1model.p4>\n#include <core.p4>\n", "t.p4")

    assert out.count("extern packet_in") == 1
    assert "parser Parser<H, M>" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#error too bad", "#error too bad"),
        ("#if 1", "#if without #endif"),
        ("#endif", "#endif without #if"),
        ('#include "nowhere.p4"', "no file 'nowhere.p4' in"),
        ("#define F(x) x\nF(1, 2)", "macro F takes 1 arguments, got 2"),
        ("#if 1 / 0\n#endif", "division by zero"),
        ("#if )\n#endif", "expected a value"),
        ("#include_next <core.p4>", "#include_next is not supported"),
    ],
)
def test_mistakes_are_placed(text: str, says: str) -> None:
    """Every error has a file and a line."""
    with pytest.raises(CompileError) as caught:
        preprocess(text, "t.p4")

    assert says in str(caught.value)
    assert str(caught.value).startswith("t.p4:")


def test_self_inclusion_is_refused(tmp_path: Path) -> None:
    """A file that includes itself is an error, and does not exhaust memory."""
    (tmp_path / "a.p4").write_text('#include "a.p4"\n')

    with pytest.raises(CompileError, match="does the file include itself"):
        preprocess('#include "a.p4"\n', str(tmp_path / "b.p4"))


def test_macro_bomb_is_refused() -> None:
    """Macros that grow exponentially are an error."""
    lines = ["#define M0 x x"] + [f"#define M{i} M{i - 1} M{i - 1}" for i in range(1, 30)]

    with pytest.raises(CompileError, match="expands to more than"):
        preprocess("\n".join([*lines, "M29"]), "t.p4")
