# SPDX-License-Identifier: Apache-2.0
"""The rights of a running switch process: a program that took it over finds no file, no program and no network."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from cbuild import cc
from softswitch.compiler.driver import compile_file
from softswitch.engine.errors import EngineError
from softswitch.engine.linking import RUNTIME
from softswitch.p4runtime.process import Settings, SwitchProcess
from softswitch.p4runtime.program import build_executable
from switch_support import NATIVE
from switch_support.switch import SANITIZE, probe_executable

_MAIN = """
#define _GNU_SOURCE
#include "confine.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    puts(ss_confine());
    fflush(stdout);
    free(malloc(1 << 24));
    {}
    return 7;
}
"""


def ends(statement: str, tmp_path: Path) -> tuple[int, str]:
    """(status, output) of a confined program that executes a C statement."""
    program = cc.build([_MAIN.replace("{}", statement), RUNTIME / "confine.c"], kind="exe", name="confined",
                       include=[RUNTIME], cache_dir=tmp_path)
    done = subprocess.run([program], capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout


@pytest.mark.parametrize("statement", [
    'open("/etc/hostname", O_RDONLY);',
    'char *none[] = {NULL}; execve("/bin/sh", none, none);',
    "fork();",
    "socket(AF_INET, SOCK_STREAM, 0);",
    "socket(AF_NETLINK, SOCK_RAW, 0);",
    "mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);",
    "mprotect((void *)((unsigned long)main & ~4095ul), 4096, PROT_READ | PROT_WRITE | PROT_EXEC);",
    "ptrace(PTRACE_TRACEME, 0, 0, 0);",
    "kill(getppid(), SIGTERM);",
    "prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);",
    "setsockopt(0, IPPROTO_IP, 1, NULL, 0);",
    "ioctl(0, TIOCSTI, \"x\");",
])
def test_what_no_switch_does_ends_the_process(statement: str, tmp_path: Path) -> None:
    """Files, programs, other sockets, code in memory, other processes: each call is refused with SIGSYS."""
    status, said = ends(statement, tmp_path)
    if "no seccomp here" in said or "no filter for" in said:
        pytest.skip(said)
    assert status == -signal.SIGSYS


def test_what_a_switch_does_goes_on(tmp_path: Path) -> None:
    """Memory, output and packet sockets, which interfaces that come back need."""
    status, said = ends("close(socket(AF_PACKET, SOCK_RAW, 0));", tmp_path)

    assert status == 7
    assert "no new privileges" in said


def test_a_refused_call_is_named(tmp_path: Path) -> None:
    """The reason of the death has the call's number: a program that opens a file dies of SIGSYS, not silently."""
    text = compile_file(NATIVE / "traffic.p4").c_source
    start = "    (void)sw; (void)s; (void)p;\n"
    assert start in text
    executable = build_executable(text.replace(start, start + '    if (!fopen("/etc/hostname", "r")) return;\n', 1))
    died = threading.Event()
    process = SwitchProcess(executable, Settings(cpu_port=510), on_death=lambda _: died.set())
    try:
        process.start()
        if "event loop alone" not in process.confinement():
            pytest.skip(process.confinement())
        with pytest.raises(EngineError):
            process.engine.packet_out(bytes(64))
        assert died.wait(20)
        assert "SIGSYS" in str(process.death)
        assert "system call" in str(process.death)
        assert "in the pipeline; port 510" in str(process.death)
    finally:
        process.close()


def test_the_process_has_few_capabilities_and_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc shows it; secrets of the environment that the server was started in do not reach the process."""
    monkeypatch.setenv("NETFOLD_TOKEN", "secret")
    process = SwitchProcess(probe_executable(flags=SANITIZE), Settings(cpu_port=510))  # dumpable, so /proc shows it
    try:
        process.start()
        proc = Path(f"/proc/{process.pid}")
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        assert b"secret" not in (proc / "environ").read_bytes()
        assert status["NoNewPrivs"] == "1"
        assert int(status["CapEff"], 16) & ~(1 << 12 | 1 << 13) == 0
    finally:
        process.close()


def test_the_log_says_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line at the start of each process, with what the kernel refused."""
    said: list[str] = []
    log = SimpleNamespace(info=lambda text, *values: said.append(text % values))
    monkeypatch.setattr("softswitch.p4runtime.process.log", log)
    process = SwitchProcess(probe_executable(), Settings(cpu_port=510))
    try:
        process.start()
        assert [line for line in said if process.confinement() in line and str(process.pid) in line]
        assert "no new privileges" in process.confinement()
    finally:
        process.close()
