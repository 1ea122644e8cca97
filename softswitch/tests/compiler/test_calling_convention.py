# SPDX-License-Identifier: Apache-2.0
"""Calls whose arguments have side effects: the order of evaluation, and what is copied when."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from switch_support.bmv2 import Bmv2
from switch_support.call_programs import draw
from switch_support.compiler import program, run

HEADERS = "header in_t { bit<8> a; bit<8> b; }\nheader out_t { bit<8> a; bit<8> b; }\n"
FUNCTIONS = """
bit<8> bump(inout bit<8> x) { x = x + 1; return x; }
bit<8> keep(inout bit<8> x, in bit<8> y) { return x; }
bit<8> clear(inout bit<8> x) { x = 0; return 7; }
"""


def both(body: str, locals_: str = "", declarations: str = "") -> list[tuple[int, int]]:
    """Bytes a and b that leave for frames 10 20 and 200 100."""
    source = program(HEADERS + FUNCTIONS + declarations, body, locals_=locals_)
    left = run(source, [bytes([10, 20]), bytes([200, 100])])
    return [(frame[0], frame[1]) for frame in left]


def test_an_inout_argument_is_read_before_later_arguments_change_it() -> None:
    """The callee sees x as it was, and what it leaves in x is what x is in the end."""
    assert both("bit<8> x = hdr.i.a; hdr.o.a = keep(x, bump(x)); hdr.o.b = x;") == [(10, 10), (200, 200)]


def test_named_arguments_are_evaluated_as_they_are_written() -> None:
    """y = bump(x) stands first, so the callee sees the new x."""
    assert both("bit<8> x = hdr.i.a; hdr.o.a = keep(y = bump(x), x = x); hdr.o.b = x;") == [(11, 11), (201, 201)]


def test_a_slice_as_an_inout_argument_is_read_in_its_turn_and_copied_back_in_its_turn() -> None:
    """Of x[3:0] and x, x is copied back last; the place of a slice is found once."""
    functions = "bit<8> two(inout bit<4> n, inout bit<8> x) { n = 0; x = x + 1; return x; }\n"
    assert both("bit<8> x = hdr.i.a; hdr.o.a = two(x[3:0], x); hdr.o.b = x;", declarations=functions) == [
        (11, 11), (201, 201)]


def test_an_extern_finds_the_place_of_its_result_before_it_evaluates_its_index() -> None:
    """The register is read at the new i, and the result goes to where the old i points."""
    locals_ = "register<bit<8>>(16) cells;"
    body = """
        cells.write(1, hdr.i.b);
        bit<8> i = 0;
        bit<8> x = hdr.i.a;
        cells.read(x, (bit<32>) bump(i));
        hdr.o.a = x; hdr.o.b = i;
    """
    assert both(body, locals_) == [(20, 1), (100, 1)]


def test_the_parts_of_a_list_are_evaluated_from_left_to_right() -> None:
    """The first part is x before bump() changed it."""
    declarations = "struct pair_t { bit<8> x; bit<8> y; }\nbit<8> first(in pair_t p) { return p.x; }\n"
    body = "bit<8> x = hdr.i.a; hdr.o.a = first({x, bump(x)}); hash(hdr.o.b, HashAlgorithm.identity, 8w0, " \
           "{x, clear(x)}, 16w256);"
    # identity is the number that the bytes make: the second byte counts, modulo 256
    assert both(body, declarations=declarations) == [(10, 7), (200, 7)]


@pytest.mark.parametrize("seed", range(3))
def test_random_calls_leave_what_the_specification_says(seed: int) -> None:
    """Nested calls, slices, stack elements, conditions, registers and an action, in one program."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    drawn = draw(rng, statements=25)
    frames = [rng.randbytes(8) for _ in range(10)]

    assert [f.hex() for f in run(drawn.source, frames)] == [drawn.expected(f).hex() for f in frames]


@pytest.mark.needs("bmv2")
def test_random_calls_leave_what_they_leave_on_bmv2(tmp_path: Path) -> None:
    """The same programs on p4c and BMv2."""
    rng = random.Random(4)
    drawn = draw(rng, statements=12)
    source = tmp_path / "calls.p4"
    source.write_text(drawn.source)
    frames = [(0, rng.randbytes(8)) for _ in range(10)]
    expected = [[(1, drawn.expected(data))] for _, data in frames]
    with Bmv2(source, tmp_path, ports=2) as bmv2:
        bmv2.inject(frames, expected)
        theirs = bmv2.outputs({1: len(frames)})[1]

    assert [f.hex() for f in theirs] == [drawn.expected(data).hex() for _, data in frames]
