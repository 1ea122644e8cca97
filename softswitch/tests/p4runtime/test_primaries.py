# SPDX-License-Identifier: Apache-2.0
"""Which clients may be primary: rules, and what happens to a client that none of them names."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from softswitch.p4runtime.listening import Tls
from softswitch.p4runtime.primaries import Primaries
from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.server import Server
from switch_support.certificates import Authority
from switch_support.client import MODIFY, Client, code_of
from switch_support.switch import probe_builder, probe_config

NOT_FOUND, EXISTS = 5, 6
COUNTER = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=0)))


@pytest.mark.parametrize(("rules", "peer", "allowed"), [
    ([], "ipv4:10.0.0.5:4711", True),
    (["10.0.0.5"], "ipv4:10.0.0.5:4711", True),
    (["10.0.0.5"], "ipv4:10.0.0.6:4711", False),
    (["192.168.0.1", "10.0.0.0/24"], "ipv4:10.0.0.6:4711", True),
    (["10.0.0.0/24"], "ipv6:%5B::ffff:10.0.0.6%5D:4711", True),
    (["fd00::/8"], "ipv6:%5Bfd00::1%5D:4711", True),
    (["fe80::/10"], "ipv6:%5Bfe80::1%25eth0%5D:4711", True),
    (["fd00::/8"], "ipv6:%5B2001:db8::1%5D:4711", False),
    (["unix"], "unix:", True),
    (["unix"], "unix:/run/switch.sock", True),
    (["unix"], "ipv4:127.0.0.1:4711", False),
    (["127.0.0.1"], "unix:", False),
    (["127.0.0.1"], "something else", False),
    (["cert:controller"], "ipv4:127.0.0.1:4711", False),
])
def test_addresses_are_matched_by_rules(rules: list[str], peer: str, allowed: bool) -> None:
    """Addresses, networks and the unix socket; without rules everybody may, with rules whom none names may not."""
    assert Primaries(rules).allow(peer, {}) is allowed


def test_certificates_are_matched_by_any_of_their_names() -> None:
    """Common name or alternative name, as a whole."""
    rules = Primaries(["cert:controller"])
    assert rules.by_certificate
    assert rules.allow("ipv4:10.0.0.5:1", {"x509_common_name": [b"controller"]})
    assert rules.allow("ipv4:10.0.0.5:1", {"x509_subject_alternative_name": [b"other", b"controller"]})
    assert not rules.allow("ipv4:10.0.0.5:1", {"x509_common_name": [b"controller2"], "peer": [b"controller"]})


@pytest.mark.parametrize("rule", ["", "cert:", "10.0.0.5/8", "host.example", "unix:/x", "10.0.0.256"])
def test_other_rules_are_refused(rule: str) -> None:
    """The error has the rule and what is expected."""
    with pytest.raises(ValueError, match="expected cert:NAME, an IP address or network, or unix"):
        Primaries([rule])


def test_who_may_not_be_primary_reads_and_cannot_write(tmp_path: Path) -> None:
    """The highest election id gives it nothing, nor does the primary's own id, which everybody is told; the primary
    stays, and is named with its address."""
    server = Server(device_id=1, settings=Settings(cpu_port=510), builder=probe_builder, primaries=Primaries(["unix"]))
    try:
        unix = f"unix:{tmp_path}/switch.sock"
        port, _ = server.listen("127.0.0.1:0", unix)
        with Client(unix) as controller, Client(f"127.0.0.1:{port}") as stranger:
            controller.become_primary(7)
            controller.push(probe_config())
            stream = stranger.stream()
            for election in (2**63, 7):
                stream.arbitrate(election)
                update = stream.next().arbitration
                assert (update.status.code, update.election_id.low) == (EXISTS, 7)
                assert update.status.message.startswith("unix:")
                assert "ipv4:127.0.0.1:" in update.status.message
                assert "may not be (--primary)" in update.status.message
                stranger.election = election
                for call in (lambda: stranger.write((MODIFY, COUNTER)), lambda: stranger.push(probe_config())):
                    with pytest.raises(grpc.RpcError) as caught:
                        call()
                    assert code_of(caught.value) is grpc.StatusCode.PERMISSION_DENIED
                    assert "ipv4:127.0.0.1:" in str(caught.value.details())
            assert stranger.read(COUNTER)
            controller.write((MODIFY, COUNTER))
    finally:
        server.close()


def test_the_name_in_a_certificate_makes_a_primary(tmp_path: Path) -> None:
    """Of two clients with certificates of the authority, one is named by the rule."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("switch")
    server = Server(device_id=1, settings=Settings(cpu_port=510), builder=probe_builder,
                    primaries=Primaries(["cert:controller"]))
    try:
        (port,) = server.listen("127.0.0.1:0", tls=Tls(certificate, key, authority.certificate))
        address = f"localhost:{port}"
        with (
            Client(address, credentials=authority.trusted(authority.issue("controller"))) as controller,
            Client(address, credentials=authority.trusted(authority.issue("tenant"))) as tenant,
        ):
            stream = tenant.stream()
            stream.arbitrate(9)
            update = stream.next().arbitration
            assert update.status.code == NOT_FOUND
            assert "(certificate 'tenant') may not be" in update.status.message
            controller.become_primary(1)
            assert "(certificate 'controller') is primary" in stream.next().arbitration.status.message
            controller.push(probe_config())
    finally:
        server.close()
