# SPDX-License-Identifier: Apache-2.0
"""A cache of compiled programs by their content, so that a switch does not compile the same program twice.

The key covers the preprocessed program and the files of the compiler, so that a result is never stale. Without a
cache that can be read and written, compilation only takes longer.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from finsy.proto import p4i
from google.protobuf.message import DecodeError

from cbuild.cache import Cache
from softswitch.runtime import files


@functools.cache
def _compiler_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _name(preprocessed: str, name: str, trace: bool) -> str:
    kind = b"\0trace\0" if trace else b"\0"
    key = hashlib.sha256(_compiler_digest() + name.encode() + kind + preprocessed.encode()).hexdigest()[:32]
    return f"program-{key}"


def load(preprocessed: str, name: str, *, trace: bool = False) -> tuple[str, p4i.P4Info, str, str, str] | None:
    """The C source, P4Info, JSON sections, description (trace_sites.py) and warnings of a program that was compiled
    before, or None."""
    try:
        known = Cache().find(_name(preprocessed, name, trace))
        if known is None:
            return None
        c_source, sections, description, p4info, warnings = unpack(known.read_bytes())
        return (c_source.decode(), p4i.P4Info.FromString(p4info), sections.decode(), description.decode(),
                warnings.decode())
    except (OSError, ValueError, DecodeError):
        return None


def store(
    preprocessed: str, name: str, c_source: str, info: p4i.P4Info, sections: str, description: str = "",
    warnings: str = "",
) -> None:
    """Stores a result, atomically, so that several processes may store it."""
    data = pack(c_source.encode(), sections.encode(), description.encode(), info.SerializeToString(deterministic=True),
                warnings.encode())
    try:
        files.replace(Cache().folder(lasting=True) / _name(preprocessed, name, bool(description)), data, mode=0o644)
    except OSError:
        return


def pack(*parts: bytes) -> bytes:
    """Several byte strings as one, each after its length."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def unpack(data: bytes) -> list[bytes]:
    """Returns the parts that `pack` joined. Raises ValueError where the data ends too early."""
    parts, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "big")
        if end > len(data):
            raise ValueError("data that were cut")
        parts.append(data[at + 8 : end])
        at = end
    return parts
