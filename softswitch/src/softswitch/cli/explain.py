# SPDX-License-Identifier: Apache-2.0
"""softswitch explain: what a program does with a packet, step by step, without interfaces."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from softswitch.cli.options import CliOption, Defines, Includes, Program, defines, fail, p4_text, refuse, warn

if TYPE_CHECKING:
    from softswitch.trace import PacketTrace


def explain(
    program: Program,
    packet: Annotated[
        list[str] | None,
        CliOption(metavar="HEX|FILE.pcap", help="A frame from its Ethernet header on, or a file of frames; may be "
                                                "repeated."),
    ] = None,
    port: Annotated[int, CliOption(min=0, max=510, help="Port at which the frames arrive.")] = 1,
    entries: Annotated[
        list[Path] | None,
        CliOption(metavar="FILE", help="Table entries: NAME.stf a packet test (with its packets, where no --packet "
                                       "is given), NAME.json as in p4lang's tutorials, else commands of "
                                       "simple_switch_CLI; may be repeated."),
    ] = None,
    cpu_port: Annotated[int | None, CliOption(min=1, max=510, help="Port number of the controller.")] = None,
    seed: Annotated[int, CliOption(min=0, help="Seed of random().")] = 1,
    as_json: Annotated[bool, CliOption("--json", help="Print JSON, one object per frame.")] = False,
    page: Annotated[
        Path | None,
        CliOption(metavar="FILE.html", help="Write a page that shows the frames' way through the source."),
    ] = None,
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Show what a program does with a packet, and why: parser, tables, actions, drops."""
    from cbuild import cc
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import compile_file
    from softswitch.engine.errors import EngineError
    from softswitch.explain import packets
    from softswitch.explain.entries import EntriesError, load
    from softswitch.runtime import files
    from softswitch.trace import TracedEngine, TraceError, to_json, to_text
    from softswitch.trace.page import render

    p4_text(program)
    try:
        failed: list[str] = []
        frames = [(port, frame) for one in packet or [] for frame in packets.read(one)]
        compiled = compile_file(program, include=include or [], defines=defines(define), trace=True)
        warn(compiled)
        with TracedEngine.of(compiled, cpu_port=cpu_port, seed=seed) as engine:
            for path in entries or []:
                own, said, wrong = load(engine, compiled, path)
                failed += [f"{path}: {wrong} of its commands failed, above"] if wrong else []
                sys.stderr.write(said)
                if not packet:
                    frames += own
            if not frames:
                fail("expected --packet, or --entries with a packet test that has packets")
            traces: list[PacketTrace] = []
            for at, frame in frames:
                traces += engine.receive_traced(at, frame, now_us=engine.now_us + 1)
    except CompileError as error:
        refuse(error)
    except cc.BuildError as error:
        fail(str(error), 1)
    except (packets.PacketError, EntriesError, EngineError, TraceError) as error:
        fail(str(error))
    if page is not None:
        try:
            files.replace(page, render(engine.program, traces))
        except OSError as error:
            fail(f"--page {page}: {error.strerror}")
    try:
        for trace in traces:
            if as_json:
                print(json.dumps(to_json(trace)))
            elif page is None:
                sys.stdout.write(to_text(trace))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        if not isinstance(error, BrokenPipeError):
            fail(f"standard output: {error.strerror}")
    for line in failed:  # behind the packets, where it is seen
        print(f"softswitch: --entries {line}; the packets met what the others wrote", file=sys.stderr)
