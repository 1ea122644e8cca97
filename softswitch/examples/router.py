# SPDX-License-Identifier: Apache-2.0
"""Controls router.p4 with finsy, which comes with softswitch: three networks, and what was counted.

    python router.py 127.0.0.1:9559 [--counters]
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import sys

import finsy

NETWORKS = {1: "10.0.1", 2: "10.0.2", 3: "10.0.3"}
"""The /24 network behind each port: the router has .1 there."""


async def main(address: str, *, counters: bool) -> None:
    """Writes the entries, or prints what those that are there have counted."""
    async with finsy.Switch("router", address) as switch:
        if counters:
            async for entry in switch.read(finsy.P4DirectCounterEntry("routed")):  # type: ignore[attr-defined]
                network, bits = entry.table_entry.match["dst"]
                print(f"{ipaddress.ip_address(network)}/{bits}: {entry.packet_count} packets, {entry.byte_count} bytes")
            return
        entries = []
        for port, network in NETWORKS.items():
            router, host = f"02:00:00:00:00:0{port}", f"02:00:00:00:01:0{port}"
            entries += [
                +finsy.P4TableEntry("own_addresses", match=finsy.Match(target=f"{network}.1"),
                                    action=finsy.Action("reply", mac=router)),
                +finsy.P4TableEntry("routes", match=finsy.Match(dst=f"{network}.0/24"),
                                    action=finsy.Action("route", port=port, mac=router, next_hop=host)),
            ]
        await switch.write(entries)
        print(f"{len(entries)} entries written")


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # finsy asks for gNMI as well
    asyncio.run(main(sys.argv[1], counters="--counters" in sys.argv))
