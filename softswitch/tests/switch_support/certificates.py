# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by openssl: an authority, and what it signs for servers and clients on loopback.

    authority = Authority(tmp_path)
    switch, key = authority.issue("switch")
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc

from switch_support import needs

_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Authority:
    """A certificate authority in a folder: ``certificate`` is its own; without openssl the test is skipped."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        needs.require("openssl")
        self._folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", *_CURVE, "-days", "1", "-subj", f"/CN={name}", "-out", self.certificate,
                 "-keyout", self._key)

    def issue(self, name: str) -> tuple[Path, Path]:
        """A fresh certificate for localhost and 127.0.0.1, and its key."""
        made, key, request = (self._folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        names = self._folder / f"{name}.ext"
        names.write_text(_NAMES)
        _openssl("req", *_CURVE, "-subj", f"/CN={name}", "-out", request, "-keyout", key)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
                 "-days", "1", "-extfile", names, "-out", made)
        return made, key

    def trusted(self, pair: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
        """Credentials of a client that trusts this authority, and shows a certificate where a pair is given."""
        if pair is None:
            return grpc.ssl_channel_credentials(self.certificate.read_bytes())
        return grpc.ssl_channel_credentials(self.certificate.read_bytes(), pair[1].read_bytes(), pair[0].read_bytes())


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, stdin=subprocess.DEVNULL,
                   timeout=60)
