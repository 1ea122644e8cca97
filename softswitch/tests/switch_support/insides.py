# SPDX-License-Identifier: Apache-2.0
"""How an engine reaches its switch: by calls in this process, or by a socket."""

from __future__ import annotations

from softswitch.engine.engine import Engine
from softswitch.engine.local import LocalEngine
from softswitch.engine.transport import InProcess, OverSocket


def transport(engine: LocalEngine) -> InProcess:
    """The transport of requests to a switch in this process."""
    return engine._local


def over_socket(engine: Engine) -> OverSocket:
    """The transport of requests to the process of a switch."""
    over = engine._channel._transport
    assert isinstance(over, OverSocket)
    return over
