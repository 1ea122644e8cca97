# SPDX-License-Identifier: Apache-2.0
"""TLS by PEM files: what one side shows, and whom it trusts; and which addresses need none."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc

log = logging.getLogger("netfold")


class TlsError(Exception):
    """A file of TLS cannot be used; the message has the setting, the file and the reason.

    Remedy: give certificate, key and authority in PEM that belong together, the key readable by its owner alone
    (docs/controller.md has the commands that make them).
    """


@dataclass(frozen=True)
class Certificates:
    """One side of TLS.

    what         the setting that names the files, for errors
    ca           certificates that sign the other side's; for one that signs itself, that one.  None: for a server,
                 clients need none; for a client, those of gRPC
    certificate  chain that this side shows; None: a client that shows none
    key          its private key, which not everybody may read
    """

    what: str
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def server(self) -> grpc.ServerCredentials:
        """A server's credentials.  The files are read again for each new connection, so that a certificate can be
        renewed under a running server; files that are broken then leave the last good ones in use.  Raises TlsError."""
        good = self._configuration()

        def renewed() -> grpc.ServerCertificateConfiguration:
            nonlocal good
            try:
                good = self._configuration()
            except TlsError as error:
                log.warning("%s; what was read before stays in use", error)
            return good

        return grpc.dynamic_ssl_server_credentials(good, renewed, require_client_authentication=self.ca is not None)

    def client(self) -> grpc.ChannelCredentials:
        """A client's credentials, from the files as they are now.  Raises TlsError."""
        self._check()
        return grpc.ssl_channel_credentials(self._read(self.ca), self._read(self.key), self._read(self.certificate))

    def context(self) -> ssl.SSLContext:
        """The same for a server of the standard library, which reads the files once.  Raises TlsError."""
        return self._check()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        self._check()
        key, certificate = self._read(self.key), self._read(self.certificate)
        if key is None or certificate is None:
            raise TlsError(f"{self.what}: a server needs a certificate and its private key")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], self._read(self.ca))

    def _check(self) -> ssl.SSLContext:
        """Have the standard library look at the files: gRPC would only fail in each handshake, without a reason."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            if b"-----BEGIN" not in (self._read(self.ca) or b""):
                raise TlsError(f"{self.what}: {self.ca}: expected certificates in PEM")
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise TlsError(f"{self.what}: {self.ca}: expected certificates in PEM: {error}") from error
        if self.certificate is None or self.key is None:
            return context
        for file in (self.certificate, self.key):
            self._read(file)
        if Path(self.key).stat().st_mode & stat.S_IRWXO:
            raise TlsError(f"{self.what}: everybody may read the private key {self.key}: chmod o= {self.key}")
        try:
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"{self.what}: {self.certificate} and {self.key}: expected a certificate and its own "
                           f"private key without a password, in PEM: {error}") from error
        return context

    def _read(self, file: str | None) -> bytes | None:
        try:
            return None if file is None else Path(file).read_bytes()
        except OSError as error:
            raise TlsError(f"{self.what}: cannot read {file}: {error.strerror}") from error


def is_local(address: str) -> bool:
    """True if only this machine can reach an address, ``host:port`` or ``unix:/path``: a unix socket, or loopback.  A
    name other than localhost counts as remote, whatever it resolves to now; so does an empty host, which means all
    addresses."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
