# SPDX-License-Identifier: Apache-2.0
"""The program of p4src: compiled once for all tests, also for BMv2, its numbers, and its entries as engines take
them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from google.protobuf import text_format

from netfold.controller.switch import pipeline
from netfold.controller.switch.entities import Entry
from netfold.fabric.folding import trees
from netfold.wire import roce
from softswitch.compiler.driver import compile_file
from softswitch.engine import entities, linking, local
from switch_support.bmv2 import Bmv2

PROGRAM = Path(__file__).resolve().parents[3] / "p4src" / "netfold.p4"


@cache
def library(
    path_mtu: int = roce.PATH_MTU, *, bmv2: bool = False, faults: bool = False, children: int = trees.FEW_CHILDREN
) -> Path:
    """The program for a path MTU, compiled once for all tests; ``bmv2``: as it is compiled for BMv2; ``faults``: with
    faults that can be injected; ``children``: bits of its bitmaps."""
    defines = {"PATH_MTU": str(path_mtu), "FAULTS": str(int(faults)), "MAX_CHILDREN": str(children),
               **(pipeline.BMV2_DEFINES if bmv2 else {})}
    return linking.build(compile_file(PROGRAM, defines=defines, root=PROGRAM.parent))


def on_bmv2(folder: Path, *, ports: int, faults: bool = False, children: int = trees.FEW_CHILDREN) -> Bmv2:
    """A BMv2 with the program as the controller loads it, whose cache keeps what p4c makes: it takes 10 s of a
    processor."""
    made = pipeline.build("bmv2", faults=faults, children=children)
    (folder / "program.json").write_bytes(made.device_config)
    (folder / "program.txtpb").write_text(text_format.MessageToString(made.p4info))
    return Bmv2(None, folder, ports=ports)


def mac(text: str) -> bytes:
    """The six bytes of a MAC address such as 02:00:00:00:00:01."""
    return bytes.fromhex(text.replace(":", ""))


def native(switch: local.LocalEngine, entity: Entry) -> entities.Entry:
    """One of the controller's entries as engines take them; keys are exact values, or (value, prefix length)."""
    table = switch.table(entity.table)
    pairs = []
    for key, (_, value) in zip(table.keys, entity.key, strict=True):
        number, length = value if isinstance(value, tuple) else (value, key.bits)
        pairs.append((number, (1 << key.bits) - (1 << key.bits - length)))
    packed, mask = table.pack_key(pairs)
    action = table.action(entity.action)
    do = entities.DoAction(action.index, action.pack([value for _, value in entity.params]))
    return entities.Entry(table, packed, mask, do)


def rewrite(
    src_mac: int, dst_mac: int, src: int, dst: int, sport: int, queue_pair: int, flow: int, dport: int = roce.UDP_PORT
) -> list[int]:
    """Parameters of the action `rewrite`, with what they change of an ICRC."""
    changes = [
        roce.icrc_change(src, dst, sport, dport, queue_pair, more + roce.PATH_MTU) for more in (0, roce.RETH_BYTES)
    ]
    return [src_mac, dst_mac, src, dst, sport, dport, queue_pair, *changes, flow]


def p4_defines() -> dict[str, int]:
    """Numeric #defines of p4src/sizes.p4."""
    known: dict[str, int] = {}
    for name, text in re.findall(r"^#define\s+(\w+)[ \t]+([^/\n]+)", PROGRAM.with_name("sizes.p4").read_text(), re.M):
        known[name] = int(eval(text, {"__builtins__": {}}, dict(known)))
    return known
