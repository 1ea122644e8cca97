# SPDX-License-Identifier: Apache-2.0
"""gRPC services whose messages are msgspec structs in JSON: typed at the border, no generated code."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import grpc
import msgspec

from netfold.rpc import channel as tls
from netfold.rpc import tokens
from netfold.rpc.certificates import TlsError

log = logging.getLogger("netfold.controller")

Code = grpc.StatusCode
Request = TypeVar("Request")
Answer = TypeVar("Answer")
Context = grpc.aio.ServicerContext[bytes, bytes]
Method = tuple[type[Any], Callable[[Any], Awaitable[msgspec.Struct]]]
"""The request's type, and the coroutine function that answers it."""
Admit = Callable[[str, str, str], None]
"""Checks a call's method and the caller's token; the third is the other end of its connection, as gRPC has it."""
Stream = tuple[type[Any], Callable[[Any], AsyncGenerator[msgspec.Struct, None]]]
"""The request's type, and the generator of its answers, which is closed if the caller goes away."""


STATUS_BYTES: Final = 4096
"""Most bytes of a status's message, as gRPC encodes it: from 8 KiB on, clients refuse all that comes with it."""


REQUEST_BYTES: Final = 512 << 10
"""Most bytes of a request, 4,096 flows with the longest numbers among them: whoever may call can hold the server's loop
for as long as it takes to decode one."""
LARGE_BYTES: Final = 4 << 20
"""Most bytes of a request to a method that takes large ones, which is gRPC's own bound as well."""


class Refusal(Exception):
    """A server refuses a request: a gRPC status code, and a message with what was expected, what came, what to do."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(Exception):
    """No controller answers, or it refuses the call; the message says where and why.

    Remedy: start the controller or fabric, or give an address at which this process reaches it (--controller,
    NETFOLD_CONTROLLER, the fabric file).  With TLS, the message names the problem of the certificates.
    """


class CallRefused(Unreachable):
    """A controller answers, but refuses the call.

    Remedy: the controller gives the reason.  Correct the name or number that it did not expect, or give a token of the
    required scope (NETFOLD_TOKEN_FILE).
    """

    invalid = False
    """True if the request itself is wrong, such as an unknown name."""


def service(
    name: str,
    methods: Mapping[str, Method],
    streams: Mapping[str, Stream] | None = None,
    *,
    admit: Admit = lambda method, token, peer: None,
    large: Collection[str] = (),
) -> grpc.GenericRpcHandler[bytes, bytes]:
    """A gRPC service.  Requests that do not decode end with INVALID_ARGUMENT, those that are too large, which nobody
    decodes, with RESOURCE_EXHAUSTED, a Refusal with its code.

    methods  methods with one answer, by name
    streams  methods with a stream of answers, by name
    admit    raises Refusal for a caller that may not call this method; it is called before the request is decoded
    large    methods whose requests may have LARGE_BYTES instead of REQUEST_BYTES
    """
    def decoder(method: str, request: type[Any]) -> Callable[[bytes], Any]:
        return _decoder(f"{name}/{method}", request, LARGE_BYTES if method in large else REQUEST_BYTES)

    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            _unary(f"{name}/{method}", decoder(method, request), answer, partial(admit, method))
        )
        for method, (request, answer) in methods.items()
    }
    handlers |= {
        method: grpc.unary_stream_rpc_method_handler(
            _stream(f"{name}/{method}", decoder(method, request), answers, partial(admit, method))
        )
        for method, (request, answers) in (streams or {}).items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


@contextlib.asynccontextmanager
async def _errors_as_status(name: str, context: Context) -> AsyncIterator[None]:
    """Turn exceptions of a handler into the status of its call."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        await context.abort(Code.INVALID_ARGUMENT, _cut(f"{name}: {error}; host and controller may be of different "
                                                        "versions: install the same one"))
    except Refusal as refusal:
        await context.abort(refusal.code, _cut(str(refusal)))
    except Exception as error:
        log.exception("%s failed", name)
        await context.abort(Code.INTERNAL, _cut(f"{name}: the controller failed: {error!r}; its log has more"))


def _cut(words: str) -> str:
    """The part of a message that a status carries: clients get another status instead of a longer one."""
    took = 0
    for at, character in enumerate(words):
        took += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if took > STATUS_BYTES:
            return f"{words[:at]} ... ({len(words) - at} characters more)"
    return words


def _decoder(name: str, request: type[Any], most: int) -> Callable[[bytes], Any]:
    decoder = msgspec.json.Decoder(request)

    def decode(data: bytes) -> Any:
        if len(data) > most:
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{name}: expected a request of at most {most} bytes, got "
                                                   f"{len(data)}")
        return decoder.decode(data)

    return decode


def _unary(
    name: str,
    decode: Callable[[bytes], Any],
    answer: Callable[[Any], Awaitable[msgspec.Struct]],
    admit: Callable[[str, str], None],
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def handle(data: bytes, context: Context) -> bytes:
        async with _errors_as_status(name, context):
            admit(tokens.of_call(context.invocation_metadata()), context.peer())
            return msgspec.json.encode(await answer(decode(data)))
        raise AssertionError("abort does not return")

    return handle


def _stream(
    name: str,
    decode: Callable[[bytes], Any],
    answers: Callable[[Any], AsyncGenerator[msgspec.Struct, None]],
    admit: Callable[[str, str], None],
) -> Callable[[bytes, Context], Awaitable[None]]:
    async def handle(data: bytes, context: Context) -> None:
        async with _errors_as_status(name, context):
            admit(tokens.of_call(context.invocation_metadata()), context.peer())
            async with contextlib.aclosing(answers(decode(data))) as events:
                async for event in events:
                    await context.write(msgspec.json.encode(event))

    return handle


async def call(
    address: str, method: str, request: msgspec.Struct, answer: type[Answer], timeout: float, *,
    token: str | None = None,
) -> Answer:
    """Call ``method``, given as ``service/method``, and return its answer.  Raises Unreachable.

    address  of the controller; of several with commas, the first that answers
    token    what proves the caller's scope; empty: nothing does; None: that of the environment (tokens.given)
    """
    first, _, others = address.partition(",")
    if others:
        try:
            return await call(first.strip(), method, request, answer, timeout, token=token)
        except CallRefused:
            raise
        except Unreachable as error:
            try:
                return await call(others.strip(), method, request, answer, timeout, token=token)
            except CallRefused:
                raise
            except Unreachable as other:
                raise Unreachable(f"{error}\n{other}") from other
    try:
        metadata = tokens.metadata(tokens.given() if token is None else token)
    except tokens.TokenError as error:
        raise Unreachable(str(error)) from error
    try:
        tls.check(address, token=bool(metadata))
        opened = tls.aio_channel(address)
    except TlsError as error:
        raise Unreachable(str(error)) from error
    async with opened as channel:
        unary = channel.unary_unary(f"/{method}", bytes, bytes)
        try:
            data = await unary(msgspec.json.encode(request), timeout=timeout, metadata=metadata)
            return msgspec.json.decode(data, type=answer)
        except grpc.aio.AioRpcError as error:
            if error.code() in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
                late = error.code() is Code.DEADLINE_EXCEEDED
                why = f"not within {timeout:g} s" if late else error.details()
                raise Unreachable(f"no controller answers at {address} ({why}): is `netfold up` running, "
                                  f"with this fabric?{tls.hint(address)}") from error
            refused = CallRefused(f"the controller at {address} refused: {error.details()}")
            refused.invalid = error.code() in (Code.NOT_FOUND, Code.INVALID_ARGUMENT)
            raise refused from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unreachable(f"the controller at {address} speaks another version: {error}") from error
