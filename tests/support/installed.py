# SPDX-License-Identifier: Apache-2.0
"""Distributions built from this repository, and fresh environments to install them in; neither needs a network."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import Requirement

from support import ROOT

BUILT: Final = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
"""Files that a clone of the repository does not have."""
PROJECTS: Final = {"netfold": ".", "netfold-softswitch": "softswitch", "netfold-cbuild": "cbuild"}
"""Distribution -> the folder of its project."""
SECONDS: Final = 180.0
"""Within which any command here ends; a build takes about two."""


def clone(folder: Path) -> Path:
    """The working tree as a newcomer would have it, in ``folder``."""
    shutil.copytree(ROOT, folder, symlinks=True, ignore=BUILT)
    return folder


def build(kind: Literal["sdist", "wheel", "editable"], project: Path, folder: Path) -> Path:
    """The distribution file that setuptools makes of a project, in ``folder``."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / checked([sys.executable, "-c", code, str(folder)], cwd=project).splitlines()[-1]


def contents(wheel: Path) -> set[str]:
    """The files of a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata_of(wheel: Path) -> metadata.PackageMetadata:
    """The metadata of a wheel."""
    return _metadata(wheel).metadata


def requirements(wheel: Path) -> list[Requirement]:
    """The requirements of a wheel and its extras."""
    return [Requirement(text) for text in _metadata(wheel).requires or []]


class Built:
    """A clone with a file where `make library` writes, and the wheels of its projects in one folder: made by the first
    who asks, kept in ``folder`` for all workers of a run."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "netfold"
        self.folder = folder / "wheels"
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "built").exists():
                clone(self.clone)
                (where,) = re.findall(r"netfold\.host\.capi (\S+)", (self.clone / "Makefile").read_text())
                (self.clone / where).mkdir(parents=True)
                (self.clone / where / "libnetfold.so").touch()
                for project in PROJECTS.values():
                    build("wheel", self.clone / project, self.folder)
                (folder / "built").touch()

    def wheel(self, name: str) -> Path:
        """The wheel of a distribution."""
        (found,) = self.folder.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
        return found

    def wheels(self, *names: str) -> list[Path]:
        """The wheels of distributions."""
        return [self.wheel(name) for name in names]


class Environment:
    """A virtual environment that holds wheels and exactly what they declare that they need, the first one with these
    extras.

    The packages that they need are links to those of the environment that runs the test.
    """

    def __init__(self, home: Path, wheels: Sequence[Path], *extras: str) -> None:
        venv.create(home, symlinks=True)
        self.bin = home / "bin"
        self.python = str(self.bin / "python")
        (self._packages,) = home.glob("lib/python3*/site-packages")
        given = {built.name: built for built in map(_metadata, wheels)}
        first = _metadata(wheels[0])
        needed = _needed(first, extras, given).union(*(_needed(other, (), given) for other in given.values()))
        for name in needed - given.keys():
            self._link(metadata.distribution(name))
        wanted = [f"{first.name}[{','.join(extras)}] @ {wheels[0].as_uri()}", *map(str, wheels[1:])]
        # pip refuses where anything that is declared is missing; Python compiles what it imports, when it does
        self.pip("install", "--no-index", "--no-compile", *wanted)

    def pip(self, *arguments: str) -> str:
        """The output of pip, which works on this environment from outside."""
        return checked([sys.executable, "-m", "pip", "--python", self.python, "--quiet", *arguments], cwd=self.bin)

    def run(self, command: str, *arguments: str, status: int = 0, cwd: Path | None = None) -> str:
        """The output of a command of this environment on both streams; it must end with this exit status."""
        return checked([str(self.bin / command), *arguments], cwd=cwd or self.bin, status=status)

    def _link(self, distribution: metadata.Distribution) -> None:
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link = self._packages / top
            if not link.exists():  # folders such as google/ belong to several distributions
                link.symlink_to(Path(str(distribution.locate_file(top))))


def _metadata(wheel: Path) -> metadata.Distribution:
    name, version = wheel.name.split("-")[:2]
    return metadata.PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))


def _needed(
    distribution: metadata.Distribution, extras: Iterable[str], given: Mapping[str, metadata.Distribution]
) -> set[str]:
    """The names of all distributions that one needs with these extras, directly or through others; what is given
    counts as it is, and not as it is installed here."""
    found: set[str] = set()
    for requirement in map(Requirement, distribution.requires or []):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if requirement.name == distribution.name:
            found |= _needed(distribution, requirement.extras, given)
        else:
            other = given.get(requirement.name) or metadata.distribution(requirement.name)
            found |= {requirement.name} | _needed(other, requirement.extras, given)
    return found


def checked(command: list[str], *, cwd: Path, status: int = 0) -> str:
    """What a command prints on both streams, where it ends with this exit status.

    It does not see the variables by which Python would find other packages than those of its own environment.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=env, timeout=SECONDS, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, f"{command} ended with {done.returncode}, expected {status}:\n{done.stdout}"
    return done.stdout
