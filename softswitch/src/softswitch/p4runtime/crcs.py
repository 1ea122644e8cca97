# SPDX-License-Identifier: Apache-2.0
"""The parameters of custom CRCs, which Thrift sets, and which RECONCILE_AND_COMMIT keeps."""

from __future__ import annotations

import json

from softswitch.engine.engine import Engine
from softswitch.engine.errors import InvalidArgument, NotFound


def set_crc(engine: Engine, program: str, name: str, bits: int, polynomial: int, initial: int, final_xor: int, *,
            data_reflected: bool, remainder_reflected: bool) -> None:
    """Sets the parameters of a custom CRC, by its name in the program's JSON. Raises NotFound, InvalidArgument."""
    found = next((c for c in json.loads(program).get("calculations", []) if c["name"] == name), None)
    if found is None:
        raise NotFound(f"the program has no calculation {name}")
    if found["algo"] != f"crc{bits}_custom" or "crc" not in found:
        raise InvalidArgument(f"calculation {name} is {found['algo']}: expected crc{bits}_custom")
    engine.set_crc(found["crc"], bits, polynomial, initial, final_xor, data_reflected=data_reflected,
                   remainder_reflected=remainder_reflected)
