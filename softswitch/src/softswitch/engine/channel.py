# SPDX-License-Identifier: Apache-2.0
"""Requests to a switch and their replies: batched, one batch at a time, and read page by page where they are long."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence

from softswitch.engine.codec import Op, Reader, request, split
from softswitch.engine.errors import EngineError, Internal, InvalidArgument
from softswitch.engine.transport import MESSAGE_MAX, Transport

BATCH = 256 * 1024
"""Most bytes of requests in one message, unless a single request is longer."""


class Channel:
    """Exchanges requests and replies over a transport. Threads may share it; their batches go one after another."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the transport; further requests raise Internal."""
        self._transport.close()

    def many(self, requests: Sequence[bytes]) -> list[bytes | EngineError]:
        """Sends requests in as few batches as their sizes allow and returns a reply or an error for each, in order."""
        replies: list[bytes | EngineError] = []
        at = 0
        while at < len(requests):
            batch: list[bytes] = []
            size = 0
            while at < len(requests) and (not batch or size + len(requests[at]) <= BATCH):
                batch.append(requests[at])
                size += len(requests[at])
                at += 1
            if size > MESSAGE_MAX - 64:
                raise InvalidArgument(f"a request of {size} bytes is longer than the switch takes ({MESSAGE_MAX - 64})")
            with self._lock:
                data = self._transport.exchange(b"".join(batch))
            answers = list(split(data))
            if not 0 < len(answers) <= len(batch):
                raise Internal(f"the switch gave {len(answers)} replies to {len(batch)} requests")
            at -= len(batch) - len(answers)    # requests whose replies did not fit into the message were not executed
            replies += answers
        return replies

    def one(self, request: bytes) -> bytes:
        """Sends one request and returns its reply. Raises the EngineError that the switch answered with."""
        (reply,) = self.many([request])
        if isinstance(reply, EngineError):
            raise reply
        return reply

    def pages(self, op: Op, head: bytes, tail: bytes) -> Iterator[Reader]:
        """Reads page after page and yields a reader at the start of each record, which the caller must consume."""
        cursor = 0
        while True:
            reader = Reader(self.one(request(op, head + struct.pack("<Q", cursor) + tail)))
            cursor, n = reader.unpack("<QI")
            for _ in range(n):
                yield reader
            if cursor == 0:
                return
