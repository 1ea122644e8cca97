# SPDX-License-Identifier: Apache-2.0
"""gRPC channels to switches."""

from __future__ import annotations

from typing import Final

import grpc

# gRPC's own waits between connection attempts start at 1 s and grow to minutes; jobs stand still for a leaf that starts
OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no session inherits another's back-off
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),  # the bound of an attempt: a busy switch or TLS takes a while
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A gRPC server that was not told otherwise, such as BMv2's and ours, ends a connection on which it is pinged more
    # often than every five minutes (gRFC A8), be there ever so little else to say.
    ("grpc.keepalive_time_ms", 310_000),
    # the default of a minute would end the session of a server that is silent while its data plane lives
    ("grpc.http2.ping_timeout_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 5000),  # and TCP_USER_TIMEOUT, which finds a machine that died while probes are sent
)


def hint(credentials: grpc.ChannelCredentials | None) -> str:
    """What to look at where nobody answers, for the end of a message."""
    if credentials is None:
        return "If it speaks TLS, set fabric.p4runtime_ca."
    return ("Does it speak TLS, with a certificate for this name that fabric.p4runtime_ca signs, and does it know who "
            "signs fabric.p4runtime_certificate?")


def opened(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel to ``HOST:PORT`` or ``unix:PATH``, with TLS where there are credentials."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=list(OPTIONS))
    return grpc.aio.secure_channel(address, credentials, options=list(OPTIONS))
