# SPDX-License-Identifier: Apache-2.0
"""Which addresses of a fabric others can reach, and what protects them: TLS by the files that the fabric names."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from netfold.controller.switch import credentials
from netfold.fabric.graph import Fabric, FabricError
from netfold.rpc import channel
from netfold.rpc.certificates import Certificates, TlsError, is_local

log = logging.getLogger("netfold.controller")


def unprotected(fabric: Fabric, *, token: bool) -> list[str]:
    """Why addresses of a fabric must not be used, a sentence for each: other machines reach it, and a token, or TLS
    with which to give it, is missing.

    token  whether callers of the job service and of the page must give one
    """
    lacks = [] if token else ["a token (operator_token_file)"]
    lacks += [] if fabric.certificate else ["TLS (certificate and key)"]
    served = {"fabric.jobs": fabric.jobs, "fabric.standby": fabric.standby, "fabric.metrics": fabric.metrics}
    found = [f"{setting}: other machines may reach {address}, which lacks {' and '.join(lacks)}"
             for setting, address in served.items() if lacks and address is not None and not is_local(address)]
    if token and not fabric.certificate and fabric.metrics is not None and not is_local(fabric.metrics):
        found[-1] += "; passwords of the page would go over plain HTTP"
    plain = [f"{switch.name} at {switch.grpc}" for switch in fabric.switches
             if not is_local(switch.grpc) and fabric.p4runtime_files(switch.name)[0] is None]
    if plain:
        found.append(f"fabric.p4runtime_ca: P4Runtime of {', '.join(plain)} would go in the clear: it lacks TLS "
                     "(p4runtime_ca, p4runtime_certificate and p4runtime_key)")
    return found


def check(fabric: Fabric, *, token: bool, insecure: bool) -> None:
    """Refuse what `unprotected` finds; with ``insecure`` only log it.  Raises FabricError, also for files of TLS with
    switches that cannot be used."""
    problems = unprotected(fabric, token=token)
    if problems and not insecure:
        advice = ("Give what is missing, loopback addresses or unix sockets; or, where everybody who reaches them is "
                  "trusted: netfold up --insecure")
        raise FabricError("\n".join([*problems, advice]))
    for problem in problems:
        log.warning("insecure: %s", problem)
    try:
        for switch in fabric.switches:
            credentials.of(fabric, switch)
    except TlsError as error:
        raise FabricError(str(error)) from error


def certificates(fabric: Fabric) -> Certificates | None:
    """TLS of the job service and the page; None without.  Raises FabricError for files that cannot be used."""
    if fabric.certificate is None:
        return None
    found = Certificates("fabric.certificate, fabric.key, fabric.client_ca", fabric.client_ca, fabric.certificate,
                         fabric.key)
    try:
        found.server()
    except TlsError as error:
        raise FabricError(str(error)) from error
    return found


def check_client(fabric: Fabric, address: str) -> None:
    """Raises FabricError where the job service is TLS, and this process cannot be its client at an address."""
    if fabric.certificate is None:
        return
    try:
        channel.check_client(address, shows=fabric.client_ca is not None)
    except TlsError as error:
        raise FabricError(str(error)) from error


@contextlib.contextmanager
def umask(*, token: bool) -> Iterator[None]:
    """Make sockets in the block that nobody but their owner and its group can open, unless a ``token`` guards them:
    then the umask decides alone."""
    before = os.umask(0o777)
    os.umask(before if token else before | 0o007)
    try:
        yield
    finally:
        os.umask(before)
