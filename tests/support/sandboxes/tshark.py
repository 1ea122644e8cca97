# SPDX-License-Identifier: Apache-2.0
"""Wireshark's dissector as a witness, where it is installed."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path


def dissect(frames: Sequence[bytes], fields: Sequence[str], folder: Path) -> list[list[str]]:
    """These fields of every frame, "" where it has none; and that tshark finds no frame malformed.

    Its guess at what a payload holds is off: some of our numbers look like a broken Ethernet frame of 1980.
    """
    capture = folder / "frames.pcap"
    with capture.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65536, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    command = ["tshark", "-n", "-r", str(capture), "-o", "infiniband.identify_payload:FALSE", "-T", "fields"]
    for name in (*fields, "_ws.malformed"):
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == len(frames)
    for number, (*_, malformed) in enumerate(rows):
        assert not malformed, f"tshark: frame {number} is malformed: {frames[number].hex()}"
    return [row[:-1] for row in rows]
