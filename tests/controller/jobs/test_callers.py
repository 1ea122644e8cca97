# SPDX-License-Identifier: Apache-2.0
"""Credentials: what each scope may do, and what is told to others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.controller.health import wiring
from netfold.controller.jobs.callers import OPERATOR, Callers
from netfold.controller.operations import differences
from netfold.controller.paths import path_service
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError, Tenant
from netfold.rpc import rpc, tokens
from netfold.rpc.limits import RateLimit
from netfold.wire import jobs, operator, paths, stalls
from support.control.controller import BOUND
from support.control.credentials import scopes, tenant, token_file
from support.control.jobs import Code, Rig, rig

CALLS: Final[dict[str, tuple[msgspec.Struct, set[str]]]] = {
    f"{operator.SERVICE}/Status": (operator.AskStatus(), {"operators", "jobs", "viewers"}),
    f"{operator.SERVICE}/Wiring": (wiring.AskWiring(), {"operators", "viewers"}),
    f"{operator.SERVICE}/Events": (operator.AskEvents(), {"operators", "viewers"}),
    f"{operator.SERVICE}/Beat": (operator.AskBeat("0123456789abcdef"), {"operators"}),
    f"{operator.SERVICE}/Connections": (operator.AskConnections(), {"operators"}),
    f"{operator.SERVICE}/Faults": (operator.SetFaults([]), {"operators"}),
    f"{path_service.OPERATOR}/Table": (path_service.AskTable(), {"operators", "viewers"}),
    f"{operator.SERVICE}/Drop": (operator.Drop("j"), {"operators"}),
    f"{operator.SERVICE}/Drain": (operator.SetDrain("spine1", True), {"operators"}),
    f"{operator.SERVICE}/Diff": (differences.AskDiff(), {"operators"}),
    f"{operator.SERVICE}/Slots": (stalls.AskSlots("leaf1"), {"operators"}),
    f"{operator.SERVICE}/Stall": (stalls.AskStall("j"), {"operators"}),
    f"{path_service.OPERATOR}/SetMode": (path_service.SetMode("ecmp"), {"operators"}),
    f"{path_service.OPERATOR}/SetPlanner": (path_service.SetPlanner("equal_split"), {"operators"}),
    f"{path_service.OPERATOR}/SetPin": (path_service.SetPin("leaf1", "leaf2", 1, 1), {"operators"}),
    f"{jobs.SERVICE}/Join": (jobs.Join("j", 1, 0, "10.0.1.1", "10.0.0.1:1", 0), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Leave": (jobs.Leave("j", 0, 1), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Report": (jobs.RankReport("j", 0, 1, 0, 0, 0, 0), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Missing": (jobs.AskMissing("j", 0, 1, {}), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Suspect": (jobs.AskMissing("j", 0, 1, {}), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Connect": (jobs.Connect("j", 0, 1, 0, []), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Resume": (jobs.Resume("j", 0, 1, {}), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Settled": (jobs.Settled("j", 0, 1), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Opened": (jobs.Opened("j", 0, 1, "a port"), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Reform": (jobs.Reform("j", 0, 1, "10.0.0.1:1", 0), {"operators", "jobs"}),
    f"{jobs.SERVICE}/Watch": (jobs.Watch("j", 0, 1), {"operators", "jobs"}),
    f"{paths.SERVICE}/Follow": (paths.Follow("j", 0, 1), {"operators", "jobs"}),
    f"{paths.SERVICE}/Suspect": (paths.Suspect("j", 0, 1, 0, 1), {"operators", "jobs"}),
}
"""Every method of the controller, a request, and whose token it takes."""


async def outcome(r: Rig, method: str, request: msgspec.Struct, token: str) -> tuple[grpc.StatusCode, str]:
    """Code and words of a call with this token."""
    many = method.endswith(("/Watch", "/Follow"))
    made = (r.channel.unary_stream if many else r.channel.unary_unary)(f"/{method}", bytes, bytes)
    call: Any = made(msgspec.json.encode(request), metadata=tokens.metadata(token), timeout=BOUND)
    try:
        await (call.read() if many else call)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


@pytest.mark.parametrize("method", CALLS)
async def test_each_method_takes_the_tokens_of_its_scopes_alone(tmp_path: Path, method: str) -> None:
    """A job's token drops no job and drains no switch, a viewer's changes nothing; the refusal says which token to name
    and where, and shows none."""
    request, allowed = CALLS[method]
    async with rig(tmp_path, **scopes(tmp_path)) as r:
        for token in ("", "wrong", "viewers", "jobs", "operators"):
            code, words = await outcome(r, method, request, token)
            expected = f"{method.rpartition('/')[2]}: expected the token of scope "
            if token in allowed:
                assert expected not in words
                continue
            assert words.startswith(expected)
            if token in ("", "wrong"):
                assert code is Code.UNAUTHENTICATED
                assert "NETFOLD_TOKEN_FILE" in words
            else:
                assert code is Code.PERMISSION_DENIED
                assert "Ask whoever runs the fabric" in words
            assert "operators" not in words
            if "operators" in allowed and "jobs" not in allowed:
                assert not r.controller.drains.names


async def test_every_method_has_its_line_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CALLS has exactly the served methods, so that no method is without a scope."""
    served: set[str] = set()
    real = rpc.service

    def service(name: str, methods: Any, streams: Any = None, **more: Any) -> grpc.GenericRpcHandler[bytes, bytes]:
        served.update(f"{name}/{method}" for method in (*methods, *(streams or {})))
        return real(name, methods, streams, **more)

    monkeypatch.setattr(rpc, "service", service)
    async with rig(tmp_path):
        pass
    assert served == set(CALLS)


async def test_a_tenant_reads_the_status_of_its_own_jobs(tmp_path: Path) -> None:
    """Switches and links it sees whole, other tenants' jobs and everybody's totals not at all."""
    tenants = (tenant(tmp_path, "red"), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        for name in ("red", "blue"):
            r.metadata = tokens.metadata(name)
            await r.together(2, job=f"job of {name}".replace(" ", "-"))
        for token, expected in (("red", ["job-of-red"]), ("blue", ["job-of-blue"]), ("jobs", []),
                                ("viewers", ["job-of-red", "job-of-blue"])):
            status = await client.status(r.fabric.jobs, token=token)
            assert [job.name for job in status.jobs] == expected
            assert len(status.switches) == 4
            assert status.totals.jobs == (2 if token == "viewers" else 0)
        everything = await client.status(r.fabric.jobs, token="operators")
        assert [job.tenant for job in everything.jobs] == ["red", "blue"]


async def test_a_tenant_cannot_join_a_job_of_another_one(tmp_path: Path) -> None:
    """The name is taken, whoever guesses it."""
    tenants = (tenant(tmp_path, "red"), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        r.metadata = tokens.metadata("red")
        plans = await r.together(2)
        r.metadata = tokens.metadata("blue")
        code, words = await r.refusal(r.join(1))
        assert (code, "taken by a job of another tenant" in words) == (Code.PERMISSION_DENIED, True)
        r.metadata = tokens.metadata("red")
        await r.leave(plans[0])
        r.metadata = tokens.metadata("blue")
        assert (await r.refusal(r.join(0)))[0] is Code.PERMISSION_DENIED


async def test_no_log_has_a_token_or_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not at level DEBUG either: neither those of callers nor what the controller gave ranks."""
    caplog.set_level(logging.DEBUG)
    async with rig(tmp_path, **scopes(tmp_path)) as r:
        r.metadata = tokens.metadata("jobs")
        plans = await r.together(2)
        watchers = [await r.watch(plan) for plan in plans]
        await client.drain(r.fabric.jobs, "spine1", True, token="operators")
        watchers[0].die()
        await r.leave(plans[1], "because")
        said = caplog.text + repr(plans) + repr(r.join(0))
        assert "spine1" in said
        for secret in ("Bearer", *(p.secret.value for p in plans), *(p.rank_secret.value for p in plans)):
            assert secret not in said


@pytest.mark.parametrize(("mode", "content", "says"), [
    (0o640, "good", "expected mode 0600, got 0640: others may know the token"),
    (0o606, "good", "expected mode 0600, got 0606"),
    (0o600, " \n", "is empty: expected the token in it"),
    (0o600, "two words", "expected a token of 1 to 1024 printable ASCII characters"),
    (0o600, "x" * 1025, "expected a token of 1 to 1024"),
    (0o600, "tökén", "expected a token of 1 to 1024"),
    (0o600, "viewers", "has the token of fabric.viewer_token_file: expected one of its own"),
])
def test_token_files_that_others_may_read_or_that_are_damaged_are_refused(
    tmp_path: Path, mode: int, content: str, says: str
) -> None:
    """At the start, by setting and file, without the token."""
    fabric = msgspec.structs.replace(leafspine(1, 0, 2, rundir=tmp_path), **scopes(tmp_path))
    bad = Path(token_file(tmp_path, "bad"))
    bad.write_text(content)
    bad.chmod(mode)
    callers = Callers(msgspec.structs.replace(fabric, tenants=(Tenant("red", str(bad)),)))
    with pytest.raises(FabricError, match=r"tenant\[0\].token_file: ") as caught:
        callers.load()
    assert says in str(caught.value)
    assert content.strip() in ("", "viewers") or content not in str(caught.value)


@pytest.mark.parametrize(("lines", "says"), [
    ('job_token_file = "j"', "fabric.operator_token_file: expected one, since there is job_token_file"),
    ('viewer_token_file = "v"', "fabric.operator_token_file: expected one"),
    ('token = "a"', "a token has a scope now, and is in a file of mode 0600: operator_token_file for everything"),
    ('token_file = "a"', "a token has a scope now"),
    ('operator_token_file = "o"\n[[tenant]]\nname = "red"', "tenant[0].token_file: expected the file of this"),
    ('operator_token_file = "o"\n[[tenant]]\nname = "a b"\ntoken_file = "t"', "tenant[0].name: expected 1 to 64"),
    ('[[tenant]]\nname = "default"\nslots = -1', "tenant[0].slots: expected 0 or more, got -1"),
    ('[[tenant]]\nname = "default"\ntoken_file = "t"', 'the token of the tenant "default" is in fabric.job_token_file'),
    ('[[tenant]]\nname = "red"\ntoken_file = "t"', "expected one, since there is tenant red's"),
    ('[[tenant]]\nname = "default"\n[[tenant]]\nname = "default"', "tenant[1].name: there is a tenant default already"),
])
def test_settings_of_credentials_that_cannot_be_are_refused(tmp_path: Path, lines: str, says: str) -> None:
    """The old settings with where their tokens belong now; tenants without names or tokens; scopes without an
    operator."""
    text = fabric_file.dumps(leafspine(1, 0, 2, rundir=tmp_path))
    head, rest = text.split("[[switch]]", 1)
    settings, _, tenants = lines.partition("[[tenant]]")
    whole = f"{head}{settings}\n[[switch]]{rest}\n" + (f"[[tenant]]{tenants}" if tenants else "")
    with pytest.raises(FabricError) as caught:
        fabric_file.loads(whole)
    assert says in str(caught.value)


def test_token_files_are_relative_to_the_fabric_file(tmp_path: Path) -> None:
    """Those of tenants, too; and what is saved reads back equal."""
    fabric = msgspec.structs.replace(
        leafspine(1, 0, 2, rundir=tmp_path), operator_token_file="o.token",
        tenants=(Tenant("red", "r.token", slots=64, jobs=2, priority=7), Tenant("default", jobs=1)),
    )
    fabric_file.save(fabric, tmp_path / "lab.toml")
    read = fabric_file.load(tmp_path / "lab.toml")
    assert read.operator_token_file == str(tmp_path / "o.token")
    assert read.tenants == (Tenant("red", str(tmp_path / "r.token"), 64, 2, 7), Tenant("default", None, None, 1))
    assert fabric_file.loads(fabric_file.dumps(fabric)) == fabric


def test_refused_callers_are_in_the_log_and_cannot_flood_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning in ten seconds, with what was expected, how many there were, and without what they guessed."""
    now = [0.0]
    monkeypatch.setattr("netfold.controller.jobs.callers.RateLimit",
                        lambda rate, burst: RateLimit(rate, burst, clock=lambda: now[0]))
    callers = Callers(msgspec.structs.replace(leafspine(1, 0, 1), **scopes(tmp_path)))
    callers.load()
    check = callers.admit(OPERATOR)
    for seconds in (0.0, 1.0, 2.0, 12.0):
        now[0] = seconds
        with pytest.raises(rpc.Refusal):
            check("Drain", "guess")
    assert [record.getMessage().partition(" requests")[0] for record in caplog.records] == ["1", "3"]
    assert "Drain: expected the token of scope operator, got one that this controller does not know" in caplog.text
    assert "guess" not in caplog.text
