# SPDX-License-Identifier: Apache-2.0
"""gRPC channels to the controller: plain, or TLS where NETFOLD_CA names the certificates to trust.

A unix socket is guarded by the permissions of its folder and is never TLS.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import grpc

CONTROLLER_VARIABLE: Final = "NETFOLD_CONTROLLER"
"""Has the gRPC address of the controller, for ranks, and for commands that are not given another one."""
CA_VARIABLE: Final = "NETFOLD_CA"
"""Names the PEM file of certificates that are trusted; for a self-signed certificate, that certificate itself."""

OPTIONS: Final = (
    # ranks, operators and controller talk directly: an HTTP proxy of the environment has no place between them
    ("grpc.enable_http_proxy", 0),
    # or a new channel inherits the back-off of one that found nobody just before the controller came up
    ("grpc.use_local_subchannel_pool", 1),
)


class TlsError(Exception):
    """The certificates that NETFOLD_CA names cannot be read; the message has the file and the reason."""


def channel(address: str) -> grpc.Channel:
    """A gRPC channel to a controller at "host:port" or "unix:/path".  Raises TlsError."""
    credentials = _credentials(address)
    if credentials is None:
        return grpc.insecure_channel(address, options=list(OPTIONS))
    return grpc.secure_channel(address, credentials, options=list(OPTIONS))


def aio_channel(address: str) -> grpc.aio.Channel:
    """A gRPC channel for asyncio; otherwise like `channel`.  Raises TlsError."""
    credentials = _credentials(address)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=list(OPTIONS))
    return grpc.aio.secure_channel(address, credentials, options=list(OPTIONS))


def hint(address: str) -> str:
    """A sentence about TLS for the message that no controller answers; may be empty."""
    if address.startswith("unix:"):
        return ""
    ca = os.environ.get(CA_VARIABLE)
    if ca:
        return f" {CA_VARIABLE} is {ca}: does the controller speak TLS, with a certificate for this name from there?"
    return f" If it speaks TLS, set {CA_VARIABLE} to its certificate."


def _credentials(address: str) -> grpc.ChannelCredentials | None:
    ca = os.environ.get(CA_VARIABLE)
    if not ca or address.startswith("unix:"):
        return None
    try:
        return grpc.ssl_channel_credentials(Path(ca).read_bytes())
    except OSError as error:
        raise TlsError(f"cannot read the certificates of {CA_VARIABLE}={ca}: {error.strerror}") from error
