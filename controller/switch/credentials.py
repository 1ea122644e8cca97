# SPDX-License-Identifier: Apache-2.0
"""TLS with a switch, by the files that the fabric names: BMv2 and softswitch take `--grpc-server-ssl` and its like."""

from __future__ import annotations

import grpc

from netfold.fabric.graph import Fabric, Switch
from netfold.rpc.certificates import Certificates


def of(fabric: Fabric, switch: Switch) -> grpc.ChannelCredentials | None:
    """Credentials for P4Runtime with a switch, from the files as they are now; None for a plain channel.  Raises
    TlsError for files that cannot be used."""
    ca, certificate, key = fabric.p4runtime_files(switch.name)
    if ca is None:
        return None
    what = f"{switch.name}: p4runtime_ca, p4runtime_certificate, p4runtime_key"
    return Certificates(what, ca, certificate, key).client()
