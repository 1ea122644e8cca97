# SPDX-License-Identifier: Apache-2.0
"""Waits until a switch listens, by plain connections: gRPC waits 100 ms and more between its attempts, and jobs stand
still for a leaf that starts."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

SOON: Final = 0.01
"""Seconds between attempts at first."""
SOON_TRIES: Final = 300
"""Attempts before they become rarer."""
LATER: Final = 0.2
"""Seconds between attempts from then on."""
PATIENCE: Final = 1.0
"""Seconds for one attempt: a machine that is off does not answer at all."""


async def listens(address: str) -> bool:
    """True if something accepts connections at ``unix:PATH`` or ``HOST:PORT`` now."""
    return await takes(address) == "silent"


async def takes(address: str) -> Literal["silent", "refused", "unreachable"]:
    """How ``unix:PATH`` or ``HOST:PORT`` takes a connection now: it is accepted, in silence, the machine says that
    nobody listens, or nothing is heard."""
    try:
        async with asyncio.timeout(PATIENCE):
            if address.startswith("unix:"):
                _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
            else:
                host, _, port = address.rpartition(":")
                _, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except (ConnectionRefusedError, FileNotFoundError):
        return "refused"
    except OSError:  # TimeoutError is one
        return "unreachable"
    writer.close()
    return "silent"


async def until_listening(address: str) -> None:
    """Wait, without a limit, until something accepts connections at an address."""
    tries = 0
    while not await listens(address):
        tries += 1
        await asyncio.sleep(SOON if tries < SOON_TRIES else LATER)
