# SPDX-License-Identifier: Apache-2.0
"""The kernel in an image as Debian has it, which is compressed: a guest without KVM takes 4 s of processor time to
decompress it at each boot, this machine 1 s, once.

QEMU boots the ELF file by its PVH entry, which the kernel names in a note (CONFIG_PVH).  Where an image lies and how it
is compressed say the kernel's Documentation/arch/x86/boot.rst (setup_sects, payload_offset, payload_length) and the
first bytes of the payload; notes are those of the System V ABI, and PVH's that of Xen's include/public/elfnote.h.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterator
from typing import Final

SECTOR: Final = 512
SETUP_SECTS, MAGIC, VERSION, PAYLOAD = 0x1F1, 0x202, 0x206, 0x248
"""Offsets in the header of an image: sectors of real-mode code less one; "HdrS"; the protocol's version; where the
compressed kernel begins in what follows that code, and its length."""
FIRST_WITH_PAYLOAD: Final = 0x208
"""The version from which on an image says where its payload is."""
XZ: Final = b"\xfd7zXZ\0"
ELF: Final = b"\x7fELF\2\1"
"""The beginning of a 64-bit ELF file, least significant byte first."""
PT_NOTE: Final = 4
XEN: Final = b"Xen\0"
PHYS32_ENTRY: Final = 18


def uncompressed(image: bytes) -> bytes | None:
    """The kernel as an ELF file that QEMU boots; None where the image is of another form or compression, or where the
    kernel has no PVH entry: then QEMU boots the image itself, which only takes longer."""
    try:
        payload = _payload(image)
        if payload is None or not payload.startswith(XZ):
            return None
        stream = lzma.LZMADecompressor()  # which ends before the payload does: the length of the kernel follows it
        kernel = stream.decompress(payload)
        whole = stream.eof and kernel.startswith(ELF)
        return kernel if whole and (XEN, PHYS32_ENTRY) in _notes(kernel) else None
    except (struct.error, lzma.LZMAError, IndexError):
        return None


def _payload(image: bytes) -> bytes | None:
    if image[MAGIC : MAGIC + 4] != b"HdrS" or struct.unpack_from("<H", image, VERSION)[0] < FIRST_WITH_PAYLOAD:
        return None
    offset, length = struct.unpack_from("<II", image, PAYLOAD)
    begin = ((image[SETUP_SECTS] or 4) + 1) * SECTOR + offset
    return image[begin : begin + length]


def _notes(elf: bytes) -> Iterator[tuple[bytes, int]]:
    """Name and type of each note of an ELF file.  Raises struct.error where one ends too early."""
    (headers,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for number in range(count):
        kind, _, begin, _, _, length = struct.unpack_from("<IIQQQQ", elf, headers + number * size)
        at, end = begin, begin + length
        while kind == PT_NOTE and at < end:
            of_name, of_text, note = struct.unpack_from("<III", elf, at)
            yield elf[at + 12 : at + 12 + of_name], note
            at += 12 + _padded(of_name) + _padded(of_text)


def _padded(length: int) -> int:
    return (length + 3) // 4 * 4
