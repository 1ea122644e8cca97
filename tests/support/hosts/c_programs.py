# SPDX-License-Identifier: Apache-2.0
"""C programs on the C interface, which tests compile as a user does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from cbuild import cc
from netfold.host.capi import library

FORKS: Final = """
#include <netfold.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    netfold_comm *comm;
    if (netfold_join(NULL, &comm)) return fprintf(stderr, "%s\\n", netfold_error()), 1;
    int ones[1000], status = -1;
    for (int i = 0; i < 1000; i++) ones[i] = 1;
    pid_t child = fork();
    if (!child) return netfold_allreduce(comm, ones, ones, 1000, NETFOLD_INT32, NETFOLD_SUM, NULL);
    waitpid(child, &status, 0);
    if (netfold_allreduce(comm, ones, ones, 1000, NETFOLD_INT32, NETFOLD_SUM, NULL) || netfold_leave(comm))
        return fprintf(stderr, "%s\\n", netfold_error()), 1;
    printf("child %s, sum %d\\n", netfold_status_name(WEXITSTATUS(status)), ones[999]);
    return 0;
}
"""
"""Each rank's child calls an allreduce first; then the ranks do."""


DRIVER: Final = Path(__file__).parent / "native/nccl_driver.c"
"""Calls NCCL's plug-in as NCCL does."""


def nccl_driver(kind: cc.Kind) -> Path:
    """The driver of NCCL's plug-in: a program, "exe", or its function ``drive`` in a library, "shared"."""
    return cc.build([DRIVER], kind=kind, name="nccl-driver", include=[library.HERE], flags=["-Wall", "-Werror"],
                    libs=["-ldl"])


def compiled(folder: Path, source: str) -> Path:
    """A C program on the library, built as the documentation says."""
    folder.mkdir(exist_ok=True)
    library.install(folder / "lib")
    (folder / "program.c").write_text(source)
    return linked(folder, folder / "program.c", library.options(folder / "lib"))


def linked(folder: Path, source: Path, options: list[str]) -> Path:
    """The program in ``folder`` that the C compiler makes of a file with these options."""
    compiler = cc.find_compiler()
    command = [*compiler.command, str(source), "-o", str(folder / "program"), "-Wall", "-Werror", *options]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, **compiler.environment(folder)})
    return folder / "program"
