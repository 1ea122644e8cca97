# SPDX-License-Identifier: Apache-2.0
"""Measures compiling a P4 program as it grows, by softswitch's compiler, and by p4c for BMv2 where that is on PATH.

Programs are generated: tables in a row, each with a key and two actions of its own, that write to fields of a header.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from netfold.bench.harness.limits import machine

TABLES: Final = (1, 4, 16, 64, 256)
QUICK: Final = TABLES[:1]
FIELDS: Final = 8
"""Fields of the header, of 32 bits."""
SECONDS: Final = 900.0


class ProgramRow(msgspec.Struct, frozen=True):
    """One compiler with one program."""

    compiler: Literal["softswitch", "softswitch, cached", "p4c"]
    tables: int
    lines: int
    seconds: float
    cpu_seconds: float
    """Processor seconds of the compiler and of all processes that it starts."""
    mebibytes: float
    """The largest process' memory."""
    machine: str


def source(tables: int) -> str:
    """A program with so many tables."""
    fields = "\n".join(f"    bit<32> f{i};" for i in range(FIELDS))
    parts = []
    for number in range(tables):
        key, ours = number % FIELDS, (number + 1) % FIELDS
        parts.append(f"""
    action set_{number}(bit<32> value, bit<9> port) {{
        hdr.data.f{ours} = hdr.data.f{ours} ^ value;
        meta.port = port;
    }}
    action count_{number}() {{ meta.seen = meta.seen + 1; }}
    table t_{number} {{
        key = {{ hdr.data.f{key}: exact; }}
        actions = {{ set_{number}; count_{number}; NoAction; }}
        default_action = NoAction();
        size = 64;
    }}""")
    applied = "\n".join(f"        t_{number}.apply();" for number in range(tables))
    return f"""// Generated: {tables} tables.
#include <core.p4>
#include <v1model.p4>

header data_t {{
{fields}
}}
struct headers {{ data_t data; }}
struct metadata {{ bit<9> port; bit<32> seen; }}

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {{
    state start {{ packet.extract(hdr.data); transition accept; }}
}}
control V(inout headers hdr, inout metadata meta) {{ apply {{ }} }}
control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {{{"".join(parts)}
    apply {{
{applied}
        hdr.data.f0 = hdr.data.f0 + meta.seen;
        standard.egress_spec = meta.port;
    }}
}}
control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {{ apply {{ }} }}
control C(inout headers hdr, inout metadata meta) {{ apply {{ }} }}
control D(packet_out packet, in headers hdr) {{ apply {{ packet.emit(hdr.data); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


def measure(sizes: Sequence[int], echo: Callable[[str], None]) -> list[ProgramRow]:
    """Rows for programs with so many tables.  Raises subprocess.SubprocessError."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for tables in sizes:
            text, folder = source(tables), Path(scratch) / str(tables)
            folder.mkdir()
            program = folder / "program.p4"
            program.write_text(text)
            ours = [sys.executable, "-m", "softswitch", "compile", str(program)]
            commands: dict[Literal["softswitch", "softswitch, cached", "p4c"], list[str]] = {
                "softswitch": ours, "softswitch, cached": ours}
            if shutil.which("p4c-bm2-ss"):
                commands["p4c"] = ["p4c-bm2-ss", str(program), "-o", str(folder / "program.json")]
            for compiler, command in commands.items():
                seconds, used, memory = _cost(command, folder / "cache")
                rows.append(ProgramRow(compiler, tables, text.count("\n"), seconds, used, memory, machine()))
                echo(f"{tables:>4} tables, {rows[-1].lines:>5} lines, {compiler:<18}: {seconds:6.2f} s, processor "
                     f"{used:6.2f} s, {memory:5.0f} MiB")
    return rows


def _cost(command: Sequence[str], cache: Path) -> tuple[float, float, float]:
    """Seconds, processor seconds and memory in MiB of a command and of what it starts."""
    watch = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
             "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
             "print(used.ru_utime + used.ru_stime, used.ru_maxrss)")
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", watch, *command], check=True, timeout=SECONDS, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    seconds = time.perf_counter() - begin
    used, memory = done.stdout.split()
    return seconds, float(used), float(memory) / 1024
