# SPDX-License-Identifier: Apache-2.0
"""Controls learning.p4 with finsy, which comes with softswitch: an entry for each address that a digest tells of.

    python learning.py 127.0.0.1:9559
"""

from __future__ import annotations

import asyncio
import logging
import sys

import finsy

PORTS = (1, 2, 3)


async def main(address: str) -> None:
    """Learns until it is ended."""
    async with finsy.Switch("learning", address) as switch:
        digest = +finsy.P4DigestEntry(
            "seen_t", max_list_size=100, max_timeout_ns=1_000_000, ack_timeout_ns=1_000_000_000
        )
        await switch.write([+finsy.P4MulticastGroupEntry(1, replicas=PORTS), digest])
        print("learning")
        known: set[int] = set()
        async for seen in switch.read_digests("seen_t"):
            for one in seen:
                mac, port = one["mac"], one["port"]
                if mac in known:
                    continue
                known.add(mac)
                await switch.write([
                    +finsy.P4TableEntry("sources", match=finsy.Match(src=mac, ingress_port=port),
                                        action=finsy.Action("known")),
                    +finsy.P4TableEntry("destinations", match=finsy.Match(dst=mac),
                                        action=finsy.Action("forward", port=port)),
                ])
                print(f"{finsy.MACAddress(mac)} is at port {port}")
            await switch.write([seen.ack()])


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # finsy asks for gNMI as well
    asyncio.run(main(sys.argv[1]))
