# SPDX-License-Identifier: Apache-2.0
"""Finds the v1model programs in a folder of checkouts of public repositories, and the folders that they include from.

The folder holds one checkout for each repository, named OWNER+NAME; a file `.commit` in it says which commit it is
where it is not a git checkout itself. p4c's own samples are left out, and so are other repositories' copies of them
where the folder has a p4lang+p4c; of programs that are the same but for comments and spaces, the first is taken.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAMPLES = "p4lang+p4c"
COPIES = frozenset({"verified-network-toolchain+petr4", "P4-Research+nikss-p4c", "nyu-systems+gauntlet"})
"""Repositories with p4c's samples of older years, which its newest commit has only by name."""
ORIGINALS = ("p4lang+", "nsg-ethz+", "jafingerhut+", "opennetworkinglab+", "sonic-net+")
"""Whose programs others copy: of two that are the same, theirs is listed."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
_SWITCH = re.compile(r"V1Switch(<[^;]*>)?\(")
_STANDARD = ("core.p4", "v1model.p4")


@dataclass(frozen=True)
class ForeignProgram:
    """A program with a `main` for v1model."""

    repository: str
    """OWNER/NAME."""
    commit: str
    root: Path
    """The checkout."""
    path: str
    """The file with `main`, relative to `root`."""
    include: tuple[Path, ...]
    """Folders for -I."""
    size: int
    """Characters of the file and of all that it includes from the repository."""

    @property
    def file(self) -> Path:
        """The file with `main`."""
        return self.root / self.path


def find(folder: Path) -> Iterator[ForeignProgram]:
    """The programs of all checkouts under `folder`, by repository and path."""
    samples = {_digest(_text(file)) for file in _p4_files(folder / SAMPLES)}
    names = {file.name for file in _p4_files(folder / SAMPLES)}
    seen = set(samples)
    roots = [path for path in folder.iterdir() if path.is_dir() and path.name != SAMPLES]
    for root in sorted(roots, key=lambda path: (not path.name.startswith(ORIGINALS), path.name)):
        if "+" not in root.name:
            continue
        commit = _commit(root)
        for file in _p4_files(root):
            text = _text(file)
            bare = re.sub(r"\s+", "", _COMMENT.sub(" ", text))
            if not _SWITCH.search(bare) or ")main;" not in bare or (root.name in COPIES and file.name in names):
                continue
            include = _include_folders(root, file)
            whole = _with_includes(file, include)
            digest = _digest(whole)
            if digest not in seen:
                seen.add(digest)
                yield ForeignProgram(root.name.replace("+", "/", 1), commit, root, str(file.relative_to(root)), include,
                                     len(whole))


def _p4_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.p4") if path.is_file())


def _commit(root: Path) -> str:
    noted = root / ".commit"
    if noted.exists():
        return noted.read_text().strip()
    return subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], check=True, capture_output=True,
                          text=True).stdout.strip()


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(errors="replace")


def _digest(text: str) -> str:
    return hashlib.sha256(re.sub(r"\s+", "", _COMMENT.sub(" ", text)).encode()).hexdigest()


def _included(file: Path) -> Iterator[str]:
    for match in _INCLUDE.finditer(_COMMENT.sub(" ", _text(file))):
        yield match[1] or match[2]


def _with_includes(file: Path, include: tuple[Path, ...]) -> str:
    """The text with that of all files it includes, once each, whatever their #if."""
    texts, todo, done = [], [file], set()
    while todo:
        now = todo.pop()
        if now in done:
            continue
        done.add(now)
        texts.append(_text(now))
        todo += [found for name in _included(now) if (found := _look_up(now, name, include)) is not None]
    return "\n".join(texts)


def _look_up(by: Path, name: str, include: tuple[Path, ...]) -> Path | None:
    for folder in (by.parent, *include):
        if (folder / name).is_file():
            return Path(os.path.normpath(folder / name))
    return None


@functools.cache
def _by_name(root: Path) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            files.setdefault(path.name, []).append(path)
    return files


def _include_folders(root: Path, main: Path) -> tuple[Path, ...]:
    """The folders from which what the program includes is found, as its Makefile would name them: of several that
    would do, the one nearest to the program."""
    include: tuple[Path, ...] = ()
    todo, done = [main], set()
    while todo:
        now = todo.pop()
        if now in done:
            continue
        done.add(now)
        for name in _included(now):
            found = _look_up(now, name, include)
            if found is None and name not in _STANDARD:
                tail = Path(name).parts
                places = [path for path in _by_name(root).get(tail[-1], ()) if path.parts[-len(tail):] == tail]
                if places and ".." not in tail:
                    best = min(places, key=lambda path: (-len(os.path.commonpath([path, main])), len(path.parts)))
                    folder = best
                    for _ in tail:
                        folder = folder.parent
                    include = (*include, folder)
                    found = best
            if found is not None:
                todo.append(found)
    return include
