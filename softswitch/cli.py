# SPDX-License-Identifier: Apache-2.0
"""The `softswitch` command: run a switch in BMv2's manner, compile programs, run packet tests.

    softswitch prog.p4 -i 1@eth1 -i 2@eth2 --grpc-server-addr 127.0.0.1:9559 --cpu-port 510 --device-id 1
    softswitch compile prog.p4 --p4info prog.p4info.txtpb
    softswitch stf prog.p4 test.stf

Exit status: 0 done; 1 a test or a compilation failed; 2 cannot start: the message says what to change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cbuild import files

if TYPE_CHECKING:
    from softswitch.p4runtime.listening import Tls
    from softswitch.p4runtime.process import Port

COMMANDS = ("run", "compile", "stf", "version")
HELP_COLUMNS = 120
"""Columns of --help in a pipe or file."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A P4 switch for v1model programs, controlled by P4Runtime. "
    "`softswitch PROGRAM.p4 ...` is short for `softswitch run PROGRAM.p4 ...`.",
)

Defines = Annotated[list[str] | None, typer.Option("-D", metavar="NAME[=VALUE]", help="Define a macro.")]
Includes = Annotated[list[Path] | None, typer.Option("-I", metavar="DIR", help="Look for #include files here.")]
Program = Annotated[Path, typer.Argument(metavar="PROGRAM.p4", help="A P4_16 program for v1model.")]


class LogLevel(StrEnum):
    """Least severe messages to log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    off = "off"


def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one clear message."""
    print(f"softswitch: {message}", file=sys.stderr)
    raise typer.Exit(status)


@app.command()
def run(
    program: Annotated[Path | None, typer.Argument(metavar="PROGRAM.p4", help="Pushed at the start.")] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option("-i", "--interface", metavar="PORT@IFACE", help="Port number and its Linux interface; repeat."),
    ] = None,
    no_p4: Annotated[bool, typer.Option("--no-p4", help="Wait for a controller to push the program.")] = False,
    grpc_server_addr: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT|unix:PATH", help="Where P4Runtime listens; repeat. Default 127.0.0.1:9559."),
    ] = None,
    grpc_server_ssl: Annotated[
        bool, typer.Option("--grpc-server-ssl", help="TLS at HOST:PORT addresses; needs certificate and key.")
    ] = False,
    grpc_server_cert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Certificate of the server; read again for each connection.")
    ] = None,
    grpc_server_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its private key.")] = None,
    grpc_server_cacert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Certificates that sign those of clients.")
    ] = None,
    grpc_server_with_client_auth: Annotated[
        bool, typer.Option("--grpc-server-with-client-auth", help="Only clients with such a certificate.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where other machines reach it even without mutual TLS.")
    ] = False,
    primary: Annotated[
        list[str] | None,
        typer.Option(metavar="WHO", help="Only these clients may write: cert:NAME, an IP address or network, unix; "
                                         "repeat. Others read."),
    ] = None,
    device_id: Annotated[int, typer.Option(min=0, help="P4Runtime device id.")] = 1,
    cpu_port: Annotated[int | None, typer.Option(min=1, max=510, help="Port number of the controller.")] = None,
    queue: Annotated[int, typer.Option(min=1, max=1 << 20, help="Frames that may wait at each port.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="Of random().")] = 1,
    pcap: Annotated[Path | None, typer.Option(metavar="DIR", help="Capture to DIR/IFACE_{in,out}.pcap.")] = None,
    no_offload: Annotated[bool, typer.Option("--no-offload", help="Send no super-packets.")] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Build with AddressSanitizer and UBSan (slow).")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="Least severe messages to log.")] = LogLevel.info,
    log_file: Annotated[Path | None, typer.Option(help="Log there rather than to stderr.")] = None,
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
    settings = Settings(ports, cpu_port, seed, queue, join=not no_offload, pcap=pcap)

    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    compiler = Compiler(flags=SANITIZE if sanitize else ("-g",))
    server = Server(device_id=device_id, settings=settings, builder=compiler, primaries=primaries)
    try:
        if program is not None:
            _readable(program)
            server.push(compiler.file(program, include=include or [], defines=_defines(define)))
        server.listen(*addresses, tls=tls, insecure=insecure)
        with contextlib.suppress(OSError):  # standard output on a full disk must not end the switch
            print(
                f"softswitch: ready: device {device_id}, P4Runtime on {', '.join(addresses)}, "
                f"ports {', '.join(f'{p.number}@{p.interface}' for p in ports) or 'none'}",
                flush=True,
            )
        while not done.wait(3600):  # signals end the wait, whatever its limit
            pass
    except (ListenError, EngineError, CompileError) as error:
        fail(str(error))
    finally:
        server.close()


@app.command("compile")
def compile_command(
    program: Program,
    p4info: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the p4info here (.txtpb text, .bin binary, .json).")
    ] = None,
    c: Annotated[Path | None, typer.Option("-o", "--c", metavar="FILE", help="Write the generated C here.")] = None,
    preprocessed: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the P4 text here that a controller pushes as p4_device_config."),
    ] = None,
    dump_ir: Annotated[bool, typer.Option("--dump-ir", help="Print the typed IR.")] = False,
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Compile a program; with no output named, only check it and build it into the cache."""
    from softswitch.engine.errors import EngineError
    from softswitch.p4runtime.program import build_executable

    compiled = _compile(program, include, define)
    if dump_ir:
        print(compiled.dump_ir())
    try:
        if p4info is not None:
            _write_p4info(p4info, compiled.p4info)
        if c is not None:
            files.replace(c, compiled.c_source)
        if preprocessed is not None:
            files.replace(preprocessed, compiled.preprocessed)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}; expected a file that can be written")
    if not (dump_ir or p4info or c or preprocessed):
        try:
            print(build_executable(compiled.c_source))
        except EngineError as error:
            fail(str(error), 1)


@app.command()
def stf(
    program: Program,
    test: Annotated[Path, typer.Argument(metavar="TEST.stf", help="A packet test in p4c's format.")],
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Run a packet test; exit status 0 where every expectation holds and no other frame came out."""
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.stf import runner
    from softswitch.stf.script import StfSyntaxError

    _readable(program)
    _readable(test)
    try:
        report = runner.run(program, test, include=include or [], defines=_defines(define))
    except CompileError as error:
        fail(str(error), 1)
    except StfSyntaxError as error:
        fail(str(error))
    except UnicodeDecodeError:
        fail(f"{test}: expected a packet test in UTF-8 text")
    print(report)
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    from softswitch import __version__

    print(f"softswitch {__version__}")


# ---- helpers ---------------------------------------------------------------------------------------------------


def _set_up_log(level: LogLevel, file: Path | None) -> None:
    if level is LogLevel.off:
        logging.disable()
        return
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    try:
        logging.basicConfig(level=level.value.upper(), filename=file, format=layout)
    except OSError as error:
        fail(f"--log-file {file}: {error.strerror}")


def _port(text: str) -> Port:
    from softswitch.p4runtime.process import Port

    number, at, name = text.partition("@")
    if not at or not number.isdigit() or not name or int(number) > 510:
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


def _readable(path: Path) -> None:
    try:
        with path.open():
            pass
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def _defines(define: list[str] | None) -> dict[str, str]:
    pairs = (text.partition("=") for text in define or [])
    return {name: value if equals else "1" for name, equals, value in pairs}


if TYPE_CHECKING:
    from finsy.proto import p4i

    from softswitch.compiler.driver import Program as CompiledProgram


def _compile(program: Path, include: list[Path] | None, define: list[str] | None) -> CompiledProgram:
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import compile_file

    _readable(program)
    try:
        return compile_file(program, include=include or [], defines=_defines(define))
    except CompileError as error:
        fail(str(error), 1)


def _write_p4info(path: Path, message: p4i.P4Info) -> None:
    from google.protobuf import json_format, text_format

    if path.suffix == ".bin":
        files.replace(path, message.SerializeToString())
    elif path.suffix == ".json":
        files.replace(path, json_format.MessageToJson(message))
    else:
        files.replace(path, text_format.MessageToString(message))


def main(arguments: list[str] | None = None) -> None:
    """The entry point. A first argument that is no command starts a switch, as simple_switch does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the error of a port in use is clearer than gRPC's own log
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] not in (*COMMANDS, "--help", "-h"):
        arguments.insert(0, "run")
    # a pipe or file has no width: --help and usage errors are the same there whatever COLUMNS says
    app(arguments, terminal_width=None if sys.stdout.isatty() else HELP_COLUMNS)
