# SPDX-License-Identifier: Apache-2.0
"""Debian packages that are downloaded and unpacked into a cache, and not installed.

    tree = userland()      a file system tree with libibverbs, its provider for rxe, perftest and busybox
    kernel = kernel()      the newest kernel of the distribution, with all its modules

apt chooses the versions and verifies what it downloads against the signed lists; root is not needed.  Each package is
unpacked beside its place and moved there when it is whole, so that an interrupted download leaves nothing half done and
the next one begins with the package that is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cbuild import folders
from cbuild.cache import Cache
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.rxe import kernel_image

USERLAND: Final = (
    "busybox-static", "libibverbs1", "ibverbs-providers", "ibverbs-utils", "libibverbs-dev", "perftest", "librdmacm1",
    "libibumad3", "libnl-3-200", "libnl-route-3-200", "libpci3",
)
"""Packages that a guest has in addition to this machine's file system, and with which the rail "verbs" is built."""
KERNEL: Final = "linux-image-amd64"
"""Depends on the distribution's newest kernel; the kernels for clouds have no rdma_rxe."""
QEMU: Final = "qemu-system-x86_64"
PROGRAMS: Final = {QEMU: "qemu-system-x86", "setpriv": "util-linux", "rdma": "iproute2", "dpkg-deb": "dpkg",
                   "apt-get": "apt", "apt-cache": "apt"}
"""Programs that have to be installed, and the Debian packages that bring them."""
DOWNLOAD_SECONDS: Final = 600.0
ASK_SECONDS: Final = 180.0
"""Seconds for an answer of apt, which takes a second on a quiet machine."""


class PackagesMissing(FabricFailed):
    """Virtual machines are not available here; the message says what is missing and how to get it.

    Remedy: virtual machines as hosts need Debian on x86-64 with its package lists (`apt-get update`) and QEMU (`make
    machines`).
    """


@dataclass(frozen=True)
class Kernel:
    """A kernel as its package has it."""

    release: str
    """The release, as `uname -r` prints it."""
    image: Path
    """The kernel image for QEMU."""
    modules: Path
    """Folder with all its modules."""


def cache() -> Path:
    """The folder of the cache: debs in that of NetFold, such as ~/.cache/netfold (cbuild/cache.py), where nobody else
    can exchange what guests boot and run.  Raises PackagesMissing."""
    try:
        place = Cache("netfold").folder(lasting=True) / "debs"
        os.close(folders.opened(place, make=0o755))
    except OSError as error:
        raise PackagesMissing(f"{error.strerror}") from error
    return place


def lacking() -> str | None:
    """The missing requirements of this machine for virtual machines, in words, or None; nothing is downloaded."""
    if (lacks := lacking_programs()) is not None:
        return lacks
    try:
        _wanted()
    except PackagesMissing as error:
        return str(error)
    return None


def lacking_programs() -> str | None:
    """The missing requirements among the programs, which are not downloaded: found without apt, which takes a
    second."""
    if missing := sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None}):
        return f"not installed: {' '.join(missing)}; sudo apt-get install --no-install-recommends {' '.join(missing)}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing or not ours to open: sudo modprobe tun; this may need root"
    return None


def _wanted() -> dict[str, str]:
    """The version of each package that guests need: apt is asked for all at once.  Raises PackagesMissing."""
    return versions((*USERLAND, _kernel_package()))


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The version of each package that apt would install.  Raises PackagesMissing."""
    said = _ask(("policy", *packages), "asking apt for versions", os.environ.get("PATH", ""))
    found = dict(re.findall(r"^(\S+):\n(?:  .*\n)*?  Candidate: (\S+)$", said, re.MULTILINE))
    for package in packages:
        if found.get(package, "(none)") == "(none)":
            raise PackagesMissing(f"apt knows no package {package}: expected Debian or Ubuntu on x86-64 with its lists "
                                  "fetched (sudo apt-get update)")
    return {package: found[package] for package in packages}


def fetch() -> None:
    """Download what is not in the cache: before a sandbox is entered, which has no network.  Raises PackagesMissing."""
    if (lacks := lacking_programs()) is not None:
        raise PackagesMissing(lacks)
    kernel()
    userland()


def kernel() -> Kernel:
    """The distribution's newest kernel, downloaded where it is not in the cache.  Raises PackagesMissing."""
    package = _kernel_package()
    folder = unpacked(package, _wanted()[package])
    images = sorted((folder / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise PackagesMissing(f"{folder}: expected one /boot/vmlinuz-*, found {len(images)}")
    release = images[0].name.removeprefix("vmlinuz-")
    return Kernel(release, _bootable(images[0], folder), folder / "usr/lib/modules" / release)


def _bootable(image: Path, folder: Path) -> Path:
    """The kernel of an image of a package, decompressed once; the image where that cannot be."""
    place = folder.with_name(f"{folder.name}-decompressed")
    with _building(place) as beside:
        if beside is not None and (kernel := kernel_image.uncompressed(image.read_bytes())) is not None:
            (beside / "vmlinux").write_bytes(kernel)
    return place / "vmlinux" if (place / "vmlinux").exists() else image


def userland() -> Path:
    """A folder with all packages of USERLAND merged into one tree.  Raises PackagesMissing."""
    wanted = _wanted()
    parts = [unpacked(package, wanted[package]) for package in USERLAND]
    name = hashlib.sha256("\n".join(part.name for part in parts).encode()).hexdigest()[:16]
    place = cache() / f"userland-{name}"
    with _building(place) as beside:
        if beside is not None:
            for part in parts:
                shutil.copytree(part, beside, symlinks=True, dirs_exist_ok=True)
    return place


def unpacked(package: str, wanted: str) -> Path:
    """The folder of a package in a version, downloaded where it is not there.  Raises PackagesMissing."""
    place = cache() / f"{package}_{wanted.replace(':', '%3a')}"
    with _building(place) as beside:
        if beside is not None:
            with tempfile.TemporaryDirectory(dir=cache()) as downloads:
                _run(["apt-get", "download", "-q", f"{package}={wanted}"], f"downloading {package} {wanted}",
                     Path(downloads), DOWNLOAD_SECONDS)
                (file,) = Path(downloads).glob("*.deb")
                _unpack(file, beside)
    return place


@contextlib.contextmanager
def _building(place: Path) -> Iterator[Path | None]:
    """Give a folder that becomes ``place`` at the end of the block, or None where that exists; one process at once."""
    if place.exists():
        yield None
        return
    with (cache() / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            yield None
            return
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=cache()))
        try:
            yield beside
            beside.chmod(0o755)
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _unpack(file: Path, folder: Path) -> None:
    """Unpack a package with /bin, /lib and /sbin inside /usr, as Debian's merged file system has them."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(file)], stdout=subprocess.PIPE) as reader,
        tarfile.open(fileobj=reader.stdout, mode="r|") as archive,
    ):
        for member in archive:
            member.name = _merged(member.name)
            if member.islnk():
                member.linkname = _merged(member.linkname)
            # nothing outside of the folder, no owners of others; absolute links stay: it is another system's root
            archive.extract(member, folder, filter="tar")
    if reader.returncode != 0:
        raise PackagesMissing(f"unpacking {file.name}: dpkg-deb ended with status {reader.returncode}")


def _merged(name: str) -> str:
    name = name.removeprefix("./")
    return f"usr/{name}" if name.split("/")[0] in ("bin", "lib", "sbin", "lib64") else name


def _kernel_package() -> str:
    said = _ask(("depends", "--important", KERNEL), f"asking apt for {KERNEL}", os.environ.get("PATH", ""))
    found = re.search(r"^\s+Depends: (linux-image-\S+)$", said, re.MULTILINE)
    if found is None:
        raise PackagesMissing(f"apt knows no kernel by {KERNEL}: expected Debian on x86-64 with its lists fetched "
                              "(sudo apt-get update)")
    return found[1]


@functools.lru_cache(maxsize=16)
def _ask(words: tuple[str, ...], what: str, _path: str) -> str:
    """The answer of apt-cache, which takes a second: a process asks once."""
    return _run(["apt-cache", *words], what)


def _run(command: Sequence[str], what: str, folder: Path | None = None, seconds: float = ASK_SECONDS) -> str:
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds, check=False, env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError as error:
        raise PackagesMissing(f"{what}: there is no {command[0]}: expected Debian or Ubuntu") from error
    except subprocess.TimeoutExpired as error:
        raise PackagesMissing(f"{what}: not done within {seconds:g} s") from error
    if done.returncode != 0:
        raise PackagesMissing(f"{what} failed with status {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout
