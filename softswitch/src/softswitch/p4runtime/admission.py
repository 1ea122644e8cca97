# SPDX-License-Identifier: Apache-2.0
"""Keeps clients from holding up each other: calls that stand still are ended, and those who only read have few places.

Every call of gRPC's Python server takes a thread of one pool.  A client that opens calls and never sends their request,
or that reads no answer, would take them all, and nobody could write to the switch.  So a request must be there within
REQUEST_WITHIN seconds, each part of an answer must be taken within ANSWER_WITHIN seconds, and clients that may not be
primary (primaries.py) have GUEST_CALLS places together.

Their messages have at most GUEST_BYTES; longer ones are not even decoded: 16 MB of empty entities would take 600 MB.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from softswitch.engine.errors import EngineError, InvalidArgument, ResourceExhausted, Unimplemented
from softswitch.p4runtime.statuses import abort

_Decode = Callable[[bytes], Any]

REQUEST_WITHIN = 10.0
"""Seconds from the start of a call to its request, or of a stream to its first message."""
ANSWER_WITHIN = 30.0
"""Seconds that a client may take to read a part of an answer."""
GUEST_CALLS = 8
"""Most calls at the same time of all clients that may not be primary."""
GUEST_BYTES = 1 << 16
"""Most bytes of a message from a client that may not be primary."""
SWEEP = 1.0
"""Seconds between two checks for calls that have stalled."""


class Deadlines:
    """Cancels calls that stand still: a thread looks at all of them every SWEEP seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[Any, float] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="softswitch-deadlines", daemon=True).start()

    def set(self, context: Any, seconds: float) -> None:
        """Cancels the call unless `set` or `clear` is called again within so many seconds."""
        with self._lock:
            self._due[context] = time.monotonic() + seconds

    def clear(self, context: Any) -> None:
        """Lets the call take its time."""
        with self._lock:
            self._due.pop(context, None)

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(SWEEP):
            now = time.monotonic()
            with self._lock:
                late = [context for context, due in self._due.items() if due <= now]
                for context in late:
                    del self._due[context]
            for context in late:
                context.cancel()


class Admission(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stub alone
    """Serves calls with one request as if they had a stream of requests, which are the same on the wire: gRPC's server
    would wait for the request itself, without an end.

    is_guest  whether a call is of a client that may not be primary
    """

    def __init__(self, deadlines: Deadlines, is_guest: Callable[[grpc.ServicerContext], bool]) -> None:
        self._deadlines = deadlines
        self._is_guest = is_guest
        self._lock = threading.Lock()
        self._guests = 0

    @property
    def guests(self) -> int:
        """Calls of clients that may not be primary that are being served."""
        return self._guests

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """The handler of a method, with limits."""
        handler = continuation(details)
        if handler is None:
            return None
        decode, encode = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream, decode), None, encode)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._many(handler.unary_stream, decode), None, encode)
        return grpc.stream_unary_rpc_method_handler(self._one(handler.unary_unary, decode), None, encode)

    def _one(self, serve: Callable[[Any, Any], Any], decode: _Decode) -> Callable[[Iterator[bytes], Any], Any]:
        def call(requests: Iterator[bytes], context: Any) -> Any:
            with self._place(context):
                return serve(self._request(requests, context, decode), context)

        return call

    def _stream(
        self, serve: Callable[[Any, Any], Iterator[Any]], decode: _Decode
    ) -> Callable[[Iterator[bytes], Any], Iterator[Any]]:
        def call(requests: Iterator[bytes], context: Any) -> Iterator[Any]:
            guest = self._is_guest(context)
            return serve((_decoded(data, decode, guest) for data in requests), context)

        return call

    def _many(
        self, serve: Callable[[Any, Any], Iterator[Any]], decode: _Decode
    ) -> Callable[[Iterator[bytes], Any], Iterator[Any]]:
        def call(requests: Iterator[bytes], context: Any) -> Iterator[Any]:
            with self._place(context):
                try:
                    for part in serve(self._request(requests, context, decode), context):
                        self._deadlines.set(context, ANSWER_WITHIN)
                        yield part
                        self._deadlines.clear(context)
                finally:
                    self._deadlines.clear(context)

        return call

    @contextmanager
    def _place(self, context: Any) -> Iterator[None]:
        """Holds a place of the guests while one of them is served."""
        guest = self._is_guest(context)
        if guest:
            with self._lock:
                admitted = self._guests < GUEST_CALLS
                self._guests += admitted
            if not admitted:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{GUEST_CALLS} calls of clients that may not be "
                              "primary (--primary) are being served; try again")
        try:
            yield
        finally:
            if guest:
                with self._lock:
                    self._guests -= 1

    def _request(self, requests: Iterator[bytes], context: Any, decode: _Decode) -> Any:
        self._deadlines.set(context, REQUEST_WITHIN)
        try:
            data: bytes | None = next(requests, None)
        finally:
            self._deadlines.clear(context)
        try:
            if data is None:
                raise Unimplemented("the call ended without a request")
            return _decoded(data, decode, self._is_guest(context))
        except EngineError as error:
            abort(context, error)


def _decoded(data: bytes, decode: _Decode, guest: bool) -> Any:
    """The message of these bytes.  Raises ResourceExhausted and InvalidArgument."""
    if guest and len(data) > GUEST_BYTES:
        raise ResourceExhausted(f"a message of {len(data)} bytes: expected at most {GUEST_BYTES} of a client that may "
                                "not be primary (--primary)")
    try:
        return decode(data)
    except DecodeError as error:
        raise InvalidArgument(f"a message of {len(data)} bytes cannot be read: {error}") from error
