# SPDX-License-Identifier: Apache-2.0
"""softswitch run: a switch until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cbuild import files
from softswitch.cli.options import CliArgument, CliOption, Defines, Includes, TraceStyle, defines, fail, readable
from softswitch.runtime.log_lines import Lines
from softswitch.runtime.stopping import Stop

if TYPE_CHECKING:
    from softswitch.p4runtime.listening import Tls
    from softswitch.p4runtime.process import Port
    from softswitch.trace.recording import Tracing


class LogLevel(StrEnum):
    """Least severe messages to log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    off = "off"


def run(
    program: Annotated[Path | None, CliArgument(metavar="PROGRAM.p4", help="Pushed at the start.")] = None,
    interface: Annotated[
        list[str] | None,
        CliOption("-i", "--interface", metavar="PORT@IFACE", help="Port number and its Linux interface; repeat."),
    ] = None,
    no_p4: Annotated[bool, CliOption("--no-p4", help="Wait for a controller to push the program.")] = False,
    grpc_server_addr: Annotated[
        list[str] | None,
        CliOption(metavar="HOST:PORT|unix:PATH", help="Where P4Runtime listens; repeat. Default 127.0.0.1:9559."),
    ] = None,
    grpc_server_ssl: Annotated[
        bool, CliOption("--grpc-server-ssl", help="TLS at HOST:PORT addresses; needs certificate and key.")
    ] = False,
    grpc_server_cert: Annotated[
        Path | None, CliOption(metavar="PEM", help="Certificate of the server; read again for each connection.")
    ] = None,
    grpc_server_key: Annotated[Path | None, CliOption(metavar="PEM", help="Its private key.")] = None,
    grpc_server_cacert: Annotated[
        Path | None, CliOption(metavar="PEM", help="Certificates that sign those of clients.")
    ] = None,
    grpc_server_with_client_auth: Annotated[
        bool, CliOption("--grpc-server-with-client-auth", help="Only clients with such a certificate.")
    ] = False,
    insecure: Annotated[
        bool, CliOption("--insecure", help="Listen where other machines reach it even without mutual TLS.")
    ] = False,
    primary: Annotated[
        list[str] | None,
        CliOption(metavar="WHO", help="Only these clients may write: cert:NAME, an IP address or network, unix; "
                                      "repeat. Others read."),
    ] = None,
    default_role_only: Annotated[
        bool, CliOption("--default-role-only", help="Refuse clients of other roles, which write beside its primary.")
    ] = False,
    thrift_port: Annotated[
        int | None,
        CliOption(min=0, max=65535, metavar="PORT", help="Serve BMv2's Thrift services on 127.0.0.1:PORT, to "
                                                         "everybody on this machine; needs the package thrift."),
    ] = None,
    device_id: Annotated[int, CliOption(min=0, max=2**64 - 1, help="P4Runtime device id.")] = 1,
    cpu_port: Annotated[int | None, CliOption(min=1, max=510, help="Port number of the controller.")] = None,
    queue: Annotated[int, CliOption(min=1, max=1 << 20, help="Frames that may wait at each port.")] = 1024,
    seed: Annotated[int, CliOption(min=0, help="Of random().")] = 1,
    pcap: Annotated[Path | None, CliOption(metavar="DIR", help="Capture to DIR/IFACE_{in,out}.pcap.")] = None,
    trace: Annotated[
        Path | None,
        CliOption(metavar="FILE|-", help="Record what happens to each packet, for `softswitch trace FILE`; "
                                         "-: show it on standard output."),
    ] = None,
    trace_format: Annotated[
        TraceStyle | None, CliOption(help="Write the trace like this; default: text on standard output, binary in "
                                          "a file.")
    ] = None,
    page: Annotated[
        str | None,
        CliOption(metavar="HOST:PORT", help="Serve a page there, a loopback address, that shows each packet's way "
                                            "through the source."),
    ] = None,
    trace_limit: Annotated[int, CliOption(metavar="MB", min=1, help="Most of a trace in a file.")] = 1024,
    trace_bytes: Annotated[
        int | None,
        CliOption(metavar="N", min=0, max=16384, help="Bytes of each frame in a trace; default: 128 in a binary "
                                                      "file, else 2048."),
    ] = None,
    no_offload: Annotated[bool, CliOption("--no-offload", help="Send no super-packets.")] = False,
    sanitize: Annotated[
        bool, CliOption("--sanitize", help="Build with AddressSanitizer and UBSan (slow).")
    ] = False,
    log_level: Annotated[LogLevel, CliOption(help="Least severe messages to log.")] = LogLevel.info,
    log_file: Annotated[Path | None, CliOption(help="Log there rather than to stderr.")] = None,
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Run a switch until SIGINT or SIGTERM."""
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.engine.errors import EngineError
    from softswitch.p4runtime.listening import DEFAULT_ADDRESS, ListenError
    from softswitch.p4runtime.primaries import Primaries
    from softswitch.p4runtime.process import Settings
    from softswitch.p4runtime.program import SANITIZE, Compiler
    from softswitch.p4runtime.server import Server
    from softswitch.thrift import ThriftError, serve

    if (program is None) == (not no_p4):
        fail("give either a PROGRAM.p4 or --no-p4")
    _set_up_log(log_level, log_file)
    ports = tuple(_port(text) for text in interface or [])
    for one in ports:
        if sum(other.number == one.number or other.interface == one.interface for other in ports) > 1:
            fail(f"-i {one.number}@{one.interface}: a port number or an interface is given twice")
    if cpu_port is not None and any(port.number == cpu_port for port in ports):
        fail(f"--cpu-port {cpu_port} is also the number of a port")
    if pcap is not None and not pcap.is_dir():
        fail(f"--pcap {pcap}: no such directory")
    addresses = grpc_server_addr or [DEFAULT_ADDRESS]
    if grpc_server_ssl and all(address.startswith("unix:") for address in addresses):
        fail(f"--grpc-server-ssl: expected a HOST:PORT among --grpc-server-addr, got {', '.join(addresses)}; a unix "
             "socket goes without TLS, since only its owner may open it")
    tls = _tls(grpc_server_ssl, grpc_server_cert, grpc_server_key, grpc_server_cacert, grpc_server_with_client_auth)
    try:
        primaries = Primaries(primary or [])
    except ValueError as error:
        fail(f"--primary {error}")
    if primaries.by_certificate and not grpc_server_with_client_auth:
        fail("--primary cert:NAME: expected --grpc-server-with-client-auth with it: clients show no certificate else")
    if primary and thrift_port is not None:
        fail("--thrift-port with --primary: expected one of the two: whoever reaches a Thrift port may write")
    if page is None:
        tracing = _tracing(trace, trace_format, trace_limit << 20, trace_bytes)
    elif trace is None:
        tracing = _recent(page, trace_bytes)
    else:
        fail("--page with --trace: expected one of the two")
    settings = Settings(ports, cpu_port, seed, queue, join=not no_offload, pcap=pcap, trace=tracing)

    compiler = Compiler(flags=SANITIZE if sanitize else (), trace=tracing is not None)
    server = Server(device_id=device_id, settings=settings, builder=compiler, primaries=primaries,
                    default_role_only=default_role_only)
    serving = contextlib.ExitStack()
    stop = Stop()
    try:
        if program is not None:
            readable(program)
            try:
                server.push(compiler.file(program, include=include or [], defines=defines(define)))
            except EngineError as error:  # which names what a controller would have pushed
                fail(str(error).replace("p4_device_config", str(program), 1))
        server.listen(*addresses, tls=tls, insecure=insecure)
        if thrift_port is not None:
            serving.enter_context(serve(server, thrift_port))
        url = None if page is None else serving.enter_context(_page(tracing, page))
        with contextlib.suppress(OSError):  # standard output on a full disk must not end the switch
            print(
                f"softswitch: ready: device {device_id}, P4Runtime on {', '.join(addresses)}, "
                f"ports {', '.join(f'{p.number}@{p.interface}' for p in ports) or 'none'}"
                + (f", page {url}" if url else ""),
                flush=True,
            )
        stop.wait()
    except (ListenError, EngineError, CompileError, ThriftError) as error:
        fail(str(error))
    finally:
        serving.close()
        server.close()
        if tracing is not None:
            tracing.close()
        stop.close()


def _set_up_log(level: LogLevel, file: Path | None) -> None:
    if level is LogLevel.off:
        logging.disable()
        return
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    try:
        handler = logging.StreamHandler(None if file is None else io.TextIOWrapper(files.append(file)))
    except OSError as error:
        fail(f"--log-file {file}: {error.strerror}")
    handler.setFormatter(Lines(layout))
    logging.basicConfig(level=level.value.upper(), handlers=[handler])


def _tracing(file: Path | None, style: TraceStyle | None, limit: int, keep: int | None) -> Tracing | None:
    """Where the packet trace goes, if anywhere."""
    if file is None:
        if style is not None or keep is not None:
            fail("--trace-format, --trace-bytes: expected --trace with it")
        return None
    from softswitch.trace.recording import KEEP, KEEP_SHOWN, Live, Recorder, open_private

    binary = style is None and str(file) != "-"
    kept = keep if keep is not None else KEEP if binary else KEEP_SHOWN
    if str(file) == "-":
        return Live(sys.stdout, style or TraceStyle.text, keep=kept)
    try:
        if style is None:
            return Recorder(file, limit=limit, keep=kept)
        return Live(os.fdopen(open_private(file), "w"), style, limit=limit, keep=kept)
    except OSError as error:
        fail(f"--trace {file}: {error.strerror}")


def _recent(page: str, keep: int | None) -> Tracing:
    """The last packets, for the page at this address, which is looked at before anything starts."""
    from softswitch.trace.page.serving import PageError, Recent, parse_address
    from softswitch.trace.recording import KEEP_SHOWN

    try:
        parse_address(page)
    except PageError as error:
        fail(str(error))
    return Recent(keep=KEEP_SHOWN if keep is None else keep)


@contextlib.contextmanager
def _page(tracing: Tracing | None, address: str) -> Iterator[str]:
    """Serves the page; gives its URL."""
    from softswitch.trace.page.serving import PageError, Recent, serve

    assert isinstance(tracing, Recent)
    try:
        with serve(tracing, address) as url:
            yield url
    except PageError as error:
        fail(str(error))


def _port(text: str) -> Port:
    from softswitch.p4runtime.process import Port

    number, at, name = text.partition("@")
    if not at or not number.isascii() or not number.isdigit() or not name or int(number) > 510:
        fail(f"-i {text}: expected PORT@INTERFACE with a port number within 0..510, for example 1@eth1")
    try:
        socket.if_nametoindex(name)
    except OSError:
        have = ", ".join(sorted(n for _, n in socket.if_nameindex()))
        fail(f"-i {text}: there is no interface {name} here (there are: {have})")
    return Port(int(number), name)


def _tls(on: bool, certificate: Path | None, key: Path | None, ca: Path | None, client_auth: bool) -> Tls | None:
    """TLS as the options of BMv2's names ask for it."""
    from softswitch.p4runtime.listening import Tls

    given = {"--grpc-server-cert": certificate, "--grpc-server-key": key, "--grpc-server-cacert": ca}
    if not on:
        if names := [name for name, path in given.items() if path is not None]:
            fail(f"{', '.join(names)}: expected --grpc-server-ssl with it")
        if client_auth:
            fail("--grpc-server-with-client-auth: expected --grpc-server-ssl with it")
        return None
    if certificate is None or key is None:
        fail("--grpc-server-ssl: expected --grpc-server-cert and --grpc-server-key with it")
    if (ca is not None) != client_auth:
        fail("expected --grpc-server-cacert and --grpc-server-with-client-auth together: the one says which "
             "certificates of clients are good, the other that clients need one")
    return Tls(certificate, key, ca)
