# SPDX-License-Identifier: Apache-2.0
"""The start of a fabric, on one machine or over several: the addresses of its sockets, and the seconds that its
controller may take.  This module needs no Mininet, which a launcher of other machines' parts may lack."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from netfold.fabric.graph import Fabric

CONTROLLER_SECONDS: Final = 180.0
"""Seconds for the controller to compile the program and fill every switch: the first compilation takes 8 s of a
processor, and on a busy machine many times that.  If the controller ends, that is reported at once."""
SWITCHES_SECONDS: Final = CONTROLLER_SECONDS - 10
"""Part of these seconds that the controller gives the switches, so that it can report by itself which did not start."""


def with_sockets_in(fabric: Fabric, folder: Path) -> Fabric:
    """The same fabric with unix sockets in ``folder`` for all gRPC addresses: they are reached from every namespace."""
    switches = [msgspec.structs.replace(s, grpc=f"unix:{folder / s.name}.sock") for s in fabric.switches]
    return msgspec.structs.replace(fabric, switches=tuple(switches), jobs=f"unix:{folder / 'controller'}.sock",
                                   standby=fabric.standby and f"unix:{folder / 'standby'}.sock")
