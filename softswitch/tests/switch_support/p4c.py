# SPDX-License-Identifier: Apache-2.0
"""p4c's output for programs, cached by content: it takes a second and more of processor time."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from cbuild import cc
from softswitch.compiler import cache
from softswitch.runtime import files

P4C = "p4c-bm2-ss"
TIMEOUT = 120.0
"""Seconds for p4c, on a busy machine."""


class Made(NamedTuple):
    """The files that p4c writes: JSON for BMv2, and P4Info as text."""

    json: bytes
    p4info: bytes


def compiled(program: Path) -> Made:
    """A program as p4c compiles it; one that is no temporary file comes from the cache, where p4c and all P4 files
    beside the program are the same.  Raises CalledProcessError where p4c refuses it."""
    if program.is_relative_to(tempfile.gettempdir()):
        return _run(program)
    digest = hashlib.sha256("\0".join([_version(), program.name]).encode())
    for path in sorted(program.parent.glob("*.p4")):
        digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    folder = cc.default_cache_dir() / "p4c"
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / digest.hexdigest()[:32]
    with cc.lock(kept.with_suffix(".lock")):
        if kept.exists():
            return Made(*cache.unpack(kept.read_bytes()))
        made = _run(program)
        files.replace(kept, cache.pack(*made))
    return made


def _run(program: Path) -> Made:
    with tempfile.TemporaryDirectory(prefix="p4c-") as folder:
        json, p4info = Path(folder, "program.json"), Path(folder, "program.txtpb")
        subprocess.run([P4C, program, "-o", json, "--p4runtime-files", p4info], check=True, timeout=TIMEOUT,
                       capture_output=True, text=True)
        return Made(json.read_bytes(), p4info.read_bytes())


@functools.cache
def _version() -> str:
    return subprocess.run([P4C, "--version"], check=True, timeout=TIMEOUT, capture_output=True, text=True).stdout
