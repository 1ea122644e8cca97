# SPDX-License-Identifier: Apache-2.0
"""softswitch run: a switch until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from softswitch.cli.options import TraceStyle, defines, fail, readable
from softswitch.cli.switch_options import LogLevel, SwitchOptions
from softswitch.runtime import files
from softswitch.runtime.log_lines import Lines
from softswitch.runtime.stopping import Stop

if TYPE_CHECKING:
    from softswitch.p4runtime.listening import Tls
    from softswitch.p4runtime.primaries import Primaries
    from softswitch.p4runtime.process import Port
    from softswitch.p4runtime.program import Compiler
    from softswitch.p4runtime.server import Server
    from softswitch.trace.recording import Tracing

THREADS: Final = "SOFTSWITCH_THREADS"
MOST_THREADS: Final = 64


def run(options: SwitchOptions) -> None:
    """Run a switch until SIGINT or SIGTERM."""
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.engine.errors import EngineError
    from softswitch.p4runtime.listening import DEFAULT_ADDRESS, ListenError
    from softswitch.p4runtime.process import Settings
    from softswitch.p4runtime.program import SANITIZE, Compiler
    from softswitch.p4runtime.server import Server
    from softswitch.thrift import serve
    from softswitch.thrift.errors import ThriftError

    if (options.program is None) == (not options.no_p4):
        fail("give either a PROGRAM.p4 or --no-p4")
    if options.entries and options.no_p4:
        fail("--entries: expected a PROGRAM.p4; with --no-p4 the controller that pushes the program writes them")
    _set_up_log(options.log_level, options.log_file)
    ports = _ports(options)
    if options.pcap is not None and not options.pcap.is_dir():
        fail(f"--pcap {options.pcap}: no such directory")
    addresses = options.grpc_server_addr or [DEFAULT_ADDRESS]
    tls = _tls(options, addresses)
    primaries = _primaries(options)
    tracing = _tracing(options)
    settings = Settings(ports, options.cpu_port, options.seed, options.queue, options.threads or _threads(),
                        join=not options.no_offload, pcap=options.pcap, trace=tracing)
    compiler = Compiler(flags=SANITIZE if options.sanitize else (), trace=tracing is not None)
    server = Server(device_id=options.device_id, settings=settings, builder=compiler, primaries=primaries,
                    default_role_only=options.default_role_only)
    serving = contextlib.ExitStack()
    stop = Stop()
    try:
        if options.program is not None:
            _push(server, compiler, options.program, options)
            for path in options.entries or []:
                _write(server, path)
        server.listen(*addresses, tls=tls, insecure=options.insecure)
        if options.thrift_port is not None:
            serving.enter_context(serve(server, options.thrift_port))
        url = None if options.page is None else serving.enter_context(_page(tracing, options.page))
        with contextlib.suppress(OSError):  # standard output on a full disk must not end the switch
            print(
                f"softswitch: ready: device {options.device_id}, P4Runtime on {', '.join(addresses)}, "
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


def _push(server: Server, compiler: Compiler, program: Path, options: SwitchOptions) -> None:
    """Compiles the program of the command line, and runs it."""
    from softswitch.engine.errors import EngineError

    readable(program)
    try:
        server.push(compiler.file(program, include=options.include or [], defines=defines(options.define)))
    except EngineError as error:  # which names what a controller would have pushed
        fail(str(error).replace("p4_device_config", str(program), 1))


def _write(server: Server, path: Path) -> None:
    """Writes the entries of a file into the running program."""
    from softswitch.explain.entries import EntriesError, PushedProgram, load

    running = server.running()
    try:
        with server.writing:
            program = PushedProgram(running.built.p4info, running.built.json)
            _, said, failed = load(running.context.engine, program, path)
    except EntriesError as error:
        fail(str(error))
    sys.stderr.write(said)
    if failed:
        fail(f"--entries {path}: {failed} of its commands failed, above", 1)


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


def _tracing(options: SwitchOptions) -> Tracing | None:
    """Where the packet trace goes, if anywhere."""
    file, style, keep, limit = options.trace, options.trace_format, options.trace_bytes, options.trace_limit << 20
    if options.page is not None:
        if file is not None:
            fail("--page with --trace: expected one of the two")
        return _recent(options.page, keep)
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


def _threads() -> int:
    """The number of threads without `--threads`: that of the variable, or 1."""
    text = os.environ.get(THREADS, "1")
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        fail(f"{THREADS}={text!r}: expected a number of threads from 1 to {MOST_THREADS}")
    return int(text)


def _ports(options: SwitchOptions) -> tuple[Port, ...]:
    """The switch's ports, none of which is another one or the controller's."""
    ports = tuple(_port(text) for text in options.interface or [])
    for one in ports:
        if sum(other.number == one.number or other.interface == one.interface for other in ports) > 1:
            fail(f"-i {one.number}@{one.interface}: a port number or an interface is given twice")
    if options.cpu_port is not None and any(port.number == options.cpu_port for port in ports):
        fail(f"--cpu-port {options.cpu_port} is also the number of a port")
    return ports


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


def _tls(options: SwitchOptions, addresses: Sequence[str]) -> Tls | None:
    """TLS as the options of BMv2's names ask for it."""
    from softswitch.p4runtime.listening import Tls

    certificate, key, ca = options.grpc_server_cert, options.grpc_server_key, options.grpc_server_cacert
    client_auth = options.grpc_server_with_client_auth
    if not options.grpc_server_ssl:
        given = {"--grpc-server-cert": certificate, "--grpc-server-key": key, "--grpc-server-cacert": ca}
        if names := [name for name, path in given.items() if path is not None]:
            fail(f"{', '.join(names)}: expected --grpc-server-ssl with it")
        if client_auth:
            fail("--grpc-server-with-client-auth: expected --grpc-server-ssl with it")
        return None
    if all(address.startswith("unix:") for address in addresses):
        fail(f"--grpc-server-ssl: expected a HOST:PORT among --grpc-server-addr, got {', '.join(addresses)}; a unix "
             "socket goes without TLS, since only its owner may open it")
    if certificate is None or key is None:
        fail("--grpc-server-ssl: expected --grpc-server-cert and --grpc-server-key with it")
    if (ca is not None) != client_auth:
        fail("expected --grpc-server-cacert and --grpc-server-with-client-auth together: the one says which "
             "certificates of clients are good, the other that clients need one")
    return Tls(certificate, key, ca)


def _primaries(options: SwitchOptions) -> Primaries:
    """Which clients may write."""
    from softswitch.p4runtime.primaries import Primaries

    try:
        primaries = Primaries(options.primary or [])
    except ValueError as error:
        fail(f"--primary {error}")
    if primaries.by_certificate and not options.grpc_server_with_client_auth:
        fail("--primary cert:NAME: expected --grpc-server-with-client-auth with it: clients show no certificate else")
    if options.primary and options.thrift_port is not None:
        fail("--thrift-port with --primary: expected one of the two: whoever reaches a Thrift port may write")
    return primaries
