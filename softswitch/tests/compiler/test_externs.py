# SPDX-License-Identifier: Apache-2.0
"""The effect of v1model's externs on a packet, where it depends on the place of the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.driver import compile_source
from switch_support.bmv2 import Bmv2
from switch_support.compiler import program, run

METERED = program(
    "header in_t { bit<8> a; bit<8> b; }\nheader out_t { bit<8> own; bit<8> other; bit<8> runs; }\n",
    "hdr.o.runs = 0; meta.colour = 3; owner.apply(); hdr.o.own = (bit<8>) meta.colour;\n"
    "meta.colour = 2; stranger.apply(); hdr.o.other = (bit<8>) meta.colour; metered();",
    meta="bit<2> colour;",
    locals_="""
    direct_meter<bit<2>>(MeterType.packets) rate;
    action metered() { rate.read(meta.colour); hdr.o.runs = hdr.o.runs + 1; }
    action plain() { hdr.o.runs = hdr.o.runs + 16; }
    table owner { key = { hdr.i.a: exact; } actions = { metered; plain; } default_action = metered();
                  const entries = { 1: metered(); 2: plain(); } meters = rate; }
    table stranger { key = { hdr.i.b: exact; } actions = { metered; plain; } default_action = plain();
                     const entries = { 1: metered(); } }
    """,
).replace("hdr.i.setInvalid();", "")  # the tables look at it
FRAMES = [bytes([a, b]) for a in (0, 1, 2) for b in (0, 1)]
# A hit of the owner writes the colour (green), whatever its action; a miss does not, and the other table never does.
COLOURS = [bytes([3 if a == 0 else 0, 2, (16 if a == 2 else 1) + (1 if b else 16) + 1]) for a, b in FRAMES]


def test_a_direct_meter_is_read_where_its_own_table_hits() -> None:
    """An action that reads it may also be listed by another table, or be called: there it reads nothing."""
    assert run(METERED, FRAMES) == COLOURS


@pytest.mark.needs("bmv2")
def test_bmv2_reads_a_direct_meter_there_too(tmp_path: Path) -> None:
    """The same frames leave BMv2."""
    source = tmp_path / "metered.p4"
    source.write_text(METERED)
    frames = [(0, frame) for frame in FRAMES]
    with Bmv2(source, tmp_path, ports=2) as bmv2:
        bmv2.inject(frames, [[(1, frame)] for frame in COLOURS])
        assert bmv2.outputs({1: len(frames)})[1] == COLOURS


def test_a_direct_meter_is_read_to_one_place() -> None:
    """Two places are refused, as p4c refuses them: only one could be written where the table hits."""
    with pytest.raises(CompileError, match="same place"):
        compile_source(METERED.replace("action plain() {", "action plain() { rate.read(hdr.o.own[1:0]);"))


def test_a_frame_is_cut_wherever_its_bytes_lie() -> None:
    """Before, in and behind a long value that is only passed on, which is not copied as what stands around it is."""
    source = program(
        "header in_t { bit<16> n; bit<2560> long; } header out_t { bit<16> n; bit<2560> long; bit<64> after; }",
        "hdr.o = { hdr.i.n, hdr.i.long, 64w0x0102030405060708 }; truncate((bit<32>)hdr.i.n);")
    long, payload, lengths = bytes(range(160)) * 2, bytes(range(200, 250)), (1, 2, 100, 322, 325, 330, 331, 379)
    sent = [n.to_bytes(2, "big") + long + payload for n in lengths]
    whole = [n.to_bytes(2, "big") + long + bytes(range(1, 9)) + payload for n in lengths]
    assert run(source, sent) == [frame[:n] for frame, n in zip(whole, lengths, strict=True)]
