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

from cbuild import cc, files


@functools.cache
def _compiler_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _path(preprocessed: str, name: str) -> Path:
    key = hashlib.sha256(_compiler_digest() + name.encode() + b"\0" + preprocessed.encode()).hexdigest()[:32]
    return cc.default_cache_dir() / f"program-{key}"


def load(preprocessed: str, name: str) -> tuple[str, p4i.P4Info] | None:
    """The C source and P4Info of a program that was compiled before, or None."""
    try:
        data = _path(preprocessed, name).read_bytes()
        size = int.from_bytes(data[:8], "big")
        if len(data) < 8 + size:
            return None
        info = p4i.P4Info()
        info.ParseFromString(data[8 + size :])
        return data[8 : 8 + size].decode(), info
    except (OSError, cc.BuildError, UnicodeDecodeError, DecodeError):
        return None


def store(preprocessed: str, name: str, c_source: str, info: p4i.P4Info) -> None:
    """Stores a result, atomically, so that several processes may store it."""
    text = c_source.encode()
    try:
        path = _path(preprocessed, name)
        files.replace(path, len(text).to_bytes(8, "big") + text + info.SerializeToString(deterministic=True))
    except (OSError, cc.BuildError):
        return
