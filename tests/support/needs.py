# SPDX-License-Identifier: Apache-2.0
"""What single tests need beyond `make setup`, by name; a test without it is skipped, and the summary counts by name.

    @pytest.mark.needs("bmv2")                                  # conftest.py skips the test where it is missing
    pytest.importorskip("torch", reason=needs.reason("torch"))  # of a whole file, which imports it at the top
    needs.require("openssl")                                    # in the middle of a test or fixture

`PYTHONPATH=tests python -m support.needs` lists what this machine has.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cbuild.cc import find_compiler

DOWNLOAD_SECONDS: Final = 60.0
"""How long the packages of virtual machines may take before their tests are skipped; what came by then is kept."""
_DOWNLOAD: Final = "from netfold.topo.rxe import packages; packages.kernel(); packages.userland()"


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
    from netfold.topo import sandbox

    if sandbox.inside():
        return None
    link = ["ip", "link", "add", "name", "v0", "type", "veth", "peer", "name", "v1"]
    tried = sandbox.run(link, timeout=60)
    return None if tried.returncode == 0 else tried.stderr.strip()


def _mininet() -> str | None:
    """Tried: Mininet may lie with the system's Python, where `netfold.topo` finds it."""
    import netfold.topo  # noqa: F401

    try:
        import mininet  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def _mn() -> str | None:
    """`mn` imports NetFold by the system's Python, and so that has to be of our version."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    system = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True, check=False).stdout.strip()
    return None if f" {ours}." in system else f"`mn` runs under {system or 'no Python'}, these tests under {ours}"


def _daemons(*names: str) -> Callable[[], str | None]:
    """Daemons of the system, whose place is on no user's PATH, and which only root of the whole machine may start."""

    def missing() -> str | None:
        if os.geteuid() != 0:
            return "this is not root"
        path = os.environ.get("PATH", "") + ":/usr/sbin"
        absent = [name for name in names if not shutil.which(name, path=path)]
        return f"{', '.join(absent)} is not on PATH" if absent else None

    return missing


def _thrift() -> str | None:
    """BMv2's older control interface, which alone can slow a port's queue down, may have been left out of the build."""
    binary = shutil.which("simple_switch_grpc")
    assert binary is not None
    without = b"compiled without Thrift support" in Path(binary).read_bytes()
    return "simple_switch_grpc was built without Thrift" if without else None


def _sanitizers() -> str | None:
    """Tried: some compilers come without the libraries."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["gcc", "-fsanitize=address,undefined", "-x", "c", "-", "-o", f"{folder}/program"]
        tried = subprocess.run(command, input="int main(void) {}", capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else "this gcc has no sanitizer libraries"


def _rxe() -> str | None:
    """Tried: packages that are not in the cache are downloaded, for a minute at most; in a sandbox they are there."""
    from netfold.topo import sandbox
    from netfold.topo.rxe import packages

    if sandbox.inside():  # which has no network: the test is in it because all was there
        return None
    try:
        if (lacks := packages.lacking()) is not None:
            return lacks
    except packages.PackagesMissing as error:
        return str(error)
    return tried_for(DOWNLOAD_SECONDS, [sys.executable, "-c", _DOWNLOAD])


def tried_for(seconds: float, command: list[str]) -> str | None:
    """What a command that fails or takes longer says, or None; what it has started ends with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"not done in {seconds:g} s: {shlex.join(command)}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return None if status == 0 else said.read().strip()[-1000:] or f"status {status}: {shlex.join(command)}"


def _verbs() -> str | None:
    """Tried: headers may lie where CPATH says."""
    command = ["gcc", "-x", "c", "-fsyntax-only", "-"]
    source = "#include <infiniband/verbs.h>\n"
    tried = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else "no infiniband/verbs.h"


def _chromium() -> str | None:
    from support import browser

    return None if browser.program() else f"none of {', '.join(browser.PROGRAMS)} on PATH"


def _set(variable: str) -> Callable[[], str | None]:
    return lambda: None if os.environ.get(variable) else f"{variable} is not set"


NEEDS: Final[dict[str, Need]] = {
    "bmv2": Need("build p4lang's p4c and behavioral-model with PI", ("p4c-bm2-ss", "simple_switch_grpc")),
    "p4c": Need("build p4lang's p4c", ("p4c-bm2-ss",)),
    "thrift": Need("build behavioral-model with Thrift", ("p4c-bm2-ss", "simple_switch_grpc"), check=_thrift),
    "simple_switch": Need("build behavioral-model's simple_switch", ("simple_switch",)),
    "torch": Need("pip install torch", modules=("torch",)),
    "expecttest": Need("pip install expecttest", modules=("torch", "expecttest")),
    "torchft": Need("pip install torchft parameterized", modules=("torch", "torchft", "parameterized")),
    "namespaces": Need("root, or a kernel that lets users make namespaces; apt install iproute2 ethtool util-linux",
                       ("unshare", "ip", "ethtool"), check=_namespaces),
    "mininet": Need("apt install mininet", check=_mininet),
    "mn": Need("run the tests with the Python that Mininet was installed for", ("mn",), check=_mn),
    "rxe": Need("on Debian, apt install --no-install-recommends qemu-system-x86; 80 MB are downloaded",
                ("qemu-system-x86_64",), check=_rxe),
    "dpkg-deb": Need("a machine with Debian's dpkg", ("dpkg-deb",)),
    "sshd": Need("as root, apt install openssh-server openssh-client", ("ssh", "ssh-keygen"), check=_daemons("sshd")),
    "slurm": Need("as root, apt install slurmctld slurmd slurm-client munge", ("srun", "sinfo"),
                  check=_daemons("slurmctld", "slurmd", "munged")),
    "chromium": Need("apt install chromium", check=_chromium),
    "tshark": Need("apt install tshark", ("tshark",)),
    "p4runtime-shell": Need("P4RUNTIME_SHELL_PYTHON names the Python of an environment that has it",
                            check=_set("P4RUNTIME_SHELL_PYTHON")),
    "netlab": Need("pip install networklab", ("netlab",)),
    "containerlab-schema": Need("CONTAINERLAB_SCHEMA names containerlab's schemas/clab.schema.json; pip install "
                                "jsonschema pyyaml", modules=("jsonschema", "yaml"),
                                check=_set("CONTAINERLAB_SCHEMA")),
    "p4c-samples": Need("P4C_SAMPLES names p4c's testdata/p4_16_samples", check=_set("P4C_SAMPLES")),
    "foreign-programs": Need("FOREIGN_PROGRAMS names a folder of checkouts (docs/programs.md)",
                             check=_set("FOREIGN_PROGRAMS")),
    "sanitizers": Need("apt install gcc libasan8 libubsan1", ("gcc",), check=_sanitizers),
    "verbs": Need("apt install libibverbs-dev", ("gcc",), check=_verbs),
    "openssl": Need("apt install openssl", ("openssl",)),
    "lightning": Need("pip install lightning", modules=("torch", "lightning")),
    "kubernetes": Need("pip install 'kubernetes>=37'", modules=("kubernetes",)),
    "ray": Need("pip install 'ray[train]'", modules=("torch", "ray", "pyarrow")),
    "accelerate": Need("pip install accelerate", modules=("torch", "accelerate")),
    "scapy": Need("pip install scapy", modules=("scapy",)),
    "scikit-learn": Need("pip install scikit-learn", modules=("sklearn",)),
    "joblib": Need("pip install joblib", modules=("joblib",)),
    "matplotlib": Need("pip install matplotlib", modules=("matplotlib",)),
    "mkdocs": Need("pip install mkdocs mkdocs-material", modules=("mkdocs", "material")),
    "pip": Need("python -m ensurepip", modules=("pip",)),
    "ruff": Need("pip install ruff", modules=("ruff",)),
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
    """What of a need this machine lacks, in words, or None."""
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


if __name__ == "__main__":
    print(f"{'C compiler':16} {' '.join(find_compiler().command)}")
    for wanted in NEEDS:
        lack = missing(wanted)
        print(f"{wanted:16} {'there' if lack is None else f'MISSING: {lack}'}")
