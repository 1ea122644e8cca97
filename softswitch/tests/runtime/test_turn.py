# SPDX-License-Identifier: Apache-2.0
"""The memory of a turn is bounded: what packets computed goes back, and a packet that goes round cannot take it all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import softswitch
from softswitch.compiler.driver import compile_source
from softswitch.engine.entities import Multicast
from softswitch.engine.local import LocalEngine

MANY_PACKETS = """
#include <assert.h>
#include <string.h>
#include "turn.c"
static ss_switch sw;
int main(void) {
    const uint8_t *kept[20000], *start = ss_take(&sw, 1);
    for (int i = 0; i < 20000; i++) {
        uint8_t *frame = ss_take(&sw, 200); /* the frame lies before, amid or behind what was computed */
        for (int part = 0; part < 9; part++) {
            if (part == i % 9) frame = ss_take(&sw, 200);
            ss_take(&sw, 60000);
        }
        frame[0] = (uint8_t)i, frame[199] = (uint8_t)(i >> 8);
        if (i % 50 == 0) ss_turn_keep(&sw, frame, 200);
        kept[i] = frame;
        ss_turn_packet(&sw);
    }
    for (int i = 0; i < 20000; i += 50)
        assert(ss_taken(&sw, kept[i], 200) && kept[i][0] == (uint8_t)i && kept[i][199] == (uint8_t)(i >> 8));
    assert(!ss_turn_full(&sw));
    ss_turn_next(&sw); /* another thread still sends these frames */
    const uint8_t *later = memset(ss_take(&sw, 200), 7, 200);
    for (int i = 0; i < 3000; i++) memset(ss_take(&sw, 60000), 255, 60000);
    for (int i = 0; i < 20000; i += 50) assert(kept[i][0] == (uint8_t)i && kept[i][199] == (uint8_t)(i >> 8));
    ss_turn_keep(&sw, later, 200);
    ss_turn_packet(&sw);
    ss_turn_next(&sw); /* and now those of this turn; the memory of the others is taken again */
    uint8_t *again = ss_take(&sw, 200);
    assert(!ss_turn_full(&sw) && again == start && later[0] == 7 && later[199] == 7);
    ss_turn_end(&sw);
    ss_turn_close(&sw);
}
"""

ROUND_AND_ROUND = """
#include <core.p4>
#include <v1model.p4>
header word_t { bit<32768> w; }
struct headers_t { word_t a; }
struct meta_t {}
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.a); transition accept; }
}
control Check(inout headers_t h, inout meta_t m) { apply {} }
control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) { apply { sm.egress_spec = 1; ALL } }
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    apply { if (h.a.w[0:0] == 0) { recirculate_preserving_field_list(0); } }
}
control Write(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Check(), Work(), Out(), Check(), Write()) main;
""".replace("ALL", "h.a.w = h.a.w + 2; " * 80)

MANY_COPIES = """
#include <core.p4>
#include <v1model.p4>
header word_t { bit<32768> w; }
struct headers_t { word_t a; }
struct meta_t {}
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { PARSE transition accept; }
}
control Check(inout headers_t h, inout meta_t m) { apply {} }
control Spread(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { if (s.instance_type == 4) { mark_to_drop(s); } else { s.mcast_grp = 1; } }
}
control Each(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { EACH } }
control Write(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), Check(), Spread(), Each(), Check(), Write()) main;
"""
"""Each copy of a frame of 12 KB takes more than 1/65536 of the memory of a turn."""


def test_what_packets_of_a_turn_computed_goes_back_and_what_frames_refer_to_stays(tmp_path: Path) -> None:
    """Packets that each take more than a piece of memory use the same pieces, but for what frames refer to: those of
    this turn, and of the one before."""
    source, program = tmp_path / "turn.c", tmp_path / "turn"
    source.write_text(MANY_PACKETS.replace('"turn.c"', f'"{Path(softswitch.__file__).parent / "runtime" / "turn.c"}"'))
    subprocess.run(["cc", "-O1", "-std=gnu11", "-o", program, source], check=True)

    subprocess.run([program], check=True)


@pytest.mark.timeout(60)
def test_a_packet_that_goes_round_with_wide_values_is_dropped_before_memory_ends() -> None:
    """Wide values of thousands of passes would fill the memory: the packet is dropped and counted, the switch lives."""
    with LocalEngine.open(compile_source(ROUND_AND_ROUND)) as engine:
        assert engine.inject(0, bytes(4096)) == []
        assert engine.stats().dropped_passes == 1
        assert len(engine.inject(0, bytes(4095) + b"\1")) == 1


@pytest.mark.parametrize(("parse", "each"), [
    pytest.param("p.advance(96000);", "recirculate_preserving_field_list(0);", id="recirculate"),
    pytest.param("p.extract(h.a);", "h.a.w = h.a.w + 2; " * 9 + "mark_to_drop(s);", id="compute"),
])
def test_copies_for_a_large_group_are_dropped_before_memory_ends(parse: str, each: str) -> None:
    """Copies that all take memory in one pass of a frame end at the same bound: the rest is counted, the switch
    lives."""
    program = compile_source(MANY_COPIES.replace("PARSE", parse).replace("EACH", each))
    with LocalEngine.open(program) as engine:
        engine.write_multicast("insert", Multicast(1, tuple((1, instance) for instance in range(1 << 16))))
        for rounds in range(1, 3):
            before = engine.stats().dropped_passes
            assert engine.inject(1, bytes(12_004)) == []
            assert engine.stats().dropped_passes - before > 1 << 15
            assert engine.stats().received == rounds
