# SPDX-License-Identifier: Apache-2.0
"""`netfold pcap`: the packets of a fabric that runs on this machine, for Wireshark."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, BinaryIO, Final

import typer

from netfold import plain_text
from netfold.cli.captures_elsewhere import capture_elsewhere
from netfold.cli.common import CANNOT, FAILED, fail
from netfold.cli.local_fabric import WhichFabric, ask, seconds, socket_of
from netfold.cli.options import Quiet
from netfold.disk.files import create
from netfold.wire import faults

NAMES_EVERY: Final = 1.0
"""Seconds between questions what queue pairs mean."""
LEAST_RING: Final = 1_000_000
"""Bytes of the smallest ring."""
_SO_ATTACH_FILTER: Final = 26


def pcap(
    target: Annotated[str | None, typer.Argument(metavar="LINK|SWITCH|all", help="leaf1:3, leaf1-spine1, h3, spine1, "
                                                 "all.")] = None,
    write: Annotated[str | None, typer.Option("-w", "--write", metavar="FILE",
        help="A pcapng file; -: standard output; default: a file named after the target.")] = None,
    ring: Annotated[str | None, typer.Option(metavar="SIZE", help="Keep about the last 100MB, in ten files.")] = None,
    lasting: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="500ms, 10s, 2m; default: until "
                                                "Ctrl-C.")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", metavar="EXPRESSION",
        help="A filter in tcpdump's syntax: 'udp port 4791 or udp portrange 18432-19455'.")] = None,
    snap: Annotated[int, typer.Option(min=64, max=1 << 18, help="Bytes kept of each packet.")] = 1 << 18,
    whole: Annotated[bool, typer.Option("--whole", help="Keep super-packets whole; default: cut into segments, as they "
                                                        "would be on a wire.")] = False,
    dissector: Annotated[bool, typer.Option("--dissector", help="Print the path of the dissector for Wireshark and "
                                            "tshark (-X lua_script:PATH).")] = False,
    fabric: WhichFabric = None,
    quiet: Quiet = False,
) -> None:
    """Capture the packets on links of a fabric that runs here, with an interface named leaf1:3 for each link."""
    if dissector:
        print(resources.files("netfold.topo.captures") / "netfold.lua")
        return
    if target is None:
        fail(CANNOT, "pcap: expected a link (leaf1:3, leaf1-spine1, h3), a switch, or all")
    limit = None if ring is None else _bytes(ring)
    if limit is not None and write == "-":
        fail(CANNOT, "pcap: expected either --ring, which makes files, or -w - for standard output")
    if write == "-" and sys.stdout.isatty():
        fail(CANNOT, "pcap -w -: standard output is a terminal: expected a pipe, such as | wireshark -k -i -")
    end = None if lasting is None else seconds(lasting, "--for")
    program = None if filter_ is None else _compiled(filter_)
    path = socket_of(fabric)
    tapped, files = ask(path, faults.Tap(target))
    if isinstance(tapped, faults.TappedElsewhere):
        if limit is not None:
            fail(CANNOT, "pcap --ring: expected no ring on a fabric over machines, whose captures come as streams")
        options = ["--snap", str(snap), *(["--filter", filter_] if filter_ else []), *["--whole"] * whole,
                   *(["--for", f"{end:g}s"] if end is not None else []), *["--quiet"] * quiet]
        raise typer.Exit(capture_elsewhere(tapped, options, _file(target, write), quiet=quiet))
    assert isinstance(tapped, faults.Tapped)

    def say(what: str, certainly: bool = False) -> None:
        if certainly or not quiet:
            print(plain_text.clean(what), file=sys.stderr, flush=True)

    if program is not None:
        _attach(files, program)
    _capture(path, tapped, files, _file(target, write), limit, end, whole, snap, say)


def _file(target: str, write: str | None) -> Path | None:
    """The file to write; None: standard output."""
    if write == "-":
        return None
    return Path(re.sub(r"[^\w.-]", "-", target) + ".pcapng" if write is None else write)


def _capture(path: Path, tapped: faults.Tapped, files: list[int], out: Path | None, limit: int | None,
             end: float | None, whole: bool, snap: int, say: Callable[..., None]) -> None:
    from netfold.rpc import local
    from netfold.rpc.rpc import Unreachable
    from netfold.topo.captures.capture import Capture, FileRing
    from netfold.topo.processes.lifecycle import ending_signals

    ring = None if limit is None or out is None else FileRing(out, limit)
    ended: list[str] = []

    def begin() -> BinaryIO:
        if ring is not None:
            return ring.open()
        return sys.stdout.buffer if out is None else create(out)

    def look() -> None:
        try:
            names, extra = local.call(path, faults.AskNames(), faults.Answer, 10.0)
        except Unreachable:
            ended.append("the fabric has ended")
            return
        assert not extra
        if isinstance(names, faults.Names):
            capture.renamed(names.connections)

    def stop(number: int, _: FrameType | None) -> None:
        ended.append(signal.Signals(number).name)

    try:
        capture = Capture(tapped.fabric, tapped.links, files, tapped.connections, begin,
                          full=(lambda written: False) if ring is None else ring.full, whole=whole, snap=snap)
    except OSError as error:
        fail(FAILED, f"pcap: cannot write {out}: {error.strerror}")
    for number in ending_signals():
        signal.signal(number, stop)
    say(f"captures {len(tapped.links)} link{'s' * (len(tapped.links) > 1)} of {tapped.fabric} "
        + ("" if end is None else f"for {end:g} s ") + f"to {out or 'standard output'}")
    until = None if end is None else time.monotonic() + end
    try:
        with contextlib.suppress(BrokenPipeError):  # Wireshark was closed
            try:
                capture.run(lambda: bool(ended) or (until is not None and time.monotonic() >= until), look, NAMES_EVERY)
            finally:
                capture.close()
    except OSError as error:
        fail(FAILED, f"pcap: cannot write {out}: {error.strerror}")
    packets, dropped = (sum(getattr(count, name) for count in capture.counts) for name in ("packets", "dropped"))
    said = f"{packets} packets" + (f", and {dropped} that came too fast and were dropped" if dropped else
                                   ", none dropped")
    why = f" ({ended[0]})" if ended else ""
    where = f"; {', '.join(file.name for file in ring.files)}" if ring is not None else ""
    say(f"{said}{where}{why}", bool(dropped))


def _bytes(text: str) -> int:
    """Bytes of a size such as 100MB; ends the command for another text."""
    match = re.fullmatch(r"(\d{1,9})\s*(k|m|g|)b?", text.strip().lower(), re.ASCII)
    size = int(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2]] if match else 0
    if size < LEAST_RING:
        fail(CANNOT, f"--ring {text!r}: expected a size of at least 1MB, such as 100MB or 2GB")
    return size


def _compiled(expression: str) -> bytes:
    """A filter as the kernel takes it: the program of classic BPF that tcpdump makes of an expression."""
    if shutil.which("tcpdump") is None:
        fail(CANNOT, "--filter: tcpdump, which compiles the expression, is not on PATH: apt install tcpdump, or filter "
                     "in Wireshark")
    done = subprocess.run(["tcpdump", "-y", "EN10MB", "-ddd", "--", expression], capture_output=True, text=True,
                          timeout=20, check=False)
    lines = done.stdout.split("\n")
    if done.returncode or not lines[0].isdecimal():
        fail(CANNOT, f"--filter {expression!r}: {done.stderr.strip() or 'tcpdump does not compile it'}")
    return b"".join(struct.pack("=HBBI", *map(int, line.split())) for line in lines[1 : 1 + int(lines[0])])


def _attach(files: list[int], program: bytes) -> None:
    """Have the kernel filter what the sockets get."""
    import ctypes

    buffer: Any = ctypes.create_string_buffer(program)
    said = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    for file in files:
        # the socket's own descriptor stays open: this is a copy
        with socket.fromfd(file, socket.AF_PACKET, socket.SOCK_RAW) as each:
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, said)
