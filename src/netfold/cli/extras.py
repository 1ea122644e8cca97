# SPDX-License-Identifier: Apache-2.0
"""The extras of the distribution: what each is for, and whether what it brings is installed.

The base installation has everything that a training host needs; everything else is an extra (pyproject.toml).  This
module imports nothing outside the standard library, because it has to work where every extra is missing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse


@dataclass(frozen=True)
class Extra:
    """An optional part of the distribution."""

    name: str
    needed_for: str
    packages: Mapping[str, str]
    """Module that is imported -> distribution that brings it."""

    @property
    def remedy(self) -> str:
        """The command that installs its packages, whether NetFold came from a clone or from a wheel."""
        named = [package for package in self.packages.values() if package != SWITCH]
        return f"pip install {' '.join([*named, *([_place()] if SWITCH in self.packages.values() else [])])}"

    def missing(self) -> list[str]:
        """The distributions of this extra that are not installed; nothing is imported to find out.

        Mininet needs `distutils`, which is not what is looked for: where setuptools is installed, its finder answers
        for that name by importing all of setuptools.
        """
        return [package for module, package in self.packages.items() if find_spec(module) is None]


SWITCH: Final = "netfold-softswitch"
"""The distribution of the switch, which is on no index: it comes from where NetFold came from."""


def _place() -> str:
    """Where the switch lies, as pip is told of it: in the clone that NetFold runs or was installed from, or as a wheel
    beside NetFold's."""
    origin = _origin()
    for clone in (Path(__file__).resolve().parents[3], origin):
        if (clone / "softswitch" / "pyproject.toml").exists():
            return shlex.quote(str(clone / "softswitch"))
    wheels = sorted(origin.parent.glob(f"{SWITCH.replace('-', '_')}-*.whl"))
    return shlex.quote(str(wheels[-1])) if wheels else "./softswitch (in a clone of NetFold)"


def _origin() -> Path:
    """The folder or the wheel that NetFold was installed from, as pip has recorded it (PEP 610); else this file."""
    try:
        recorded = metadata.distribution("netfold").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
    url = urlparse(json.loads(recorded)["url"]) if recorded else None
    return Path(unquote(url.path)) if url is not None and url.scheme == "file" else Path(__file__)


BASE: Final = {"numpy": "numpy", "grpc": "grpcio", "msgspec": "msgspec", "cbuild": "netfold-cbuild"}
"""Packages that the library needs and every installation has: module -> distribution."""

CONTROL: Final = Extra("control", "the command netfold, the controller, fabrics on this machine",
                       {"finsy": "finsy", "networkx": "networkx", "prometheus_client": "prometheus-client",
                        "rich": "rich", "setuptools": "setuptools", "softswitch": SWITCH, "typer": "typer"})
COMPILER: Final = Extra("compiler", "a C compiler where the system has none", {"ziglang": "ziglang"})
DEMO: Final = Extra("demo", "netfold demo", {"sklearn": "scikit-learn"})
TORCH: Final = Extra("torch", "netfold.torch, and gloo beside us in netfold bench", {"torch": "torch"})
PLOTS: Final = Extra("plots", "figures of netfold sim ethereal and netfold bench paths", {"matplotlib": "matplotlib"})
SIM: Final = Extra("sim", "netfold sim on all cores, or on Ray or Dask", {"joblib": "joblib"})

EXTRAS: Final = (CONTROL, COMPILER, DEMO, TORCH, PLOTS, SIM)
"""Every extra that brings something for users, without `all`, `test`, `site` and `lint`."""
