# SPDX-License-Identifier: Apache-2.0
"""The kernel in a compressed image, with stand-ins for kernels: ELF files of nothing but notes."""

from __future__ import annotations

import gzip
import lzma
import struct

import pytest

from netfold.topo.rxe.kernel_image import uncompressed

PVH = (b"Xen\0", 18, bytes(4))


def elf(*notes: tuple[bytes, int, bytes]) -> bytes:
    """An ELF file of 64 bits with these notes: names, types and texts."""
    section = b"".join(
        struct.pack("<III", len(name), len(text), kind) + name + bytes(-len(name) % 4) + text + bytes(-len(text) % 4)
        for name, kind, text in notes
    )
    header = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0, 0, 1)
    segments += struct.pack("<IIQQQQQQ", 4, 4, 64 + 2 * 56, 0, 0, len(section), len(section), 4)
    return header + segments + section


def image(payload: bytes, version: int = 0x20F) -> bytes:
    """An image with two sectors of real-mode code, and 100 bytes before the payload."""
    setup = bytearray(3 * 512)
    setup[0x1F1] = 2
    setup[0x202:0x208] = b"HdrS" + struct.pack("<H", version)
    struct.pack_into("<II", setup, 0x248, 100, len(payload))
    return bytes(setup) + bytes(100) + payload + b"what follows"


def packed(kernel: bytes) -> bytes:
    """As the kernel's Makefile compresses it: the length follows."""
    return lzma.compress(kernel, check=lzma.CHECK_CRC32) + struct.pack("<I", len(kernel))


def test_a_kernel_with_a_pvh_entry_is_taken_out() -> None:
    """Bit for bit, wherever among its notes the entry is."""
    for notes in ([PVH], [(b"GNU\0", 3, bytes(20)), (b"Linux\0", 18, b"6.1\0"), PVH], [PVH, (b"Xen\0", 6, b"linux\0")]):
        kernel = elf(*notes)
        assert uncompressed(image(packed(kernel))) == kernel


@pytest.mark.parametrize("other", [
    b"", b"k", bytes(4096), image(gzip.compress(elf(PVH))), image(packed(elf())),
    image(packed(elf((b"GNU\0", 18, b"")))), image(packed(b"no ELF file")), image(packed(elf(PVH)[:-20])),
    image(packed(elf(PVH))[:-20]), image(packed(elf(PVH)), version=0x207), image(packed(elf(PVH)))[:-40],
], ids=["empty", "short", "no header", "gzip", "no note", "another's note", "no ELF", "a cut file", "a cut stream",
        "an old version", "a cut image"])
def test_what_cannot_be_taken_out_is_left_as_it_is(other: bytes) -> None:
    """Another form, compression or kernel is booted as it is: there is nothing to boot but the image."""
    assert uncompressed(other) is None
