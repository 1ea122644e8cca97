# SPDX-License-Identifier: Apache-2.0
"""BMv2's second control plane: the Thrift services of simple_switch, for tools that were made for it.

    with thrift.serve(server, 9090):        # server: p4runtime.server.Server
        ...

server.py serves them in the process of a switch's P4Runtime server; structs.py is also the other side, for
`simple_switch_CLI` and for scripts that import BMv2's Python modules. The messages are those of interface.py, in
Apache Thrift's binary protocol. The package `thrift` is an extra, and imported only where somebody asks for a port.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from softswitch.thrift.errors import ThriftError

if TYPE_CHECKING:
    from softswitch.p4runtime.server import Server
    from softswitch.thrift.server import ThriftServer


def serve(server: Server, port: int, *, notifications: str | None = None) -> AbstractContextManager[ThriftServer]:
    """Serves BMv2's Thrift services for a switch on 127.0.0.1:`port` (0: any), as long as the context lasts.

    Raises ThriftError, here or on entering, where the package thrift is missing or the port is taken.

    notifications  where digests are published (ipc://PATH); None: where BMv2 publishes them
    """
    try:
        from softswitch.thrift.serving import serving
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "thrift":
            raise
        raise ThriftError("a Thrift port needs Apache's package thrift, which is missing: pip install thrift") from None
    return serving(server, port, notifications=notifications)
