# SPDX-License-Identifier: Apache-2.0
"""`netfold doctor`: what this machine has of everything that NetFold can use, what it is for, and how to get it.

No list of distributions is consulted: every check tries the thing itself.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from netfold import plain_text, terminal
from netfold.cli import extras, shell
from netfold.cli.common import FAILED
from netfold.cli.extras import Extra
from netfold.cli.options import Json

PYTHON: Final = (3, 11)
SANDBOX_TIMEOUT: Final = 30.0
COMMAND_TIMEOUT: Final = 20.0
VERBS_TIMEOUT: Final = 300.0
"""Seconds for the engine of the rail verbs, which may have to be compiled."""
UDP_SEGMENT: Final = 103
"""Socket option of <linux/udp.h>, which Python's socket module does not have."""
RECEIVE_BYTES: Final = 2 * (128 + 16) * 8448
"""Socket buffer for the windows of two trees at path MTU 4096, which want the most: what the kernel charges for their
packets (fabric/folding/slots.py, host/innet/fold.py)."""


def doctor(json: Json = False) -> None:
    """Say what is missing on this machine, what it is needed for, and how to get it.

    Exit status 1 if `make demo` would fail.
    """
    findings = examine(checks())
    if json:
        print(plain_text.json_line([
            {"name": f.check.name, "ok": f.ok, "required": f.check.required, "found": f.detail,
             "needed_for": f.check.needed_for, "get_it": f.check.remedy} for f in findings]))
    else:
        show(findings)
    if lacking(findings):
        raise typer.Exit(FAILED)


def lacking(findings: Iterable[Finding]) -> list[str]:
    """The names of what `make demo` needs and does not find."""
    return [finding.check.name for finding in findings if not finding.ok and finding.check.required]


class Missing(Exception):
    """A check did not find what it looks for; the message says what."""


@dataclass(frozen=True)
class Check:
    """A check.  ``look`` returns a description of what is there, or raises Missing."""

    name: str
    needed_for: str
    remedy: str
    look: Callable[[], str]
    required: bool = False
    """True if `make demo` fails without it."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a check; ``detail`` describes what is there or what is missing."""

    check: Check
    ok: bool
    detail: str


def examine(checks: Iterable[Check]) -> list[Finding]:
    """Run all checks; one that fails with any other error counts as missing, with that error."""
    return [_examine(check) for check in checks]


def checks() -> list[Check]:
    """All checks, the required ones first."""
    return [
        Check("Python", "everything", "install Python 3.11 or newer; make setup PYTHON=python3.12", _python, True),
        Check("netfold", "everything", "make setup, or pip install ./cbuild . in a clone", _packages(extras.BASE),
              True),
        *(_extra(extra, required=extra in (extras.CONTROL, extras.DEMO)) for extra in extras.EXTRAS),
        Check("C compiler", "softswitch and the hosts' fast path",
              f"apt install gcc libc6-dev, or {extras.COMPILER.remedy}; SOFTSWITCH_CC names another one", compiler,
              True),
        Check("Mininet", "the demo and netfold up --topo", "sudo apt install mininet (it is in no Python registry)",
              _mininet, True),
        Check("mnexec", "Mininet's hosts", "sudo apt install mininet", program("mnexec"), True),
        Check("ip", "links of the fabric", "sudo apt install iproute2", program("ip"), True),
        Check("tc", "link rates", "sudo apt install iproute2", program("tc"), True),
        Check("ethtool", "offloads of the links", "sudo apt install ethtool", program("ethtool"), True),
        Check("namespaces", "the demo's own network",
              "run as root (sudo make demo), or allow user namespaces: sudo sysctl user.max_user_namespaces=10000 "
              "kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); a "
              "container needs --privileged", _namespaces, True),
        Check("PACKET_VNET_HDR", "super-packets in softswitch: without, one packet a call",
              "a Linux kernel 6.2 or newer, with veth and packet sockets", _vnet_header),
        Check("UDP_SEGMENT", "super-packets at the hosts: without, one packet a call", "a Linux kernel 4.18 or newer",
              _udp_segment),
        Check("net.core.rmem_max", "full windows for ranks that are not root",
              f"sudo sysctl net.core.rmem_max={RECEIVE_BYTES}", _receive_memory),
        Check("libibverbs", "the rail verbs: folding by the queue pairs of an RDMA NIC",
              "sudo apt install libibverbs-dev ibverbs-providers; where they lie elsewhere: CPATH, LIBRARY_PATH",
              _verbs("library")),
        Check("RDMA device", "the rail verbs",
              "a NIC with RoCE v2, or in software: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev "
              "DEVICE; the host's fold address belongs to its interface, which needs an MTU of 4200 for a path MTU of "
              "4096 (docs/verbs.md)", _verbs("devices")),
        Check("p4c-bm2-ss", "the engine bmv2", "https://github.com/p4lang/p4c, or use the engine softswitch",
              program("p4c-bm2-ss", "--version")),
        Check("simple_switch_grpc", "the engine bmv2",
              "https://github.com/p4lang/behavioral-model, or use the engine softswitch",
              program("simple_switch_grpc", "--version")),
        Check("p4runtime-shell", "netfold shell", f"{shell.remedy()} (protobuf < 3.21, so an environment of its own); "
              f"{shell.PYTHON_VARIABLE} names another Python", _p4runtime_shell),
        Check("QEMU", "netfold demo --hosts rxe: hosts that are virtual machines with Linux's rdma_rxe",
              "on Debian, make machines", _virtual_machines),
        Check("ping", "mininet> pingall", "sudo apt install iputils-ping", program("ping")),
        Check("openssl", "certificates for TLS", "sudo apt install openssl", program("openssl", "version")),
    ]


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print the verdict, and then the findings."""
    console = console or terminal.console()
    missing = lacking(findings)
    optional = sum(not finding.ok and not finding.check.required for finding in findings)
    console.print(f"make demo does not run here: {', '.join(missing)} missing" if missing else "make demo runs here"
                  + (f"; of what is optional, {optional} of {len(findings)} are not here" if optional else ""))
    table = Table("", "what", "found", box=None)
    table.columns[2].overflow = "fold"  # commands to type are wrapped, never cut
    for finding in findings:
        absent = ("missing", "red") if finding.check.required else ("optional", "")
        mark = ("ok", "green") if finding.ok else absent
        detail = finding.detail
        if not finding.ok:
            detail = f"not here: {detail}\nneeded for {finding.check.needed_for}\nget it: {finding.check.remedy}"
        table.add_row(terminal.said(mark), finding.check.name, detail)
    console.print(table)
    console.print("What a message means that something ends with, and what to do: docs/failures.md")


def _examine(check: Check) -> Finding:
    try:
        return Finding(check, True, check.look())
    except Missing as missing:
        return Finding(check, False, str(missing))
    except Exception as error:
        return Finding(check, False, f"{type(error).__name__}: {error}")


# ---- what is looked at -----------------------------------------------------------------------------------------------


def _python() -> str:
    version = platform.python_version()
    if sys.version_info < PYTHON:
        raise Missing(f"{sys.executable} is {version}")
    return f"{version}, {sys.executable}"


def _extra(extra: Extra, *, required: bool) -> Check:
    return Check(f"netfold[{extra.name}]", extra.needed_for, extra.remedy, _packages(extra.packages), required)


def _packages(wanted: Mapping[str, str]) -> Callable[[], str]:
    """Looks for packages (module -> distribution) by importing them."""

    def look() -> str:
        found, absent = [], []
        for module, package in wanted.items():
            try:
                importlib.import_module(module)
                found.append(f"{package} {importlib.metadata.version(package)}")
            except ImportError as error:
                absent.append(f"{package} ({error})")
        if absent:
            raise Missing(", ".join(absent))
        return ", ".join(found)

    return look


def compiler() -> str:
    """Look for a C compiler.  Raises Missing."""
    from cbuild.cc import BuildError, find_compiler

    try:
        found = find_compiler()
    except BuildError as error:
        raise Missing(str(error)) from error
    return f"{' '.join(found.command)}: {_version([*found.command, '--version'])}"


def _mininet() -> str:
    from netfold.topo.network import mininet_path

    mininet_path.install()
    try:
        found = importlib.import_module("mininet.net")
    except ImportError as error:
        raise Missing(str(error)) from error
    return str(Path(found.__file__ or "").parent)


def program(name: str, *version: str) -> Callable[[], str]:
    """A look for a program, which says its version if it is asked by these options."""
    def look() -> str:
        path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
        if path is None:
            raise Missing("not on PATH")
        return f"{path}: {_version([path, *version])}" if version else path

    return look


def _verbs(part: str) -> Callable[[], str]:
    """Asks the host library, as a training host without this command can: python -m netfold.host.verbs."""

    def look() -> str:
        command = [sys.executable, "-m", "netfold.host.verbs", part]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=VERBS_TIMEOUT, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(str(error)) from error
        if done.returncode != 0:
            raise Missing((done.stdout or done.stderr).strip())
        return done.stdout.strip()

    return look


def _p4runtime_shell() -> str:
    try:
        return str(shell.python())
    except shell.NoShell as error:
        raise Missing(str(error).partition(". ")[0]) from error


def _virtual_machines() -> str:
    from netfold.topo.rxe import packages

    if (lacks := packages.lacking()) is not None:
        raise Missing(lacks)
    return f"{shutil.which(packages.QEMU)}, and apt knows what is downloaded on first use (80 MB)"


def _namespaces() -> str:
    from netfold.topo.network import sandbox

    try:
        done = sandbox.run([sys.executable, "-c", "pass"], timeout=SANDBOX_TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(str(error)) from error
    if done.returncode != 0:
        raise Missing(done.stderr.strip() or f"exit status {done.returncode}")
    return "network, process and mount namespaces"


_PACKET_SOCKET: Final = """
import json, socket, subprocess
answer = {}
try:
    subprocess.run(["ip", "link", "add", "name", "netfold0", "type", "veth", "peer", "name", "netfold1"], check=True,
                   capture_output=True)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind(("netfold0", 0))
    sock.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
except (OSError, subprocess.SubprocessError) as error:
    answer["error"] = f"{type(error).__name__}: {error} {getattr(error, 'stderr', b'') or ''}"
print(json.dumps(answer))
"""


def _vnet_header() -> str:
    from netfold.topo.network import sandbox

    try:
        done = sandbox.run([sys.executable, "-c", _PACKET_SOCKET], timeout=SANDBOX_TIMEOUT)
        if done.returncode != 0:
            raise Missing("there is no namespace to try it in (see namespaces, above)")
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Missing(f"no namespace to try it in: {error}") from error
    if "error" in answer:
        raise Missing(answer["error"])
    return f"on a veth of Linux {platform.release()}"


def _udp_segment() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1024)
        except OSError as error:
            raise Missing(f"the kernel refuses it: {error.strerror}") from error
    return f"Linux {platform.release()}"


def _receive_memory() -> str:
    most = int(Path("/proc/sys/net/core/rmem_max").read_text())
    if most < RECEIVE_BYTES:
        raise Missing(f"{most} bytes, full windows want {RECEIVE_BYTES}: ranks narrow their windows, and say so")
    return f"{most} bytes"


def _version(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        raise Missing(f"{command[0]} ends with status {done.returncode}: {done.stderr.strip()[-200:]}")
    lines = (done.stdout or done.stderr).splitlines()
    return next((line for line in lines if re.search(r"\d+\.\d+", line)), "")
