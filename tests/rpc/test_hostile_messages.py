# SPDX-License-Identifier: Apache-2.0
"""Requests that no client of ours sends: bytes that are no text, numbers beyond every bound, nests without end.

Every method of every service of a running controller gets them, in each of its fields.  It refuses them by name, and
serves who comes next.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.rpc import rpc
from netfold.wire.bounds import MAX_FLOWS
from netfold.wire.jobs import MAX_WORLD, Leave, RankReport, Resume, Watch
from netfold.wire.operator import SetDrain
from netfold.wire.paths import Follow, PathFlow
from support.control.controller import BOUND
from support.control.jobs import rig
from switch_support import fuzz

BROKEN = {
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "no JSON": b"{",
    "another type": b"[]",
    "deep nest": b"[" * 100_000,
    "deep field": b'{"job":' + b'{"a":' * 50_000,
    "no UTF-8 in a name": b'{"job":"\xff","switch":"\xff","name":"\xff","mode":"\xff"}',
    "half a character": b'{"job":"\\ud800","switch":"\\ud800","name":"\\ud800"}',
    "unknown field": b'{"exec":"rm"}',
}
VALUES = [b"1e30", b"1" + b"0" * 30, b"-1", b"-1" + b"0" * 30, b"1e400", b"NaN", b"1" * 5000,
          b'"' + b"x" * 100_000 + b'"', b'"[/x]\\u001b[2J"', b"null", b"[]", b"{}", b"[" * 1000 + b"]" * 1000,
          b'{"1' + b"0" * 30 + b'":1}', b'"\xff"']
REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION,
           grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.ALREADY_EXISTS,
           grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED}
"""Answers that name what is wrong; INTERNAL and UNKNOWN would be failures of the controller."""


def mutations(kind: type[Any]) -> Iterator[bytes]:
    """A request with hostile values in each of its fields in turn."""
    plain: dict[type, bytes] = {str: b'"j"', int: b"0", float: b"0.01", bool: b"false"}
    base: dict[str, bytes] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            bare = getattr(field.type, "__origin__", field.type)
            base[field.name] = plain.get(bare, b"{}" if bare is dict else b'"pinned"')
    for field in msgspec.structs.fields(kind):
        for value in VALUES:
            said = {**base, field.name: value}
            yield b"{" + b",".join(json.dumps(name).encode() + b":" + text for name, text in said.items()) + b"}"


def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[type[Any], bool]]:
    """All methods of the services that a controller makes from now on: request's type, and whether it streams."""
    found: dict[str, tuple[type[Any], bool]] = {}
    make: Callable[..., Any] = rpc.service

    def service(name: str, methods: Any, streams: Any = None, **settings: Any) -> Any:
        found.update({f"{name}/{method}": (about[0], False) for method, about in methods.items()})
        found.update({f"{name}/{method}": (about[0], True) for method, about in (streams or {}).items()})
        return make(name, methods, streams, **settings)

    monkeypatch.setattr(rpc, "service", service)
    return found


async def outcome(channel: grpc.aio.Channel, method: str, data: bytes, *, stream: bool) -> grpc.StatusCode:
    """How a controller answers one request."""
    try:
        if stream:
            call = channel.unary_stream(f"/{method}", bytes, bytes)(data, timeout=BOUND)
            await call.read()
            call.cancel()
        else:
            await channel.unary_unary(f"/{method}", bytes, bytes)(data, timeout=BOUND)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_no_request_is_a_failure_of_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some two thousand requests: each is answered or refused, none is INTERNAL; the status is served after them."""
    methods = recorded(monkeypatch)
    async with rig(tmp_path) as r:
        assert len(methods) > 15
        sent = 0
        for method, (kind, stream) in methods.items():
            for data in [*BROKEN.values(), *mutations(kind)]:
                code = await outcome(r.channel, method, data, stream=stream)
                assert code in REFUSED | {grpc.StatusCode.OK}, f"{method}: {code} for {data[:200]!r}"
                sent += 1
        assert sent > 1000
        assert (await client.status(r.fabric.jobs)).fabric == r.fabric.name


async def test_a_message_larger_than_its_method_needs_is_refused_undecoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding holds the controller's loop: only tickets and faults may be large, and the most flows fit."""
    methods = recorded(monkeypatch)
    large = {"netfold.Jobs/Watch", "netfold.Operator/Faults"}
    async with rig(tmp_path) as r:
        for method, (_, stream) in methods.items():
            code = await outcome(r.channel, method, b"[" * (rpc.REQUEST_BYTES + 1), stream=stream)
            assert (code is grpc.StatusCode.RESOURCE_EXHAUSTED) == (method not in large), f"{method}: {code}"
    most = Follow("j" * 255, 4095, 2**31 - 1, [[PathFlow(4095, 4095, 2**62 - 1)] * MAX_FLOWS], ranks=[4095] * MAX_WORLD)
    assert len(msgspec.json.encode(most)) < rpc.REQUEST_BYTES


@pytest.mark.fuzz
async def test_spoiled_requests_are_answered_or_refused(
    fuzzing: fuzz.Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of every method with bytes turned, removed and repeated: none is INTERNAL, and the status is served."""
    methods = recorded(monkeypatch)
    async with rig(tmp_path) as r, asyncio.timeout(fuzzing.seconds + BOUND):
        requests = {method: list(mutations(kind)) for method, (kind, _) in methods.items()}
        for draw in fuzzing.inputs(400):
            method = draw.choice(sorted(requests))
            data = fuzz.spoil(draw, draw.choice(requests[method] or [b"{}"]))
            code = await outcome(r.channel, method, data, stream=methods[method][1])
            assert code in REFUSED | {grpc.StatusCode.OK}, f"input {fuzzing.tried}: {method}: {code} for {data!r}"
        assert (await client.status(r.fabric.jobs)).fabric == r.fabric.name


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_message_is_an_invalid_argument(name: str, tmp_path: Path) -> None:
    """Not an error of the controller, and not a message of gRPC's own."""
    async with rig(tmp_path) as r:
        code, words = await r.refusal(BROKEN[name], "Leave")
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "netfold.Jobs/Leave" in words


@pytest.mark.parametrize(("kind", "changes"), [
    (Leave, {"reason": "x" * 5000}), (Leave, {"rank": 10**30}), (Leave, {"job": "x" * 300}),
    (Watch, {"epoch": -(10**30)}), (RankReport, {"operations": 2**63}), (RankReport, {"packets_sent": -1}),
    (RankReport, {"by_tree": {f"t{i}": 1 for i in range(5000)}}), (Resume, {"timeout": 1e30}),
    (Resume, {"timeout": -1}),
    (Resume, {"missing": {10**30: 1}}), (SetDrain, {"timeout": 1e18}), (Follow, {"root": 10**30}),
    (Follow, {"steps": [[]] * (MAX_FLOWS + 1)}), (Follow, {"ranks": [0] * (MAX_WORLD + 1)}),
    (Follow, {"steps": [[{"source": 0, "destination": 1, "size": 1}] * (MAX_FLOWS + 1)]}),
])
def test_every_field_has_bounds(kind: type[Any], changes: dict[str, Any]) -> None:
    """What a loop could not wait for, a counter not add, or a log not hold, is no message."""
    needed: dict[str, Any] = {field.name: {} if "dict" in str(field.type) else "j" if "str" in str(field.type) else
                              "bool" not in str(field.type) and 0 for field in msgspec.structs.fields(kind)
                              if field.required}
    msgspec.json.decode(json.dumps(needed).encode(), type=kind)
    with pytest.raises(msgspec.ValidationError, match=next(iter(changes))):
        msgspec.json.decode(json.dumps({**needed, **changes}).encode(), type=kind)


async def test_a_controller_that_answers_nonsense_is_named(tmp_path: Path) -> None:
    """A client of ours says that the other side speaks another version, whatever bytes came."""
    address = f"unix:{tmp_path}/s"
    for answer in BROKEN.values():
        async def say(_: bytes, __: Any, answer: bytes = answer) -> bytes:
            return answer

        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "netfold.Operator", {"Status": grpc.unary_unary_rpc_method_handler(say)}),))
        server.add_insecure_port(address)
        await server.start()
        with pytest.raises(rpc.Unreachable, match="speaks another version"):
            await client.status(address)
        await server.stop(None)
        await asyncio.sleep(0)


async def test_the_time_is_told_in_which_nobody_has_answered(tmp_path: Path) -> None:
    """A process listens at the address and says nothing."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(rpc.Unreachable, match=r"no controller answers at unix:.*/s \(not within 0\.2 s\): is"):
            await client.status(f"unix:{tmp_path}/s", timeout=0.2)


@pytest.mark.parametrize("character", ["x", "%", "\u00e4", "\U0001f600"])
async def test_a_refusal_keeps_its_code_however_long_its_words_are(character: str, tmp_path: Path) -> None:
    """A caller goes by it; the words end with how many are left out."""
    async def refuse(request: Leave) -> Leave:
        raise rpc.Refusal(rpc.Code.NOT_FOUND, character * 20_000)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((rpc.service("test.Refusals", {"Refuse": (Leave, refuse)}),))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    try:
        with pytest.raises(rpc.CallRefused, match=r"x* \.\.\. \(\d+ characters more\)") as refused:
            await rpc.call(f"unix:{tmp_path}/s", "test.Refusals/Refuse", Leave("j", 0, 1), Leave, BOUND)
        assert refused.value.invalid
    finally:
        await server.stop(None)


async def test_the_word_of_a_controller_that_refuses_is_final(tmp_path: Path) -> None:
    """Of several addresses, the next is asked where nobody answers at the first, and not where one there refuses."""
    asked: list[str] = []

    def at(name: str) -> grpc.aio.Server:
        async def refuse(request: Leave) -> Leave:
            asked.append(name)
            raise rpc.Refusal(rpc.Code.NOT_FOUND, f"{name} knows no such job")

        server = grpc.aio.server()
        server.add_generic_rpc_handlers((rpc.service("test.Refusals", {"Refuse": (Leave, refuse)}),))
        server.add_insecure_port(f"unix:{tmp_path}/{name}")
        return server

    servers = [at("a"), at("b")]
    for server in servers:
        await server.start()
    try:
        for first in ("a", "nobody", "b"):
            with pytest.raises(rpc.CallRefused, match="knows no such job"):
                await rpc.call(f"unix:{tmp_path}/{first}, unix:{tmp_path}/b", "test.Refusals/Refuse",
                               Leave("j", 0, 1), Leave, BOUND)
        assert asked == ["a", "b", "b"]
    finally:
        for server in servers:
            await server.stop(None)
