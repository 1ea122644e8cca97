# SPDX-License-Identifier: Apache-2.0
"""A stream of the controller's messages, heard on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import grpc

CLOSE_SECONDS: Final = 1.0


class StreamListener:
    """From its making to `close`.

    call  the stream
    hear  called with each message, on the thread
    over  called with why it ended, on the thread; not where we closed it
    """

    def __init__(self, call: Any, name: str, hear: Callable[[Any], None], over: Callable[[str], None]) -> None:
        self._call = call
        self._thread = threading.Thread(target=_listen, args=(call, hear, over), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it, and lets go of the stream; safe to call twice.

        A stream takes a lock when it is deleted, which a thread of gRPC's holds now and then.  When the interpreter
        ends, that thread may have been stopped with it: whoever then deletes the stream waits forever.  So it is
        deleted here.
        """
        if self._call is not None:
            self._call.cancel()
            self._call = None
            self._thread.join(CLOSE_SECONDS)


def _listen(call: Any, hear: Callable[[Any], None], over: Callable[[str], None]) -> None:
    why = "the controller ended it"
    try:
        for message in call:
            hear(message)
    except grpc.RpcError as error:
        error.__traceback__ = None  # the stream raises itself, and would be in a cycle with this frame: `close`
        if error.code() is grpc.StatusCode.CANCELLED:  # by us
            return
        why = f"{error.code().name}: {error.details()}"
    over(why)
