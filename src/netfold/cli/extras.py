# SPDX-License-Identifier: Apache-2.0
"""The extras of the distribution: what each is for, and whether what it brings is installed.

The base installation has everything that a training host needs; everything else is an extra (pyproject.toml).  This
module imports nothing outside the standard library, because it has to work where every extra is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final


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
        return f"pip install {' '.join(self.packages.values())}"

    def missing(self) -> list[str]:
        """The distributions of this extra that are not installed; nothing is imported to find out.

        Mininet needs `distutils`, which is not what is looked for: where setuptools is installed, its finder answers
        for that name by importing all of setuptools.
        """
        return [package for module, package in self.packages.items() if find_spec(module) is None]


BASE: Final = {"numpy": "numpy", "grpc": "grpcio", "msgspec": "msgspec"}
"""What the library needs and every installation has: module -> distribution."""

CONTROL: Final = Extra("control", "the command netfold, the controller, fabrics on this machine",
                       {"finsy": "finsy", "networkx": "networkx", "prometheus_client": "prometheus-client",
                        "rich": "rich", "setuptools": "setuptools", "typer": "typer"})
SOFTSWITCH: Final = Extra("softswitch", "the command softswitch", {"finsy": "finsy", "typer": "typer"})
TOOLS: Final = Extra("tools", "softswitch's Thrift port and simple_switch_CLI", {"thrift": "thrift"})
COMPILER: Final = Extra("compiler", "a C compiler where the system has none", {"ziglang": "ziglang"})
DEMO: Final = Extra("demo", "netfold demo", {"sklearn": "scikit-learn"})
TORCH: Final = Extra("torch", "netfold.torch, and gloo beside us in netfold bench", {"torch": "torch"})
PLOTS: Final = Extra("plots", "figures of netfold sim ethereal and netfold bench paths", {"matplotlib": "matplotlib"})
SIM: Final = Extra("sim", "netfold sim on all cores, or on Ray or Dask", {"joblib": "joblib"})

EXTRAS: Final = (CONTROL, SOFTSWITCH, TOOLS, COMPILER, DEMO, TORCH, PLOTS, SIM)
"""Every extra that brings something for users, without `all`, `test`, `site` and `lint`."""
