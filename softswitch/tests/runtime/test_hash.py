# SPDX-License-Identifier: Apache-2.0
"""CRC-32 and Internet checksum of every length, in each build of the vector code that this machine can run."""

from __future__ import annotations

import ctypes
import random
import re
import struct
import zlib
from pathlib import Path

import pytest

from cbuild import cc
from softswitch.engine import linking
from switch_support.checksum import checksum

RUNTIME = linking.RUNTIME
SEED = 20


def builds() -> list[str]:
    """Compiler flags: the plain vectors, and wider ones as far as the processor has them."""
    has = set(re.split(r"\s+", Path("/proc/cpuinfo").read_text()))
    wide = {"-mavx2": {"avx2"}, "-mavx512f -mvpclmulqdq -mpclmul": {"avx512f", "vpclmulqdq"}}
    return ["-DPLAIN", *(flags for flags, needs in wide.items() if needs <= has)]


@pytest.mark.parametrize("flags", builds())
def test_crc32_and_csum16_of_every_length_and_alignment(flags: str) -> None:
    """The same values as zlib and RFC 1071, whichever vectors compute them."""
    print("seed", SEED)
    rng = random.Random(SEED)
    library = ctypes.CDLL(str(cc.build([RUNTIME / "hash.c"], kind="shared", name="hash", flags=flags.split())))
    library.ss_hash.restype = ctypes.c_uint64
    library.ss_csum16.restype = library.ss_csum16_after.restype = ctypes.c_uint16
    crc32 = _constant("SS_CRC32")
    lengths = [*range(700), 1024, 1086, 1087, 1088, 4096, 65535]
    for length in lengths:
        data = rng.randbytes(length) if length % 7 else b"\xff" * length
        buffer = ctypes.create_string_buffer(bytes(64) + data + bytes(64))
        at = ctypes.addressof(buffer) + 64 - length % 5      # every alignment comes up
        ctypes.memmove(at, data, length)
        where = ctypes.c_void_p(at)
        assert library.ss_hash(None, crc32, where, length) == zlib.crc32(data), f"crc32 of {length} bytes"
        assert library.ss_csum16(where, length, None, 0) == checksum(data), f"csum16 of {length} bytes"
        before = struct.pack("!IIH", *(rng.choice([0, 0xFFFF, rng.getrandbits(16)]) for _ in range(3)))
        numbers = ctypes.c_uint64(sum(struct.unpack("!IIH", before)))
        assert library.ss_csum16_after(numbers, where, length) == checksum(before + data), f"after {before.hex()}"


def _constant(name: str) -> int:
    header = (RUNTIME / "softswitch.h").read_text()
    names = re.search(r"enum\s*\{([^}]*\b" + name + r"\b[^}]*)\}", header)
    assert names, f"no enum with {name} in softswitch.h"
    return [part.split("=")[0].strip() for part in names.group(1).split(",")].index(name)
