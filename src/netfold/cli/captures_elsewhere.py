# SPDX-License-Identifier: Apache-2.0
"""Captures of a fabric over machines: each machine captures its links, and its file comes here as a stream."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from netfold import plain_text
from netfold.cli.common import CANNOT, FAILED, fail
from netfold.disk import files
from netfold.topo.processes.lifecycle import ending_signals, shell_status
from netfold.wire import faults


def capture_elsewhere(tapped: faults.TappedElsewhere, options: Sequence[str], out: Path | None, *, quiet: bool) -> int:
    """Capture until all machines have ended, and return the first status that is not 0.

    options  of `netfold pcap` there
    out      the file; of several machines each gets its name; None: standard output
    quiet    say nothing of what is captured
    """
    if len(tapped.machines) > 1 and out is None:
        names = ", ".join(machine.machine for machine in tapped.machines)
        fail(CANNOT, f"pcap -w -: expected links of one machine, got those of {names}: name a link or a switch, or "
                     "files, which mergecap joins")
    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        for process in running:
            process.send_signal(number)

    for number in ending_signals():
        signal.signal(number, hand_on)
    for machine in tapped.machines:
        file = out
        if out is not None and len(tapped.machines) > 1:
            file = out.with_name(f"{out.stem}-{machine.machine}{out.suffix or '.pcapng'}")
        if not quiet:
            print(plain_text.clean(f"machine {machine.machine} captures {machine.links} link"
                                   f"{'s' * (machine.links > 1)} of {tapped.fabric} to {file or 'standard output'}"),
                  file=sys.stderr, flush=True)
        try:
            running.append(_start([*machine.command, *options], file))
        except OSError as error:
            hand_on(signal.SIGTERM, None)
            fail(FAILED, f"pcap: cannot write {file}: {error.strerror}")
    return next((shell_status(code) for code in [process.wait() for process in running] if code), 0)


def _start(command: Sequence[str], file: Path | None) -> subprocess.Popen[bytes]:
    """Start a capture, whose standard output goes into a file, in a session of its own: Ctrl-C is handed on once."""
    if file is None:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    with files.create(file) as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True)
