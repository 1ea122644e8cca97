# SPDX-License-Identifier: Apache-2.0
"""Programs with a runtime under ASan and UBSan, fed with hostile frames and requests (native/hostile.c)."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from cbuild import cc
from softswitch.engine.linking import CORE, RUNTIME
from switch_support import needs
from switch_support.probe import PROBE

HOSTILE = PROBE.with_name("hostile.c")
FLAGS = ["-g1", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
"""With -g1 a report names functions and lines; -g takes the compiler twice as long."""
SEED = "20261121"


@cache
def runtime() -> tuple[Path, cc.Compiler]:
    """The runtime with hostile.c, built once; a test without a compiler that has sanitizers is skipped."""
    needs.require("sanitizers")
    compiler = cc.Compiler(("gcc",), "sanitized")
    return cc.build([HOSTILE, *(RUNTIME / file for file in CORE)], kind="shared", name="hostile-runtime",
                    include=[RUNTIME], flags=FLAGS, compiler=compiler), compiler


def build(program: str | Path) -> Path:
    """An executable: a program with the sanitized runtime and hostile.c."""
    library, compiler = runtime()
    return cc.build([program], kind="exe", name="hostile", include=[RUNTIME], flags=FLAGS, libs=[str(library)],
                    compiler=compiler)


def run(program: Path, *args: str, seed: str = SEED) -> None:
    """Run the program on its hostile input; fails where a sanitizer reports an error."""
    done = subprocess.run([program, seed, *args], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "frames" in done.stdout
