# SPDX-License-Identifier: Apache-2.0
"""Builds the library of the C interface and NCCL's plug-in for this interpreter, and writes the files that C programs
need to a folder."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Final

from cbuild import cc
from netfold.disk import files

HERE: Final = Path(__file__).resolve().parent
LIBRARY: Final = "libnetfold.so"
HEADER: Final = "netfold.h"
PLUGIN: Final = "libnccl-net-netfold.so"
"""The name under which NCCL looks for a plug-in "netfold"."""
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
"""The version of this Python in the name of its shared library."""


def lacking() -> str | None:
    """The missing files that a build needs, with the command that installs them; None if all are present."""
    include, library = _python()
    missing = [str(path) for path in (include / "Python.h", library) if not path.exists()]
    if not missing:
        return None
    return (f"the C interface needs {' and '.join(missing)}. On Debian or Ubuntu: apt install libpython{VERSION}-dev. "
            "With pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install")


def build() -> Path:
    """The compiled library, built on first use.  It embeds the same CPython that runs this.

    Raises cbuild.cc.BuildError, with the package to install if Python's headers or its shared library are missing.
    """
    return _build("netfold-c", LIBRARY, ["netfold.c"])


def build_plugin() -> Path:
    """NCCL's plug-in, which has all of the library in it.  NCCL may unload it, and CPython cannot be: it stays.

    Raises cbuild.cc.BuildError as ``build``.
    """
    sources = ["netfold.c", "nccl_collnet.c", "nccl_device.c", "nccl_sockets.c"]
    return _build("netfold-nccl", PLUGIN, sources, "-Wl,-z,nodelete")


def _build(name: str, soname: str, sources: list[str], *options: str) -> Path:
    if (words := lacking()) is not None:
        raise cc.BuildError(words)
    include, library = _python()
    return cc.build(
        [HERE / source for source in sources],
        kind="shared",
        name=name,
        include=[HERE],
        flags=[f"-I{include}", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-missing-field-initializers",
               f'-DNETFOLD_PYTHON="{sys.executable}"'],
        libs=[f"-L{library.parent}", f"-lpython{VERSION}", f"-Wl,-rpath,{library.parent}", f"-Wl,-soname,{soname}",
              *options, "-lpthread", "-ldl"],
    )


def _python() -> tuple[Path, Path]:
    """The folder of Python's headers, and its shared library."""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    return Path(sysconfig.get_path("include")), folder / f"libpython{VERSION}.so"


def install(folder: Path) -> None:
    """Writes the library, its header and NCCL's plug-in to a folder, which is created if absent.

    Raises cbuild.cc.BuildError, and OSError where the folder cannot be written.
    """
    library, plugin = build().read_bytes(), build_plugin().read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / LIBRARY, library, mode=0o755)
    files.replace(folder / PLUGIN, plugin, mode=0o755)
    files.replace(folder / HEADER, (HERE / HEADER).read_bytes(), mode=0o644)


def options(folder: Path) -> list[str]:
    """The options with which a C compiler finds the files that ``install`` has put into a folder."""
    return [f"-I{folder}", f"-L{folder}", "-lnetfold", f"-Wl,-rpath,{folder}"]
