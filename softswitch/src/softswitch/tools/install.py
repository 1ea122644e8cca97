# SPDX-License-Identifier: Apache-2.0
"""Writes the stand-ins into a folder: programs with the names of p4c's and BMv2's, and Python modules in `python/`.

Each file starts this very installation of softswitch, by the absolute path of its interpreter and of its modules, so
that it works under sudo, in Mininet's nodes and whatever PATH, PYTHONPATH and virtual environment are set there.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from softswitch.tools import bmv2_modules, p4config

COMMANDS: dict[str, str] = {
    "p4c-bm2-ss": "softswitch.tools.p4c:p4c_bm2_ss",
    "p4c": "softswitch.tools.p4c:p4c",
    "simple_switch": "softswitch.tools.simple_switch:simple_switch",
    "simple_switch_grpc": "softswitch.tools.simple_switch:simple_switch_grpc",
    "simple_switch_CLI": "softswitch.tools.cli:simple_switch_cli",
}
"""Name of each program, and the module and function that it calls; the function's result is the exit status."""

MODULES: dict[str, str] = {
    "p4/__init__.py": p4config.PACKAGE,
    "p4/tmp/__init__.py": "",
    "p4/tmp/p4config_pb2.py": p4config.MESSAGES,
    **bmv2_modules.MODULES,
}
"""Python modules for control planes that import BMv2's: path below python/, and text. `import _softswitch` makes this
installation importable there."""

MARK = "written by `softswitch tools`"
"""Words in each file, by which a later run knows that it may replace it."""

PATHS_MODULE = "_softswitch.py"

_SHEBANG_MAX = 120
"""Longest first line that every Linux kernel reads as a whole."""


class ForeignFileError(Exception):
    """A file of that name exists, and `softswitch tools` has not written it.

    Remedy: give `softswitch tools` an empty folder of its own.
    """


class UnsafeError(Exception):
    """Another user could replace programs there, or they cannot be started; the message says why.

    Remedy: give a folder that belongs to you alone: its files are run as programs by everybody who has it on PATH.
    """


@dataclass(frozen=True)
class Installed:
    """The folders for PATH and PYTHONPATH."""

    programs: Path
    modules: Path

    def exports(self) -> str:
        """Lines for a POSIX shell: `eval "$(softswitch tools DIR)"`."""
        return (f"export PATH={_quoted(self.programs)}:\"$PATH\"\n"
                f"export PYTHONPATH={_quoted(self.modules)}\"${{PYTHONPATH:+:$PYTHONPATH}}\"")


def install(folder: Path, *, force: bool = False) -> Installed:
    """Writes all stand-ins into `folder`, which is made where it is missing; those of an earlier run are replaced.

    force  whether files that others have written are replaced too
    Raises ForeignFileError and UnsafeError, before anything is written, and OSError.
    """
    folder = Path(os.path.abspath(folder))  # not resolved: a link that is moved later shall stay good
    modules = folder / "python"
    files = {folder / name: _program(target) for name, target in COMMANDS.items()}
    files[modules / PATHS_MODULE] = _module(_APPEND.format(paths=_import_paths()))
    files.update({modules / name: _module(text) for name, text in MODULES.items()})
    for place in {path.parent for path in files}:
        _check(place)
    foreign = [path for path in files if not force and not _ours(path)]
    if foreign:
        raise ForeignFileError(f"{', '.join(map(str, foreign))}: not written by `softswitch tools`, and so not "
                               "replaced; expected a folder of its own, or --force")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _check(path.parent)  # another may have made it just now
        _write(path, text, 0o755 if path.parent == folder else 0o644)
    return Installed(folder, modules)


def _check(folder: Path) -> None:
    """Refuses a folder in which other users could replace what is run from there, or write what is imported."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    owners = {os.geteuid(), 0, int(os.environ.get("SUDO_UID", 0))}
    if status.st_uid not in owners or status.st_mode & stat.S_IWOTH:
        whose = "every user may write there" if status.st_mode & stat.S_IWOTH else "it belongs to another user"
        raise UnsafeError(f"{folder}: {whose}, and what lies there would be run: expected a folder of your own")


def _ours(path: Path) -> bool:
    """True if a path is free, or a file that an earlier run has written."""
    if not os.path.lexists(path):
        return True
    try:
        return not path.is_symlink() and MARK in path.read_text()
    except (OSError, UnicodeDecodeError):
        return False


def _write(path: Path, text: str, mode: int) -> None:
    """Replaces a file as a whole, so that one who starts it meanwhile gets the old one or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".softswitch-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


_APPEND = """
import sys

for path in {paths!r}:
    if path not in sys.path:
        sys.path.append(path)
"""


def _import_paths() -> list[str]:
    """Where this installation imports from besides Python's own library; softswitch's own folder comes first."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # first is where the program lies, or what `python -m softswitch` was started in: no part of the installation
    search = sys.path if sys.flags.safe_path else sys.path[1:]
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    library |= {os.path.join(path, "lib-dynload") for path in library if path}
    paths = dict.fromkeys(os.path.abspath(path) for path in search if path and os.path.exists(path))
    return [own, *(path for path in paths if path not in library | {own} and not _writable_by_all(path))]


def _writable_by_all(path: str) -> bool:
    """True if every user could put modules there, which root would import."""
    return bool(os.stat(path).st_mode & stat.S_IWOTH)


def _program(target: str) -> str:
    """A script that calls the function `module:name`. Its process has the script's name, for killall and pgrep."""
    module, _, function = target.partition(":")
    # -E: the caller's PYTHONPATH is for its own interpreter. -P: modules beside the script are not ours.
    if "\\" in sys.executable or "\n" in sys.executable:
        raise UnsafeError(f"{sys.executable!r}: an interpreter whose path has such characters cannot be started")
    line = f"#!{sys.executable} -EP"
    if len(line) > _SHEBANG_MAX or not re.fullmatch(r"[!-~]+", sys.executable):  # a shell reads it, Python a string
        line = f"#!/bin/sh\n'''exec' {_quoted(sys.executable)} -EP \"$0\" \"$@\"\n' '''"
    own, *others = _import_paths()
    return (f"{line}\n# {MARK}\n{_APPEND.format(paths=others)}sys.path.insert(0, {own!r})\n\n"
            f"from {module} import {function}\n\nsys.exit({function}())\n")


def _module(text: str) -> str:
    return f"# {MARK}\n{text.lstrip()}"


def _quoted(text: str | Path) -> str:
    return "'" + str(text).replace("'", "'\\''") + "'"
