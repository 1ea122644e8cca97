# SPDX-License-Identifier: Apache-2.0
"""Reads a stream of the controller's messages on a thread of its own, and opens it anew where it breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import grpc

CLOSE_SECONDS: Final = 1.0

OnEnd = Callable[[str, grpc.StatusCode], float | None]
"""Called with the reason why a stream ended and its status; returns the seconds after which it is opened again, or None
if it is not."""


class StreamListener:
    """A thread that reads a gRPC stream from the moment it is made until ``close``.

    call        opens the stream; called on the thread
    on_message  called on the thread with each message
    on_end      called on the thread when the stream ended, unless this side closed it
    """

    def __init__(self, call: Callable[[], Any], name: str, on_message: Callable[[Any], None], on_end: OnEnd) -> None:
        self._open = call
        self._on_message = on_message
        self._on_end = on_end
        self._call: Any = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_listening(self) -> bool:
        """True if the thread is still reading, or waits to open the stream again."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Cancels the stream, joins the thread and deletes the stream; safe to call twice.

        A stream takes a lock when it is deleted, which one of gRPC's threads holds now and then.  When the interpreter
        ends, that thread may have been stopped while it held the lock, and whoever then deletes the stream waits
        forever.  Therefore it is deleted here.
        """
        self._closing.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        self._thread.join(CLOSE_SECONDS)
        self._call = None

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None and not self._closing.wait(pause):
            try:
                with self._lock:
                    self._call = self._open()
                if self._closing.is_set():
                    self._call.cancel()
                why, status = self._read(self._call)
            except ValueError as error:  # the channel was closed under us, because another call found it dead
                why, status = str(error), grpc.StatusCode.UNAVAILABLE
            with self._lock:
                self._call = None
            pause = None if self._closing.is_set() else self._on_end(why, status)

    def _read(self, call: Any) -> tuple[str, grpc.StatusCode]:
        """Reads a stream to its end.  Returns why it ended, and its status."""
        try:
            for message in call:
                self._on_message(message)
        except grpc.RpcError as error:
            error.__traceback__ = None  # the stream raises itself, and would be in a cycle with this frame: `close`
            return f"{error.code().name}: {error.details()}", error.code()
        return "the controller ended it", grpc.StatusCode.OK
