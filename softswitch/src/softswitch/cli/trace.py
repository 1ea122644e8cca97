# SPDX-License-Identifier: Apache-2.0
"""softswitch trace: recordings of packets, shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from softswitch.cli.options import CliArgument, CliOption, TraceStyle, fail


def trace(
    file: Annotated[Path, CliArgument(metavar="FILE", help="A recording that `softswitch run --trace FILE` made.")],
    style: Annotated[TraceStyle, CliOption("--format", help="Output format.")] = TraceStyle.text,
    packet: Annotated[
        list[int] | None, CliOption("--packet", metavar="N", min=0, help="Show only this packet; may be repeated.")
    ] = None,
    drops: Annotated[bool, CliOption("--drops", help="Show only packets of which a copy was dropped.")] = False,
) -> None:
    """Show what happened to recorded packets."""
    from softswitch.trace.program import TraceError
    from softswitch.trace.recording import Lost, read, renderer

    show, missing = renderer(style), set(packet or [])
    try:
        for found in read(file):
            if isinstance(found, Lost):
                if not packet and not drops:
                    sys.stdout.write(show(found))
                continue
            missing.discard(found.number)
            if (not packet or found.number in packet) and (not drops or found.of("drop")):
                sys.stdout.write(show(found))
        sys.stdout.flush()
        if missing:
            fail(f"{file}: no packet {', '.join(map(str, sorted(missing)))} in this recording", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except TraceError as error:
        sys.stdout.flush()
        fail(f"{file}: {error}", 1)
