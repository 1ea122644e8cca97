# SPDX-License-Identifier: Apache-2.0
"""What single tests need beyond `make setup`, by name: those of the switch (switch_support/needs.py, which says how a
test names them) and more.

`PYTHONPATH=tests:softswitch/tests python -m support.needs` lists what this machine has.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Final

from cbuild.cc import find_compiler
from switch_support.needs import NEEDS, Need, hide, missing, of_reason, reason, require, variable, without_modules

__all__ = ["NEEDS", "Need", "hide", "missing", "of_reason", "reason", "require", "tried_for", "without_modules"]

DOWNLOAD_SECONDS: Final = 60.0
"""How long the packages of virtual machines may take before their tests are skipped; what came by then is kept."""
_DOWNLOAD: Final = "import sys; from netfold.topo.rxe import packages; sys.exit(packages.lacking() or packages.fetch())"


def _namespaces() -> str | None:
    """Tried: a virtual link in a network namespace of its own."""
    from netfold.topo.network import sandbox

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


def _rxe() -> str | None:
    """Tried: packages that are not in the cache are downloaded, for a minute at most; in a sandbox they are there."""
    from netfold.topo.network import sandbox

    if sandbox.inside():  # which has no network: the test is in it because all was there
        return None
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


def _mptcp() -> str | None:
    """Tried: a socket of Multipath TCP, which the kernel may be built without, or forbid."""
    from netfold.bench.ranks.mptcp import mptcp_socket

    try:
        mptcp_socket().close()
    except OSError as error:
        return str(error)
    return None


def _python_device() -> str | None:
    """Older ones cannot register a PrivateUse1 device in Python."""
    from torch.utils import backend_registration

    there = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
    return None if there else "torch is too old"


def _libpython() -> str | None:
    from netfold.host.capi import library

    return library.lacking()


NEEDS |= {
    "namespaces": Need("root, or a kernel that lets users make namespaces; apt install iproute2 ethtool util-linux",
                       ("unshare", "ip", "ethtool"), check=_namespaces),
    "torch": Need("pip install torch", modules=("torch",)),
    "python-device": Need("pip install 'torch>=2.13'", modules=("torch",), check=_python_device),
    "expecttest": Need("pip install expecttest", modules=("torch", "expecttest")),
    "torchft": Need("pip install torchft parameterized", modules=("torch", "torchft", "parameterized")),
    "mininet": Need("apt install mininet", check=_mininet),
    "mptcp": Need("a kernel with CONFIG_MPTCP and `sysctl net.mptcp.enabled=1`; apt install iproute2", ("ip",),
                  check=_mptcp),
    "mn": Need("run the tests with the Python that Mininet was installed for", ("mn",), check=_mn),
    "rxe": Need("on Debian, apt install --no-install-recommends qemu-system-x86; 80 MB are downloaded",
                ("qemu-system-x86_64",), check=_rxe),
    "dpkg-deb": Need("a machine with Debian's dpkg", ("dpkg-deb",)),
    "sshd": Need("as root, apt install openssh-server openssh-client", ("ssh", "ssh-keygen"), check=_daemons("sshd")),
    "slurm": Need("as root, apt install slurmctld slurmd slurm-client munge", ("srun", "sinfo"),
                  check=_daemons("slurmctld", "slurmd", "munged")),
    "tshark": Need("apt install tshark", ("tshark",)),
    "netlab": Need("pip install networklab", ("netlab",)),
    "containerlab-schema": Need("CONTAINERLAB_SCHEMA names containerlab's schemas/clab.schema.json; pip install "
                                "jsonschema pyyaml", modules=("jsonschema", "yaml"),
                                check=variable("CONTAINERLAB_SCHEMA")),
    "verbs": Need("apt install libibverbs-dev", ("gcc",), check=_verbs),
    "libpython": Need("as root, apt install the package libpython3.*-dev of this Python's version", check=_libpython),
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
}


if __name__ == "__main__":
    print(f"{'C compiler':16} {' '.join(find_compiler().command)}")
    for wanted in NEEDS:
        lack = missing(wanted)
        print(f"{wanted:16} {'there' if lack is None else f'MISSING: {lack}'}")
