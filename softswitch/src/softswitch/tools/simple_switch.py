# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for BMv2's switches, `simple_switch` and `simple_switch_grpc`: start, end and exit status.

    simple_switch_grpc -i 1@s1-eth1 --pcap pcaps --device-id 0 prog.json --thrift-port 9090 -- --grpc-server-addr ...

What scripts wait for is where BMv2 has it: the process that they start is the switch, its Thrift and gRPC ports are
listened on when it is ready, what it says comes on stdout. Differences: docs/tools.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softswitch.runtime.stopping import Stop
from softswitch.tools.program_options import Option
from softswitch.tools.switch_options import GRPC_ADDRESS, OPEN, TARGET, TARGET_GRPC, THRIFT_PORT, Arguments, read
from softswitch.tools.switch_output import StartError, say, set_up_log, trace_to_log, warn

if TYPE_CHECKING:
    from softswitch.p4runtime.listening import Tls
    from softswitch.p4runtime.process import Port
    from softswitch.p4runtime.server import Server


def simple_switch() -> int:
    """The program simple_switch: controlled over Thrift."""
    return main("simple_switch", TARGET, sys.argv[1:])


def simple_switch_grpc() -> int:
    """The program simple_switch_grpc: controlled over P4Runtime, and over Thrift where the package for it is there."""
    return main("simple_switch_grpc", TARGET_GRPC, sys.argv[1:])


def main(name: str, target: Sequence[Option], words: Sequence[str]) -> int:
    """Runs a switch until SIGINT or SIGTERM, and returns the exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the error of a port in use is clearer than gRPC's own log
    try:
        arguments = read(words, target)
        if arguments is None:
            return 0
        StandIn(name, arguments).run()
    except StartError as error:
        say(str(error))
        return 1
    return 0


def narrowed(address: str, tls: Tls | None) -> tuple[str, bool]:
    """The address that is really served, and whether it may be one that other machines reach.

    Everything of the machine (0.0.0.0, [::]) without mutual TLS becomes loopback: who connects can push a program.
    """
    if os.environ.get(OPEN) == "1":
        return address, True
    host, colon, port = address.rpartition(":")
    mutual = tls is not None and tls.ca is not None
    if mutual or not colon or host not in ("0.0.0.0", "[::]", "*", ""):
        return address, False
    loopback = "[::1]" if host == "[::]" else "127.0.0.1"
    warn(f"P4Runtime is served on {loopback}:{port} rather than on {address}, which other machines reach without "
         f"mutual TLS; {OPEN}=1 in the environment opens it")
    return f"{loopback}:{port}", False


def ports_of(texts: Sequence[str], log: Callable[[str], None]) -> tuple[Port, ...]:
    """The ports that -i names. An interface that is not there is logged, and its port left out, as BMv2 does it."""
    from softswitch.p4runtime.process import Port

    ports: dict[int, Port] = {}
    for text in texts:
        number, at, interface = text.partition("@")
        if not at or not interface or not number.isascii() or not number.isdigit():
            raise StartError("Error while parsing command line arguments: "
                             f"-i {text}: expected <port-num>@<interface-name>")
        if int(number) > 510:
            raise StartError(f"-i {text}: expected a port number within 0..510")
        ports.setdefault(int(number), Port(int(number), interface))
    known = {name for _, name in socket.if_nameindex()}
    found: list[Port] = []
    for port in ports.values():
        say(f"Adding interface {port.interface} as port {port.number}")
        if port.interface not in known:
            log(f"Add port operation failed: there is no interface {port.interface} here")
        elif any(port.interface == other.interface for other in found):
            log(f"Add port operation failed: interface {port.interface} is a port already")
        else:
            found.append(port)
    return tuple(found)


class StandIn:
    """One run of a switch."""

    def __init__(self, name: str, arguments: Arguments) -> None:
        self.name = name
        self.general, self.target, self.program = arguments.general, arguments.target, arguments.program
        self.log = logging.getLogger("bmv2")

    def run(self) -> None:
        """Starts it, and returns when it shall end. Raises StartError."""
        from softswitch.compiler.diagnostics import CompileError
        from softswitch.engine.errors import EngineError
        from softswitch.p4runtime.listening import ListenError
        from softswitch.p4runtime.process import Settings
        from softswitch.p4runtime.program import Compiler
        from softswitch.p4runtime.server import PROGRAM_LOG, Server

        if self.program is not None:
            self.check_program(self.program)
        set_up_log(self.general)
        drop = self.target.get("drop-port", 511)
        if drop != 511:
            raise StartError(f"--drop-port {drop}: this switch drops at port 511 alone")
        cpu_port = self.cpu_port()
        tls = self.tls()
        ports = ports_of(self.general.get("interface", []), self.log.error)
        if cpu_port in {port.number for port in ports}:
            raise StartError(f"--cpu-port {cpu_port} is also the number of a port")
        pcap = self.general.get("pcap")
        tracing = trace_to_log(self.general)
        logging.getLogger(PROGRAM_LOG).disabled = tracing is not None  # the trace has what log_msg says
        settings = Settings(ports, cpu_port, like_bmv2=True, pcap=Path(pcap) if pcap is not None else None,
                            trace=tracing)
        compiler = Compiler(trace=tracing is not None)
        server = Server(device_id=self.general.get("device-id", 0), settings=settings, builder=compiler,
                        tell_ports=False)  # clients of BMv2 print or refuse messages that it does not send
        serving = contextlib.ExitStack()
        stop = Stop()  # after what may end in an error: it is closed below
        try:
            if self.program is not None:
                try:
                    server.push(compiler.file(Path(self.program)))
                except EngineError as error:  # which names what a controller would have pushed
                    raise StartError(str(error).replace("p4_device_config", self.program, 1)) from error
            self.serve_thrift(server, serving)
            if self.name == "simple_switch_grpc":
                address, opened = narrowed(self.target.get("grpc-server-addr", GRPC_ADDRESS), tls)
                server.listen(address, tls=tls, insecure=opened)
                say(f"Server listening on {address}")
            stop.wait()
        except (ListenError, EngineError, CompileError) as error:
            raise StartError(str(error)) from error
        finally:
            serving.close()
            server.close()
            if tracing is not None:
                tracing.close()
            stop.close()

    def check_program(self, program: str) -> None:
        try:
            with open(program):
                pass
        except OSError as error:
            raise StartError(f"JSON input file {program} cannot be opened: {error.strerror}") from None

    def cpu_port(self) -> int | None:
        port: int | None = self.target.get("cpu-port")
        if port is not None and not 1 <= port <= 510:
            raise StartError(f"--cpu-port {port}: expected a number within 1..510")
        return port

    def tls(self) -> Tls | None:
        """TLS as the options ask for it. Raises StartError."""
        from softswitch.p4runtime.listening import Tls

        given = {name: self.target.get(f"grpc-server-{name}") for name in ("cert", "key", "cacert")}
        auth = "grpc-server-with-client-auth" in self.target
        if "grpc-server-ssl" not in self.target:
            if any(given.values()) or auth:
                raise StartError("--grpc-server-cert, -key, -cacert and -with-client-auth need --grpc-server-ssl")
            return None
        if not given["cert"] or not given["key"]:
            raise StartError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
        if auth and not given["cacert"]:
            raise StartError("--grpc-server-with-client-auth needs --grpc-server-cacert")
        return Tls(Path(given["cert"]), Path(given["key"]), Path(given["cacert"]) if auth and given["cacert"] else None)

    def serve_thrift(self, server: Server, serving: contextlib.ExitStack) -> None:
        """Serves Thrift. Without the package for it, simple_switch could not be controlled at all, and ends; the one
        with P4Runtime goes on, and says so. Raises StartError."""
        from softswitch.thrift import serve
        from softswitch.thrift.errors import ThriftError

        port = self.general.get("thrift-port", THRIFT_PORT)
        if port > 65535:
            raise StartError(f"--thrift-port {port}: expected a number within 0..65535")
        self.log.info("Starting Thrift server on port %d", port)
        try:
            serving.enter_context(serve(server, port, notifications=self.general.get("notifications-addr")))
        except ThriftError as error:
            if self.name == "simple_switch_grpc" and isinstance(error.__cause__ or error.__context__, ImportError):
                warn(f"no Thrift server on port {port}, P4Runtime alone: {error}")
                return
            raise StartError(f"--thrift-port {port}: {error}") from error
        self.log.info("Thrift server was started")
