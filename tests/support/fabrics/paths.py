# SPDX-License-Identifier: Apache-2.0
"""Small runs of `netfold bench paths`, for tests."""

from __future__ import annotations

from typing import Any, Final

from netfold.bench.options.paths import PathsOptions

SMALL: Final = {
    "softswitch": PathsOptions(topo="leafspine,2,2,4", nbytes="400000", rounds=1),
    "bmv2": PathsOptions(topo="leafspine,2,2,4", rate="10mbit", switch="bmv2", nbytes="200000", rounds=1,
                         collectives="all_to_all,ring"),
}
LONG: Final[dict[str, dict[str, Any]]] = {
    "softswitch": {"rate": "20mbit", "nbytes": "9600000"}, "bmv2": {"nbytes": "4800000"},
}
"""Bytes that a link cannot carry before a busy machine has come to break it: some seconds."""
