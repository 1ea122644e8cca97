# SPDX-License-Identifier: Apache-2.0
"""Packages that are unpacked into a cache, with stand-ins for apt; dpkg-deb makes and reads real packages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from netfold.topo.rxe import kernel_image, packages
from support import needs

POLICY = """#!/bin/sh
# apt-cache
case "$1" in
depends) echo linux-image-amd64; echo "  Depends: linux-image-6.1.0-99-amd64" ;;
policy)
    shift
    for name; do echo "$name:"; echo "  Installed: (none)"; echo "  Candidate: 1:2.0-1"; echo "  Version table:"; done
    ;;
esac
"""
DOWNLOAD = """#!/bin/sh
# apt-get download -q NAME=VERSION
echo "$3" >> {log}
[ -e {broken} ] && {{ echo "E: cannot fetch" >&2; exit 100; }}
cp {packages}/${{3%%=*}}.deb .
"""


class Apt:
    """Stand-ins for apt's programs on PATH, and the packages that they have."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packages, self.log, self.broken = folder / "packages", folder / "log", folder / "broken"
        programs = folder / "bin"
        for place in (self.packages, programs):
            place.mkdir()
        download = DOWNLOAD.format(log=self.log, broken=self.broken, packages=self.packages)
        for name, script in (("apt-cache", POLICY), ("apt-get", download)):
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def add(self, name: str, files: dict[str, str]) -> None:
        """Make a package of these files."""
        root = self.packages / name
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN").chmod(0o755)  # dpkg-deb wants it, whatever the umask
        control = f"Package: {name}\nVersion: 1:2.0-1\nArchitecture: amd64\nMaintainer: x <x@y>\nDescription: x\n"
        (root / "DEBIAN/control").write_text(control)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, f"{root}.deb"], check=True, capture_output=True)

    def downloads(self) -> list[str]:
        """What was asked for, in order."""
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    """apt with the packages of a guest and of a kernel."""
    needs.require("dpkg-deb")
    apt = Apt(tmp_path, monkeypatch)
    for name in packages.USERLAND:
        apt.add(name, {f"usr/share/{name}": name, f"lib/shared/{name}": name})
    apt.add("linux-image-6.1.0-99-amd64", {"boot/vmlinuz-6.1.0-99-amd64": "k", "lib/modules/6.1.0-99-amd64/x.ko": "m"})
    return apt


def test_packages_are_merged_into_one_tree_with_lib_in_usr(apt: Apt) -> None:
    """The tree has what all packages have, and is made once."""
    tree = packages.userland()
    assert {path.name for path in (tree / "usr/lib/shared").iterdir()} == set(packages.USERLAND)
    assert {path.name for path in (tree / "usr/share").iterdir()} == set(packages.USERLAND)
    assert not (tree / "lib").exists()
    assert packages.userland() == tree
    assert apt.downloads() == [f"{name}=1:2.0-1" for name in packages.USERLAND]


def test_the_kernel_is_the_one_that_the_distribution_names(apt: Apt) -> None:
    """Its release, its image and its modules are found in what it unpacks to."""
    kernel = packages.kernel()
    assert kernel.release == "6.1.0-99-amd64"
    assert kernel.image.read_text() == "k"
    assert (kernel.modules / "x.ko").read_text() == "m"


def test_what_failed_half_way_goes_on_where_it_stopped(apt: Apt) -> None:
    """A failed download leaves no folder of its own, and what was whole is not fetched again."""
    packages.kernel()
    apt.broken.touch()
    with pytest.raises(packages.PackagesMissing, match=r"downloading busybox-static 1:2.0-1 failed.*\n.*cannot fetch"):
        packages.userland()
    folders = sorted(path.name for path in packages.cache().iterdir() if path.is_dir())
    assert folders == [f"linux-image-6.1.0-99-amd64_1%3a2.0-1{form}" for form in ("", "-decompressed")]
    apt.broken.unlink()
    packages.userland()
    packages.kernel()
    assert apt.downloads().count("linux-image-6.1.0-99-amd64=1:2.0-1") == 1


def test_a_machine_without_the_programs_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of Debian's packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.lacking() == (
        "not installed: apt dpkg iproute2 qemu-system-x86 util-linux; sudo apt-get install --no-install-recommends apt "
        "dpkg iproute2 qemu-system-x86 util-linux"
    )


def test_apt_without_lists_is_told_to_fetch_them(apt: Apt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that apt does not know has no candidate."""
    (tmp_path / "bin/apt-cache").write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(packages.PackagesMissing, match="apt-get update"):
        packages.userland()


def test_a_kernel_is_decompressed_once_where_it_can_be(apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU boots the kernel itself, kept beside its package; another form of image is booted as it is."""
    assert packages.kernel().image.name == "vmlinuz-6.1.0-99-amd64"
    monkeypatch.setenv("XDG_CACHE_HOME", f"{os.environ['XDG_CACHE_HOME']}-another")
    asked = []

    def uncompressed(image: bytes) -> bytes:
        asked.append(image)
        return b"kernel"

    monkeypatch.setattr(kernel_image, "uncompressed", uncompressed)
    assert {packages.kernel().image.read_bytes() for _ in range(2)} == {b"kernel"}
    assert asked == [b"k"]
