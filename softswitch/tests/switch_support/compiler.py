# SPDX-License-Identifier: Apache-2.0
"""Compiling and running small P4 programs in this process."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.compiler.driver import Program, compile_source
from softswitch.engine.local import LocalEngine

_TAIL = """
control NoCheck(inout headers_t h, inout meta_t m) { apply {} }
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply {} }
V1Switch(Parse(), NoCheck(), Work(), NoEgress(), NoCheck(), Write()) main;
"""


def program(declarations: str, body: str, *, locals_: str = "", meta: str = "") -> str:
    """A whole program: `declarations` define header types `in_t` and `out_t`, `body` computes hdr.o from hdr.i."""
    return f"""
#include <core.p4>
#include <v1model.p4>
{declarations}
struct headers_t {{ in_t i; out_t o; }}
struct meta_t {{ {meta} }}
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {{
    state start {{ p.extract(h.i); transition accept; }}
}}
control Work(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    {locals_}
    apply {{
        hdr.o.setValid();
        hdr.i.setInvalid();
        sm.egress_spec = 1;
        {body}
    }}
}}
control Write(packet_out p, in headers_t h) {{ apply {{ p.emit(h.o); }} }}
{_TAIL}"""


def run(source: str | Program, frames: Sequence[bytes]) -> list[bytes]:
    """The frame that leaves for each frame that enters port 0; b"" where none leaves."""
    compiled = compile_source(source, "test.p4") if isinstance(source, str) else source
    with LocalEngine.open(compiled) as engine:
        return [b"".join(frame for _, frame in engine.inject(0, frame)) for frame in frames]
