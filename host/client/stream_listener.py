# SPDX-License-Identifier: Apache-2.0
"""Reads a stream of the controller's messages on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import grpc

CLOSE_SECONDS: Final = 1.0


class StreamListener:
    """A thread that reads a gRPC stream from the moment it is made until ``close``.

    call        the stream
    on_message  called on the thread with each message
    on_end      called on the thread with the reason why the stream ended, unless this side closed it
    """

    def __init__(self, call: Any, name: str, on_message: Callable[[Any], None], on_end: Callable[[str], None]) -> None:
        self._call = call
        self._thread = threading.Thread(target=_listen, args=(call, on_message, on_end), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancels the stream, joins the thread and deletes the stream; safe to call twice.

        A stream takes a lock when it is deleted, which one of gRPC's threads holds now and then.  When the interpreter
        ends, that thread may have been stopped while it held the lock, and whoever then deletes the stream waits
        forever.  Therefore it is deleted here.
        """
        if self._call is not None:
            self._call.cancel()
            self._call = None
            self._thread.join(CLOSE_SECONDS)


def _listen(call: Any, on_message: Callable[[Any], None], on_end: Callable[[str], None]) -> None:
    why = "the controller ended it"
    try:
        for message in call:
            on_message(message)
    except grpc.RpcError as error:
        error.__traceback__ = None  # the stream raises itself, and would be in a cycle with this frame: `close`
        if error.code() is grpc.StatusCode.CANCELLED:  # by us
            return
        why = f"{error.code().name}: {error.details()}"
    on_end(why)
