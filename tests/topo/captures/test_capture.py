# SPDX-License-Identifier: Apache-2.0
"""What a capture does where its files cannot be written."""

from __future__ import annotations

import errno
import io
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from netfold.topo.captures import packet_sockets
from netfold.topo.captures.capture import Capture, FileRing
from netfold.wire.faults import TapLink


class Disk(io.RawIOBase):
    """A file on a disk that can become full."""

    full = False

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return memoryview(data).nbytes  # type: ignore[arg-type]


def failing(begin: Callable[[], BinaryIO], full: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The errno with which a capture without packets ends, as `netfold pcap` runs it."""
    monkeypatch.setattr(packet_sockets, "counts", lambda packets: (0, 0))
    packets, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    capture = Capture("lab", [TapLink("leaf1:3", "h1:0", None)], [packets.detach()], [], begin, full=full)
    try:
        try:
            capture.run(lambda: False, lambda: None, 1.0)
        finally:
            capture.close()
    except OSError as error:
        return error.errno
    finally:
        other.close()


def test_a_ring_whose_folder_was_removed_ends_with_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file cannot be begun, and the counts have no place any more."""
    folder = tmp_path / "captures"
    folder.mkdir()

    def full(written: int) -> bool:
        shutil.rmtree(folder)
        return True

    assert failing(FileRing(folder / "leaf1.pcapng", 10).open, full, monkeypatch) == errno.ENOENT


def test_a_disk_that_is_full_at_the_end_of_a_file_ends_with_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts at the end of a file cannot be written, nor anything after them."""
    disk = Disk()

    def full(written: int) -> bool:
        disk.full = True
        return True

    assert failing(lambda: io.BufferedWriter(disk), full, monkeypatch) == errno.ENOSPC
