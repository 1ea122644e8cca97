# SPDX-License-Identifier: Apache-2.0
"""Which machine a figure is of, and whether its link or its processor was the limit."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final, Literal

Limit = Literal["link", "processor", "both", "neither"]
"""Limits of a figure; "neither" where it waited, as for a short message's way, or for one process of several."""
LINK: Final = 0.9
"""From this part of its rate on a link is the limit; headers and shaping leave 0.95 of it to payload."""
PROCESSOR: Final = 0.9
"""From this share of busy cores on the processor is."""


def limited_by(link_fraction: float, machine_busy: float) -> Limit:
    """Returns the limit of a measurement that used these parts, from 0 to 1, of a link's rate and of all cores."""
    link, processor = link_fraction >= LINK, machine_busy >= PROCESSOR
    if link and processor:
        return "both"
    return "link" if link else "processor" if processor else "neither"


def machine() -> str:
    """This machine in words: cores and their model, memory, kernel."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    return f"{cores} x {_model()}, {pages / (1 << 30):.0f} GiB, {platform.system()} {platform.release()}"


def _model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "model name":
            return value.strip()
    return platform.machine()
