# SPDX-License-Identifier: Apache-2.0
"""What single tests need beyond the project's extra `test`, by name; a test without it is skipped, and the summary
counts by name.

    @pytest.mark.needs("bmv2")                                  # suite.py skips the test where it is missing
    pytest.importorskip("pip", reason=needs.reason("pip"))      # of a whole file, which imports it at the top
    needs.require("openssl")                                    # in the middle of a test or fixture

A suite with more needs adds them to `NEEDS`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest


class Need(NamedTuple):
    """Something that some tests need."""

    how: str
    """How to get it: what to install or to set."""
    programs: tuple[str, ...] = ()
    """Programs that have to be on PATH."""
    modules: tuple[str, ...] = ()
    """Modules that have to be importable."""
    check: Callable[[], str | None] = lambda: None
    """Returns what else is missing, in words, or None."""


def _namespaces() -> str | None:
    """Tried: a virtual link in a network namespace of its own."""
    from switch_support import namespace

    link = ["ip", "link", "add", "name", "v0", "type", "veth", "peer", "name", "v1"]
    tried = subprocess.run([*namespace.unshare(), *link], capture_output=True, text=True, timeout=60, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip()


def _thrift() -> str | None:
    """BMv2's older control interface, which alone can slow a port's queue down, may have been left out of the build."""
    binary = shutil.which("simple_switch_grpc")
    assert binary is not None
    without = b"compiled without Thrift support" in Path(binary).read_bytes()
    return "simple_switch_grpc was built without Thrift" if without else None


def _sanitizers(kinds: str) -> Callable[[], str | None]:
    """Tried, and run: some compilers come without the libraries, and some kernels place memory where these want it."""
    def check() -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            command = ["gcc", f"-fsanitize={kinds}", "-x", "c", "-", "-o", f"{folder}/program"]
            built = subprocess.run(command, input="int main(void) {}", capture_output=True, text=True, check=False)
            if built.returncode != 0:
                return f"this gcc has no libraries for -fsanitize={kinds}"
            ran = subprocess.run([f"{folder}/program"], capture_output=True, check=False)
        return None if ran.returncode == 0 else f"programs built with -fsanitize={kinds} do not run here"

    return check


def _chromium() -> str | None:
    from switch_support import browser

    return None if browser.program() else f"none of {', '.join(browser.PROGRAMS)} on PATH"


def variable(name: str) -> Callable[[], str | None]:
    """A check that a variable of the environment is set."""
    return lambda: None if os.environ.get(name) else f"{name} is not set"


NEEDS: Final[dict[str, Need]] = {
    "bmv2": Need("build p4lang's p4c and behavioral-model with PI", ("p4c-bm2-ss", "simple_switch_grpc")),
    "p4c": Need("build p4lang's p4c", ("p4c-bm2-ss",)),
    "thrift": Need("build behavioral-model with Thrift", ("p4c-bm2-ss", "simple_switch_grpc"), check=_thrift),
    "simple_switch": Need("build behavioral-model's simple_switch", ("simple_switch",)),
    "namespaces": Need("root, or a kernel that lets users make namespaces; apt install iproute2 ethtool util-linux",
                       ("unshare", "ip", "ethtool"), check=_namespaces),
    "chromium": Need("apt install chromium", check=_chromium),
    "p4runtime-shell": Need("P4RUNTIME_SHELL_PYTHON names the Python of an environment that has it",
                            check=variable("P4RUNTIME_SHELL_PYTHON")),
    "p4c-samples": Need("P4C_SAMPLES names p4c's testdata/p4_16_samples", check=variable("P4C_SAMPLES")),
    "foreign-programs": Need("FOREIGN_PROGRAMS names a folder of checkouts (docs/programs.md)",
                             check=variable("FOREIGN_PROGRAMS")),
    "sanitizers": Need("apt install gcc libasan8 libubsan1", ("gcc",), check=_sanitizers("address,undefined")),
    "thread-sanitizer": Need("apt install gcc libtsan2", ("gcc",), check=_sanitizers("thread")),
    "openssl": Need("apt install openssl", ("openssl",)),
    "root": Need("run the tests as root", check=lambda: None if os.geteuid() == 0 else "this is not root"),
    "setpriv": Need("apt install util-linux", ("setpriv",)),
    "x86_64": Need("an x86-64 machine",
                   check=lambda: None if platform.machine() == "x86_64" else f"this is {platform.machine()}"),
}
_HIDING: Final = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name in {modules} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
"""A program after which modules cannot be found, as if they were not installed."""
_REASON = re.compile(r"needs ([\w-]+)(: .*)?", re.DOTALL)


@functools.cache
def missing(name: str) -> str | None:
    """The missing part of a need on this machine, in words, or None."""
    need = NEEDS[name]
    if absent := [program for program in need.programs if shutil.which(program) is None]:
        return f"{' and '.join(absent)} not on PATH"
    if absent := [module for module in need.modules if importlib.util.find_spec(module) is None]:
        return f"no module {' and '.join(absent)}"
    return need.check()


def reason(name: str) -> str:
    """Why a test is skipped without it."""
    return f"needs {name}: {NEEDS[name].how}"


def require(*names: str) -> None:
    """Skip the running test where one of these is missing."""
    for name in names:
        if (lacks := missing(name)) is not None:
            pytest.skip(f"{reason(name)} ({lacks})")


def of_reason(text: str) -> str | None:
    """Which need a skip's reason names, or None where it was skipped for something else."""
    found = _REASON.match(text.removeprefix("Skipped: "))
    return found[1] if found and found[1] in NEEDS else None


def hide(name: str, folder: Path) -> None:
    """Let this process, and those that it starts, find a need's programs and modules no more.

    folder  empty; has to stay for as long as they run
    """
    need = NEEDS[name]
    if not need.programs and not need.modules:
        raise ValueError(f"--without {name}: expected one that is programs or modules, such as bmv2 or torch")
    if need.modules:
        exec(_HIDING.format(modules=need.modules), {})
        os.environ["PYTHONPATH"] = without_modules(name, folder, os.environ.get("PYTHONPATH"))
    places = os.environ["PATH"].split(os.pathsep)
    for number, place in enumerate(places):
        if any((Path(place) / program).exists() for program in need.programs):
            places[number] = str(folder / f"bin{number}")
            Path(places[number]).mkdir()
            for entry in Path(place).iterdir():
                if entry.name not in need.programs:
                    (Path(places[number]) / entry.name).symlink_to(entry)
    os.environ["PATH"] = os.pathsep.join(places)


def without_modules(name: str, folder: Path, path: str | None = None) -> str:
    """The PYTHONPATH, ``path`` before, of a process that is not to find a need's modules.

    folder  has to stay for as long as it runs
    """
    (folder / "sitecustomize.py").write_text(_HIDING.format(modules=NEEDS[name].modules))  # Python runs it as it starts
    return os.pathsep.join(filter(None, [str(folder), path]))
