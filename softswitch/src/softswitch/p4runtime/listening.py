# SPDX-License-Identifier: Apache-2.0
"""Where the P4Runtime server listens, and who may speak to it there.

Who reaches a P4Runtime server can push a program and write every table.  So an address that other machines can reach
must have mutual TLS, or be asked for as insecure; loopback is open to the users of this machine, and the socket file of
a unix socket to its owner alone.  The options are those of BMv2's simple_switch_grpc: `--grpc-server-ssl`,
`--grpc-server-cert`, `--grpc-server-key`, `--grpc-server-cacert`, `--grpc-server-with-client-auth`.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from softswitch.runtime import connections
from softswitch.runtime.connections import ConnectionWatch

log = logging.getLogger(__name__)

DEFAULT_ADDRESS: Final = "127.0.0.1:9559"
"""Port 9559 is IANA's for P4Runtime.  BMv2 takes all addresses of the machine by default, softswitch only loopback."""

MAX_CONNECTIONS: Final = 512
"""Most connections at the same time; half of them are served, the others are left for newcomers."""


class ListenError(Exception):
    """The server cannot listen at this address, or must not.

    Remedy: give a free address: HOST:PORT or unix:PATH.  An address that other machines reach needs mutual TLS, or
    --insecure.
    """


@dataclass(frozen=True)
class Tls:
    """TLS of the server, by PEM files.

    certificate  chain that the server shows
    key          its private key
    ca           certificates that sign those of clients; None: clients need none
    """

    certificate: Path
    key: Path
    ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials for gRPC. The files are read again for each new connection, so that a certificate can be
        renewed under a running switch; if files are broken, the last good ones stay in use. Raises ListenError."""
        good = self._read()

        def renewed() -> grpc.ServerCertificateConfiguration:
            nonlocal good
            try:
                good = self._read()
            except ListenError as error:
                log.warning("%s; the certificate that was read before stays in use", error)
            return good

        return grpc.dynamic_ssl_server_credentials(good, renewed, require_client_authentication=self.ca is not None)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            # gRPC would only fail in each handshake, without a word about the reason
            if self.key.stat().st_mode & stat.S_IRWXO:
                raise ValueError(f"everybody may read {self.key}: chmod o= {self.key}")
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
            if self.ca is not None:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.ca)
            pair = self.key.read_bytes(), self.certificate.read_bytes()
            return grpc.ssl_server_certificate_configuration([pair], self.ca.read_bytes() if self.ca else None)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = ", ".join(f"{path}" for path in (self.certificate, self.key, self.ca) if path is not None)
            raise ListenError(f"TLS: cannot use {files}: {error}; expected PEM files of a certificate, of its own "
                              "private key without a password, and of the clients' CA") from error


def check(address: str, tls: Tls | None, *, insecure: bool) -> None:
    """Refuse an address that other machines can reach without mutual TLS; with ``insecure`` only log it.  Raises
    ListenError."""
    if is_local(address) or (tls is not None and tls.ca is not None):
        return
    has = "no TLS" if tls is None else "TLS without certificates of clients"
    what = f"{address}: other machines may reach this address, and it has {has}: who connects can push a program"
    if insecure:
        log.warning("%s", what)
        return
    raise ListenError(f"{what}. Expected a loopback address, unix:PATH, or --grpc-server-ssl with "
                      "--grpc-server-with-client-auth; --insecure listens there all the same")


def is_local(address: str) -> bool:
    """True if only this machine can reach an address: a unix socket, or an address of loopback. A name other than
    localhost counts as remote, whatever it resolves to now."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(server: grpc.Server, address: str, tls: Tls | None) -> int:
    """Listen at HOST:PORT, with TLS if there is any, or at unix:PATH, whose file only its owner may open.  Returns the
    port, 1 for unix.  Raises ListenError."""
    unix = address.startswith("unix:")
    number = address.rpartition(":")[2]
    if not unix and not (number.isascii() and number.isdigit() and len(number) <= 5 and int(number) <= 65535):
        # gRPC would take 65536 more or less for the same
        raise ListenError(f"cannot listen on {address}: expected HOST:PORT with a port within 0..65535, or unix:PATH")
    before = os.umask(0o177) if unix else None
    try:
        if tls is None or unix:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.credentials())
    except RuntimeError:
        port = 0
    finally:
        if before is not None:
            os.umask(before)
    if port == 0:
        raise ListenError(f"cannot listen on {address}: the port is in use, or the address is not one of ours")
    return port


def options() -> list[tuple[str, int]]:
    """Settings of the gRPC server that bound its connections."""
    return connections.options(connections.most(MAX_CONNECTIONS))


def watch(addresses: Sequence[str], ports: Sequence[int]) -> ConnectionWatch:
    """Bounds the connections of each peer, at addresses that were bound to these ports."""
    at = [address.removeprefix("unix:") if address.startswith("unix:") else port
          for address, port in zip(addresses, ports, strict=True)]
    return ConnectionWatch(at, most=connections.most(MAX_CONNECTIONS))
