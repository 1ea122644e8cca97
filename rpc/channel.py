# SPDX-License-Identifier: Apache-2.0
"""gRPC channels to the controller: plain, or TLS where NETFOLD_CA names the certificates to trust.  NETFOLD_CERT and
NETFOLD_KEY name the certificate that is shown to a controller which asks for one.

A unix socket is guarded by the permissions of its folder and is never TLS.
"""

from __future__ import annotations

import os
from typing import Final

import grpc

from netfold.rpc.certificates import Certificates, TlsError, is_local

CONTROLLER_VARIABLE: Final = "NETFOLD_CONTROLLER"
"""Has the gRPC address of the controller, for ranks, and for commands that are not given another one."""
CA_VARIABLE: Final = "NETFOLD_CA"
"""Names the PEM file of certificates that are trusted; for a self-signed certificate, that certificate itself."""
CERTIFICATE_VARIABLE: Final = "NETFOLD_CERT"
"""Names the PEM file of this client's certificate, where the controller wants to see one (fabric.client_ca)."""
KEY_VARIABLE: Final = "NETFOLD_KEY"
"""Names the PEM file of its private key."""

INSECURE_VARIABLE: Final = "NETFOLD_INSECURE"
"""Set to 1, tokens may go in the clear to controllers on other machines, as `netfold up --insecure` serves them."""

OPTIONS: Final = (
    # ranks, operators and controller talk directly: an HTTP proxy of the environment has no place between them
    ("grpc.enable_http_proxy", 0),
    # or a new channel inherits the back-off of one that found nobody just before the controller came up
    ("grpc.use_local_subchannel_pool", 1),
)


def check(address: str, *, token: bool) -> None:
    """Raises TlsError where a ``token`` would go to another machine in the clear: whoever is on the way, or answers
    there in the controller's place, would have it."""
    if not token or is_local(address) or os.environ.get(CA_VARIABLE) or os.environ.get(INSECURE_VARIABLE) == "1":
        return
    raise TlsError(f"the token would go to {address} in the clear: set {CA_VARIABLE} to the certificates that sign the "
                   f"controller's, or {INSECURE_VARIABLE}=1 where everybody on the way is trusted")


def check_client(address: str, *, shows: bool) -> None:
    """Raises TlsError where the environment makes no TLS client of this address.

    shows  whether the other side asks for a certificate
    """
    wanted = {CA_VARIABLE: "certificates that sign the controller's"}
    if shows:
        wanted |= {CERTIFICATE_VARIABLE: "a certificate for this process, which fabric.client_ca signs",
                   KEY_VARIABLE: "its private key"}
    missing = [f"{name} ({what})" for name, what in wanted.items() if not os.environ.get(name)]
    if missing and not address.startswith("unix:"):
        raise TlsError(f"the controller at {address} speaks TLS, with this process as its client: set "
                       f"{' and '.join(missing)}")
    _credentials(address)


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
        shown = os.environ.get(CERTIFICATE_VARIABLE)
        ours = f"does it trust {shown}" if shown else f"does it want a certificate of ours ({CERTIFICATE_VARIABLE})"
        return (f" {CA_VARIABLE} is {ca}: does the controller speak TLS, with a certificate for this name from there, "
                f"and {ours}?")
    return f" If it speaks TLS, set {CA_VARIABLE} to its certificate."


def _credentials(address: str) -> grpc.ChannelCredentials | None:
    """Credentials by the environment; None for a plain channel.  Raises TlsError."""
    ca, certificate, key = (os.environ.get(name) or None for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
    if address.startswith("unix:"):
        return None
    if (certificate is None) != (key is None):
        raise TlsError(f"expected {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} together, got one of the two")
    if ca is None:
        if certificate is not None:
            raise TlsError(f"{CERTIFICATE_VARIABLE} is set: expected {CA_VARIABLE} too, which says whose certificate "
                           "the controller has")
        return None
    what = f"{CA_VARIABLE}={ca}" + (f", {CERTIFICATE_VARIABLE}={certificate}, {KEY_VARIABLE}={key}" if key else "")
    return Certificates(what, ca, certificate, key).client()
