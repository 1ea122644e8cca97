# SPDX-License-Identifier: Apache-2.0
"""gRPC services whose messages are msgspec structs in JSON: typed at the border, no generated code."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import grpc
import msgspec

log = logging.getLogger("netfold.controller")

Code = grpc.StatusCode
Request = TypeVar("Request")
Answer = TypeVar("Answer")
Method = tuple[type[Any], Callable[[Any], Awaitable[msgspec.Struct]]]
"""The request's type, and what answers it."""

CHANNEL_OPTIONS: Final = (("grpc.enable_http_proxy", 0),)


class Refusal(Exception):
    """A request that is turned down: a gRPC status code, and what, expected, got, what to do."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(Exception):
    """No controller answers, or it refused; says where and why."""


def service(name: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler[bytes, bytes]:
    """A gRPC service of unary methods.  Requests that do not decode are INVALID_ARGUMENT, Refusals what they say."""
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(_handler(f"{name}/{method}", request, answer))
        for method, (request, answer) in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _handler(
    name: str, request_type: type[Any], answer: Callable[[Any], Awaitable[msgspec.Struct]]
) -> Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
    decoder = msgspec.json.Decoder(request_type)

    async def handle(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            return msgspec.json.encode(await answer(decoder.decode(data)))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            await context.abort(Code.INVALID_ARGUMENT, f"{name}: {error}; host and controller may be of different "
                                                       "versions: install the same one")
        except Refusal as refusal:
            await context.abort(refusal.code, str(refusal))
        except Exception as error:
            log.exception("%s failed", name)
            await context.abort(Code.INTERNAL, f"{name}: the controller failed: {error!r}; its log has more")
        raise AssertionError("abort does not return")

    return handle


async def call(address: str, method: str, request: msgspec.Struct, answer: type[Answer], timeout: float) -> Answer:
    """One unary call, ``method`` as ``service/method``.  Raises Unreachable."""
    async with grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS)) as channel:
        unary = channel.unary_unary(f"/{method}", bytes, bytes)
        try:
            data = await unary(msgspec.json.encode(request), timeout=timeout)
            return msgspec.json.decode(data, type=answer)
        except grpc.aio.AioRpcError as error:
            if error.code() in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
                raise Unreachable(f"no controller answers at {address} ({error.details()}): is `netfold up` running, "
                                  "with this fabric?") from error
            raise Unreachable(f"the controller at {address} refused {method}: {error.details()}") from error
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Unreachable(f"the controller at {address} speaks another version: {error}") from error
