# SPDX-License-Identifier: Apache-2.0
"""The options of `softswitch run`, which typer and argparse (app.py, start.py) read from one declaration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from softswitch.cli.options import CliArgument, CliOption, Defines, Includes, TraceStyle


class LogLevel(StrEnum):
    """Least severe messages to log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    off = "off"


@dataclass(frozen=True, kw_only=True)
class SwitchOptions:
    """The options with which a switch starts; absent ones have their defaults."""

    program: Annotated[Path | None, CliArgument(metavar="PROGRAM.p4", help="The program to load at the start.")] = None
    entries: Annotated[
        list[Path] | None,
        CliOption(metavar="FILE", help="Table entries: NAME.json as in p4lang's tutorials, else commands of "
                                       "simple_switch_CLI; may be repeated."),
    ] = None
    interface: Annotated[
        list[str] | None,
        CliOption("-i", "--interface", metavar="PORT@IFACE", help="Port number and its Linux interface; may be "
                                                                  "repeated."),
    ] = None
    no_p4: Annotated[bool, CliOption("--no-p4", help="Wait for a controller to push the program.")] = False
    grpc_server_addr: Annotated[
        list[str] | None,
        CliOption(metavar="HOST:PORT|unix:PATH", help="Address of P4Runtime; may be repeated. Default: "
                                                      "127.0.0.1:9559."),
    ] = None
    grpc_server_ssl: Annotated[
        bool, CliOption("--grpc-server-ssl", help="Use TLS at HOST:PORT addresses; needs certificate and key.")
    ] = False
    grpc_server_cert: Annotated[
        Path | None, CliOption(metavar="PEM", help="Certificate of the server; read again for each connection.")
    ] = None
    grpc_server_key: Annotated[Path | None, CliOption(metavar="PEM", help="Private key of the server.")] = None
    grpc_server_cacert: Annotated[
        Path | None, CliOption(metavar="PEM", help="CA certificates of the clients.")
    ] = None
    grpc_server_with_client_auth: Annotated[
        bool, CliOption("--grpc-server-with-client-auth", help="Accept only clients with such a certificate.")
    ] = False
    insecure: Annotated[
        bool, CliOption("--insecure", help="Allow addresses that other machines can reach even without mutual TLS.")
    ] = False
    primary: Annotated[
        list[str] | None,
        CliOption(metavar="WHO", help="Only these clients may write: cert:NAME, an IP address or network, unix; "
                                      "may be repeated. Others read."),
    ] = None
    default_role_only: Annotated[
        bool, CliOption("--default-role-only", help="Refuse clients of other roles, which could write in addition to "
                                                    "the primary.")
    ] = False
    thrift_port: Annotated[
        int | None,
        CliOption(min=0, max=65535, metavar="PORT", help="Serve BMv2's Thrift services on 127.0.0.1:PORT, to "
                                                         "everybody on this machine; needs the package thrift."),
    ] = None
    device_id: Annotated[int, CliOption(min=0, max=2**64 - 1, help="P4Runtime device id.")] = 1
    cpu_port: Annotated[int | None, CliOption(min=1, max=510, help="Port number of the controller.")] = None
    queue: Annotated[int, CliOption(min=1, max=1 << 20, help="Most frames that wait at each port.")] = 1024
    threads: Annotated[
        int | None,
        CliOption(min=1, max=64, help="Threads: one processes all packets, the others receive and send meanwhile. "
                                      "Default: SOFTSWITCH_THREADS, or 1."),
    ] = None
    seed: Annotated[int, CliOption(min=0, help="Seed of random().")] = 1
    pcap: Annotated[Path | None, CliOption(metavar="DIR", help="Capture to DIR/IFACE_{in,out}.pcap.")] = None
    trace: Annotated[
        Path | None,
        CliOption(metavar="FILE|-", help="Record the processing of each packet for `softswitch trace FILE`; -: show it "
                                         "on standard output."),
    ] = None
    trace_format: Annotated[
        TraceStyle | None, CliOption(help="Format of the trace; default: text on standard output, binary in a file.")
    ] = None
    page: Annotated[
        str | None,
        CliOption(metavar="HOST:PORT", help="Serve, at this loopback address, a page that shows each packet's way "
                                            "through the source."),
    ] = None
    trace_limit: Annotated[int, CliOption(metavar="MB", min=1, help="Maximum size of the trace file.")] = 1024
    trace_bytes: Annotated[
        int | None,
        CliOption(metavar="N", min=0, max=16384, help="Bytes recorded of each frame; default: 128 in a binary file, "
                                                      "else 2048."),
    ] = None
    no_offload: Annotated[bool, CliOption("--no-offload", help="Send no super-packets.")] = False
    sanitize: Annotated[
        bool, CliOption("--sanitize", help="Build with AddressSanitizer and UBSan (slow).")
    ] = False
    log_level: Annotated[LogLevel, CliOption(help="Least severe messages to log.")] = LogLevel.info
    log_file: Annotated[Path | None, CliOption(help="Log to this file instead of stderr.")] = None
    define: Defines = None
    include: Includes = None
