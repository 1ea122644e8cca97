# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for BMv2's switches, `simple_switch` and `simple_switch_grpc`: their options, words and exit status.

    simple_switch_grpc -i 1@s1-eth1 --pcap pcaps --device-id 0 prog.json --thrift-port 9090 -- --grpc-server-addr ...

What scripts wait for is where BMv2 has it: the process that they start is the switch, its Thrift and gRPC ports are
listened on when it is ready, what it says comes on stdout. Differences: docs/tools.md.
"""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from softswitch.runtime.version import VERSION
from softswitch.tools.program_options import Option, OptionError, parse

if TYPE_CHECKING:
    from softswitch.p4runtime.listening import Tls
    from softswitch.p4runtime.process import Port
    from softswitch.p4runtime.server import Server
    from softswitch.trace.recording import Live

LIKE = "1.15.5"
"""The version of BMv2 whose options these programs have."""

JSON_VERSION = "2.24"
"""The newest version of BMv2's JSON that BMv2 1.15.5 takes."""

OPEN = "SOFTSWITCH_OPEN"
"""The environment variable that, set to 1, lets addresses be served that other machines reach without mutual TLS."""

THRIFT_PORT = 9090
GRPC_ADDRESS = "0.0.0.0:9559"

PACKETS = "bmv2.packets"
"""The logger of the lines of packets' traces."""

LEVELS = {"trace": 5, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING,
          "error": logging.ERROR, "off": logging.CRITICAL + 1}
"""BMv2's levels of its log."""

GENERAL = (
    Option("help", "h", bool, "Display this help message"),
    Option("interface", "i", str, "<port-num>@<interface-name>: Attach network interface <interface-name> as port "
           "<port-num> at startup. Can appear multiple times", many=True),
    Option("pcap", "", str, "Generate pcap files for interfaces, in this directory", implicit="."),
    Option("use-files", "", int, "Refused: this switch has network interfaces alone"),
    Option("thrift-port", "", int, f"TCP port on which to run the Thrift runtime server (default {THRIFT_PORT})"),
    Option("device-id", "", int, "Device ID, used to identify the device in IPC messages (default 0)"),
    Option("nanolog", "", str, "Accepted, without effect: IPC socket to use for nanomsg pub/sub logs"),
    Option("notifications-addr", "", str, "nanomsg address of notifications (digests, idle entries)"),
    Option("log-console", "", bool, "Enable logging on stdout"),
    Option("log-file", "", str, "Enable logging to given file; .txt is added to its name"),
    Option("log-level", "L", str, "Set log level: 'trace', 'debug', 'info', 'warn', 'error', 'off'; default 'trace'"),
    Option("log-flush", "", bool, "Accepted: every message is flushed"),
    Option("log-file-max-size", "", int, "Maximum size of a single log file (in bytes) before rotation; default is "
           "5242880 (5 MB)"),
    Option("log-file-max-files", "", int, "Maximum number of rotated backup log files to keep; default is 3"),
    Option("restore-state", "", str, "Refused: state of another process is not restored"),
    Option("dump-packet-data", "", int, "Accepted, without effect: how many bytes of packet data to log"),
    Option("debugger", "", bool, "Accepted, without effect: the debugger of BMv2"),
    Option("debugger-addr", "", str, "Accepted, without effect: the debugger of BMv2"),
    Option("packet-in", "", str, "Refused: frames over nanomsg"),
    Option("version", "v", bool, "Display version information"),
    Option("json-version", "", bool, "Display max bmv2 JSON version supported"),
    Option("no-p4", "", bool, "Enable the switch to start without an input configuration"),
    Option("max-port-count", "", int, "Accepted, without effect: ports are numbered 0 to 510"),
)
"""Options before `--`."""

_TARGET = (
    Option("load-modules", "", str, "Refused: externs of others are C++ for BMv2"),
    Option("drop-port", "", int, "The drop port; 511 alone (default is 511)"),
    Option("priority-queues", "", int, "Accepted, without effect: a port has one queue"),
    Option("max-mc-groups", "", int, "Accepted, without effect: groups are not limited in number"),
    Option("max-l1-entries", "", int, "Accepted, without effect: as --max-mc-groups"),
    Option("max-l2-entries", "", int, "Accepted, without effect: as --max-mc-groups"),
)

TARGET = (*_TARGET, Option("enable-swap", "", bool, "Accepted: programs may always be swapped"))
"""Options of simple_switch after `--`."""

TARGET_GRPC = (
    *_TARGET,
    Option("disable-swap", "", bool, "Refused: a controller may push programs"),
    Option("grpc-server-addr", "", str, f"Bind gRPC server to given address [default is {GRPC_ADDRESS}, narrowed to "
           f"127.0.0.1 unless {OPEN}=1 is in the environment]"),
    Option("grpc-server-ssl", "", bool, "Enable SSL/TLS for gRPC server"),
    Option("grpc-server-cacert", "", str, "Path to pem file holding CA certificate to verify peer against"),
    Option("grpc-server-cert", "", str, "Path to pem file holding server certificate"),
    Option("grpc-server-key", "", str, "Path to pem file holding server key"),
    Option("grpc-server-with-client-auth", "", bool, "Require client to have a valid certificate for mutual "
           "authentication"),
    Option("cpu-port", "", int, "Port number of the controller, for packet-in and packet-out: 1 to 510"),
    Option("dp-grpc-server-addr", "", str, "Refused: frames over gRPC"),
)
"""Options of simple_switch_grpc after `--`."""

REFUSED = {
    "use-files": "this switch has network interfaces alone; `softswitch stf` runs packet tests without any",
    "restore-state": "the state of another process is not restored",
    "packet-in": "frames come from network interfaces alone",
    "load-modules": "externs of others are C++ for BMv2",
    "dp-grpc-server-addr": "frames come from network interfaces alone",
    "disable-swap": "whoever may write may push a program; `softswitch run --primary` says who that is",
}
"""Options that end the program, and why."""

IGNORED = {
    "nanolog": "there is no log over nanomsg; --log-console and --log-file have it",
    "dump-packet-data": "no bytes of packets are logged; --pcap has them",
    "debugger": "BMv2's debugger is not there; `softswitch explain` and --trace show what happens to a packet",
    "debugger-addr": "BMv2's debugger is not there; `softswitch explain` and --trace show what happens to a packet",
    "max-port-count": "ports are numbered 0 to 510",
    "priority-queues": "a port has one queue here, whatever the priority",
    "max-mc-groups": "groups are not limited in number", "max-l1-entries": "groups are not limited in number",
    "max-l2-entries": "groups are not limited in number",
}
"""Options without effect, and why, which a line on stderr says."""


class StartError(Exception):
    """The switch cannot start; the message, which goes to stdout as BMv2's, says why and what to do."""


@dataclass(frozen=True)
class Arguments:
    """A command line that is right."""

    general: dict[str, Any]
    target: dict[str, Any]
    program: str | None


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


def read(words: Sequence[str], target_options: Sequence[Option]) -> Arguments | None:
    """What a command line says; None where it asked for help or a version, which are printed. Raises StartError."""
    words = list(words)
    at = words.index("--") if "--" in words else len(words)
    try:
        general, others = parse(words[:at], GENERAL)
    except OptionError as error:
        raise StartError(f"Error while parsing command line arguments: {error}\n{usage(target_options)}") from None
    if "help" in general:
        say(usage(target_options))
        return None
    if "version" in general:
        say(f"{LIKE}\nsoftswitch {VERSION}")
        return None
    if "json-version" in general:
        say(JSON_VERSION)
        return None
    if general.get("log-level", "trace") not in LEVELS:
        raise StartError(f"Invalid value {general['log-level']} for --log-level\nRun with -h to see possible values")
    pcap = general.get("pcap")
    if pcap is not None and not os.path.isdir(pcap):
        raise StartError(f"Directory '{pcap}' specified with '--pcap' does not exist.")
    if "no-p4" in general and others:
        say("Warning: ignoring input config as '--no-p4' was used")
    elif not others and "no-p4" not in general:
        raise StartError(f"Error: please specify an input JSON configuration file\n{usage(target_options)}")
    say("Calling target program-options parser")
    try:
        target, extra = parse(words[at + 1 :], target_options)
        if extra:
            raise OptionError(f"unexpected words after '--': {' '.join(extra)}")
    except OptionError as error:
        raise StartError(f"{error}\nTarget parser returned an error") from None
    for option, why in REFUSED.items():
        if option in general or option in target:
            raise StartError(f"option '--{option}' is not supported by softswitch: {why}")
    for option, why in IGNORED.items():
        if option in general or option in target:
            warn(f"option '--{option}' has no effect here: {why}")
    return Arguments(general, target, None if "no-p4" in general else others[0])


def usage(target_options: Sequence[Option]) -> str:
    """What --help prints."""
    return "\n".join([
        "Usage: SWITCH_NAME [options] <path to JSON config file>", "Options:", *(o.usage() for o in GENERAL),
        "This target also comes with its own command line parser, make sure you separate general bmv2 options from, "
        "target specific options with '--'", "Target specific options:", "Target options:",
        *(o.usage() for o in target_options),
    ])


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
        done = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: done.set())
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
            while not done.wait(3600):  # signals end the wait, whatever its limit
                pass
        except (ListenError, EngineError, CompileError) as error:
            raise StartError(str(error)) from error
        finally:
            serving.close()
            server.close()
            if tracing is not None:
                tracing.close()

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
        from softswitch.thrift import ThriftError, serve

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


class PacketLines(io.TextIOBase):
    """A stream for the lines of packets' traces, which go where the log goes, those of `level` and above."""

    _LEVELS = types.MappingProxyType({"T": 5, "D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING})

    def __init__(self, level: int) -> None:
        self._log, self._level = logging.getLogger(PACKETS), level

    def write(self, text: str) -> int:
        """Logs each line by its letter, [12:34:56.789] [bmv2] [T] ..., and lines without one as those before them."""
        shown = True
        for line in text.splitlines():
            letter = line.partition("] [bmv2] [")[2][:1]
            if letter:
                shown = self._LEVELS.get(letter, logging.INFO) >= self._level
            if shown:
                self._log.log(logging.CRITICAL, "%s", line)
        return len(text)


def trace_to_log(general: dict[str, Any]) -> Live | None:
    """The trace of each packet in BMv2's words, where the log has a place for it: --log-console or --log-file, with a
    level of debug or trace. Programs are compiled for it then; else packets cost nothing more."""
    level = LEVELS[general.get("log-level", "trace")]
    if level > logging.DEBUG or not ("log-console" in general or "log-file" in general):
        return None
    from softswitch.trace.recording import Live

    return Live(cast("IO[str]", PacketLines(level)), "bmv2")


class Words(logging.Formatter):
    """Log lines in BMv2's form: [12:34:56.789] [bmv2] [I] [thread 4711] ..."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [bmv2] [%(letter)s] [thread %(native)d] %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One record as its line; the lines of a packet's trace have BMv2's form already."""
        if record.name == PACKETS:
            return record.getMessage()
        record.letter, record.native = record.levelname[0], threading.get_native_id()
        return super().format(record)


def set_up_log(general: dict[str, Any]) -> None:
    """Logs to stdout, to a file, or, warnings and errors alone, to stderr. Raises StartError."""
    level = LEVELS[general.get("log-level", "trace")]
    handlers: list[logging.Handler] = []
    if "log-console" in general:
        handlers.append(logging.StreamHandler(sys.stdout))
    if "log-file" in general:
        path = general["log-file"] + ".txt"
        try:
            size, files = general.get("log-file-max-size", 5 << 20), general.get("log-file-max-files", 3)
            handlers.append(logging.handlers.RotatingFileHandler(path, maxBytes=size, backupCount=files))
        except OSError as error:
            raise StartError(f"--log-file: cannot open {path}: {error.strerror}") from error
    if not handlers:
        handlers, level = [logging.StreamHandler(sys.stderr)], max(level, logging.WARNING)
    root = logging.getLogger()
    for handler in handlers:
        handler.setFormatter(Words())
        root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("bmv2").setLevel(level)
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def say(text: str) -> None:
    """A line on stdout, where BMv2 has its own; one that nobody can read does not end the switch."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def warn(text: str) -> None:
    """A line on stderr."""
    with contextlib.suppress(OSError):
        print(f"softswitch: {text}", file=sys.stderr, flush=True)
