# SPDX-License-Identifier: Apache-2.0
"""The options of the stand-ins for BMv2's switches: which there are, and which do something here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softswitch.runtime.version import VERSION
from softswitch.thrift.notifications import SCHEME
from softswitch.tools.program_options import Option, OptionError, parse
from softswitch.tools.switch_output import LEVELS, StartError, say, warn

LIKE = "1.15.5"
"""The version of BMv2 whose options these programs have."""

JSON_VERSION = "2.24"
"""The newest version of BMv2's JSON that BMv2 1.15.5 takes."""

OPEN = "SOFTSWITCH_OPEN"
"""Environment variable; 1 permits to serve, without mutual TLS, addresses that other machines can reach."""

THRIFT_PORT = 9090
GRPC_ADDRESS = "0.0.0.0:9559"

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
"""Options without effect, and the reason, which is printed on stderr."""


@dataclass(frozen=True)
class Arguments:
    """A command line that is right."""

    general: dict[str, Any]
    target: dict[str, Any]
    program: str | None


def read(words: Sequence[str], target_options: Sequence[Option]) -> Arguments | None:
    """The options of a command line; None if it asked for help or a version, which are printed. Raises StartError."""
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
    if general.get("device-id", 0) >= 1 << 64:
        raise StartError(f"--device-id {general['device-id']}: expected a number of 64 bits")
    publish_at = general.get("notifications-addr", SCHEME)
    if not publish_at.startswith(SCHEME):
        raise StartError(f"--notifications-addr {publish_at}: expected {SCHEME}PATH, the one transport of nanomsg that "
                         "is spoken here")
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
    """The text of --help."""
    return "\n".join([
        "Usage: SWITCH_NAME [options] <path to JSON config file>", "Options:", *(o.usage() for o in GENERAL),
        "This target also comes with its own command line parser, make sure you separate general bmv2 options from, "
        "target specific options with '--'", "Target specific options:", "Target options:",
        *(o.usage() for o in target_options),
    ])
