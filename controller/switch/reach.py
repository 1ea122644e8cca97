# SPDX-License-Identifier: Apache-2.0
"""How an address takes plain connections.  gRPC waits 100 ms and more between its attempts to connect, and jobs stand
still for a leaf that starts; and it does not tell a process that is silent from one whose TLS is another."""

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
    opened = await _connected(address)
    if isinstance(opened, str):
        return opened
    opened[1].close()
    return "silent"


async def answers(
    address: str, said: bytes, timeout: float
) -> Literal["answered", "silent", "refused", "unreachable"]:
    """The same, where these bytes are said first: whoever says anything within ``timeout`` seconds, or closes the
    connection, has answered."""
    opened = await _connected(address)
    if isinstance(opened, str):
        return opened
    reader, writer = opened
    try:
        writer.write(said)
        async with asyncio.timeout(timeout):
            await reader.read(1)
    except ConnectionError:
        return "answered"
    except OSError:  # TimeoutError is one
        return "silent"
    finally:
        writer.close()
    return "answered"


async def _connected(
    address: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | Literal["refused", "unreachable"]:
    try:
        async with asyncio.timeout(PATIENCE):
            if address.startswith("unix:"):
                return await asyncio.open_unix_connection(address.removeprefix("unix:"))
            host, _, port = address.rpartition(":")
            return await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except (ConnectionRefusedError, FileNotFoundError):
        return "refused"
    except OSError:  # TimeoutError is one
        return "unreachable"


async def until_listening(address: str) -> None:
    """Wait, without a limit, until something accepts connections at an address."""
    tries = 0
    while not await listens(address):
        tries += 1
        await asyncio.sleep(SOON if tries < SOON_TRIES else LATER)
