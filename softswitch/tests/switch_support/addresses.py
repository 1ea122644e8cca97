# SPDX-License-Identifier: Apache-2.0
"""Free addresses for servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A TCP port that nobody listens on at this moment, and that the kernel gives to nobody who asks for any."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
