# SPDX-License-Identifier: Apache-2.0
"""BMv2's Thrift server for a switch, on loopback alone.

    server = ThriftServer(switch, 9090)
    ...
    server.close()

Each client has a thread, and one request is executed at a time. Whoever reaches the port may do everything: Thrift has
no clients' names. What a client may cost is bounded (connection.py); where MAX_CLIENTS are connected, a new one takes
the place of the one that has had nothing done for the longest time.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import Any

from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException, TMessageType
from thrift.transport.TTransport import TTransportException

from softswitch.engine.errors import EngineError
from softswitch.thrift.connection import MESSAGE_WITHIN, Connection, protocol
from softswitch.thrift.errors import ThriftError
from softswitch.thrift.management import Management, SimpleSwitch
from softswitch.thrift.profiles import Profiles
from softswitch.thrift.replication import Replication
from softswitch.thrift.state import State
from softswitch.thrift.structs import TYPES
from softswitch.thrift.switch import Switch
from softswitch.thrift.tables import Tables

log = logging.getLogger(__name__)

MAX_CLIENTS = 64
_HOST = "127.0.0.1"
_END_WITHIN = 3.0
"""Seconds that `close` waits for requests that are being executed."""

_LONG = {"bm_load_new_config", "bm_swap_configs", "bm_get_config", "bm_get_config_md5", "bm_mgmt_get_info"}
"""Methods that wait for the compiler or lock the switch themselves."""

_ANY_ERROR = {
    "InvalidTableOperation": 100, "InvalidCounterOperation": 3, "InvalidSwapOperation": 1, "InvalidMeterOperation": 6,
    "InvalidRegisterOperation": 3, "InvalidParseVSetOperation": 2, "InvalidLearnOperation": 3,
    "InvalidDevMgrOperation": 1, "InvalidCrcOperation": 3, "InvalidToeplitzHashOperation": 3, "InvalidIdLookup": 1,
    "InvalidMcOperation": 5, "InvalidMirroringOperation": 1,
}
"""Codes for errors that BMv2 has no name for: the reason is in the log."""


class ThriftServer:
    """The services standard, simple_pre, simple_pre_lag and simple_switch of one switch."""

    def __init__(self, switch: Switch, port: int, *, within: float = MESSAGE_WITHIN,
                 max_clients: int = MAX_CLIENTS) -> None:
        """Listens on 127.0.0.1:`port` (0: any free one). Raises ThriftError where that cannot be.

        within       seconds in which a message must come once it has begun
        max_clients  connections at the same time
        """
        self._switch, self._within, self._max = switch, within, max_clients
        replication = Replication(switch)
        management = Management(switch, lambda: self.port, replication.forget)
        tables, profiles, state = Tables(switch), Profiles(switch), State(switch)
        self._handlers: dict[str, tuple[object, ...]] = {
            "standard": (tables, profiles, state, management),
            "simple_pre": (replication,),
            "simple_pre_lag": (replication,),
            "simple_switch": (SimpleSwitch(switch),),
        }
        self._executing = threading.Lock()
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: set[threading.Thread] = set()
        """The threads of the clients."""
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((_HOST, port))
            self._listener.listen(64)
        except (OSError, OverflowError) as error:
            self._listener.close()
            raise ThriftError(f"cannot serve Thrift on {_HOST}:{port}: {error}") from error
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name="softswitch-thrift")
        self._acceptor.start()

    def close(self) -> None:
        """Ends the server and all connections. Requests that are being executed are waited for, for some seconds."""
        with self._lock:
            self._closed.set()
            connections, threads = list(self._connections), list(self._threads)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + _END_WITHIN
        for thread in (self._acceptor, *threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> ThriftServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- clients ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                log.warning("Thrift: a client could not be admitted: %s", error)
                self._closed.wait(0.1)  # it is tried again at once else, while files are lacking for example
                continue
            connection = Connection(sock, within=self._within)
            if not self._admit(connection):
                connection.close()

    def _admit(self, connection: Connection) -> bool:
        """Starts to serve a client, if there is room."""
        with self._lock:
            if self._closed.is_set():
                return False
            if len(self._connections) >= self._max:
                waiting = [one for one in self._connections if not one.is_executing]
                if not waiting:
                    log.warning("Thrift: %d clients are being served: another was turned away", self._max)
                    return False
                oldest = min(waiting, key=lambda one: one.waits_since)
                log.warning("Thrift: %d clients are connected: the one that waited longest made room", self._max)
                self._connections.discard(oldest)
                oldest.close()
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True, name="softswitch-thrift")
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more
                log.warning("Thrift: a client was turned away: %s", error)
                return False
            self._connections.add(connection)
            self._threads.add(thread)  # which leaves it at its end, and cannot before this lock is free
            return True

    def _serve(self, connection: Connection) -> None:
        wire = protocol(connection)
        try:
            while connection.wait():
                self._answer(connection, wire)
        except (TException, TTransportException, UnicodeDecodeError, OSError, EOFError) as error:
            log.warning("Thrift: a connection was ended: %s", error)
        except Exception:
            log.exception("Thrift: a connection was ended")
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._threads.discard(threading.current_thread())
            connection.close()

    # ---- requests --------------------------------------------------------------------------------------------

    def _answer(self, connection: Connection, wire: Any) -> None:
        name, kind, sequence = wire.readMessageBegin()
        if kind not in (TMessageType.CALL, TMessageType.ONEWAY):
            raise TProtocolException(TProtocolException.INVALID_DATA, f"a message of kind {kind}: expected a call")
        service, separator, method_name = name.partition(":")
        described = TYPES[service].methods.get(method_name) if separator and service in TYPES else None
        if described is None:
            raise TProtocolException(TProtocolException.NOT_IMPLEMENTED, f"no service has the method {name!r:.100}")
        method, arguments, result = described
        given = arguments()
        given.read(wire)
        wire.readMessageEnd()
        values = [getattr(given, field.name) for field in method.arguments]
        connection.is_executing = True
        try:
            answer = self._execute(service, method, values, result)
            kind = TMessageType.REPLY
        except EngineError as error:
            answer = TApplicationException(TApplicationException.INTERNAL_ERROR, str(error))
            kind = TMessageType.EXCEPTION
        except Exception as error:  # a mistake of ours: the client gets its name, the log the rest
            log.exception("Thrift: %s", method_name)
            answer = TApplicationException(TApplicationException.INTERNAL_ERROR, f"{method_name}: {error!r}")
            kind = TMessageType.EXCEPTION
        finally:
            connection.is_executing = False
        wire.writeMessageBegin(method_name, kind, sequence)
        answer.write(wire)
        wire.writeMessageEnd()
        connection.flush()

    def _execute(self, service: str, method: Any, values: list[Any], result: Any) -> Any:
        """The answer to a call: its result, or the exception of its kind. Raises EngineError for a method that has
        no exception."""
        call = next(getattr(one, method.name) for one in self._handlers[service] if hasattr(one, method.name))
        missing = [field.name for field, value in zip(method.arguments, values, strict=True)
                   if value is None and field.type in ("i16", "i32", "i64", "string", "bool", "binary")]
        error_type = getattr(TYPES[service], method.error) if method.error else None
        answer = result()
        try:
            if missing:
                raise EngineError(f"arguments {', '.join(missing)} are missing")
            if method.name in _LONG:
                value = call(*values)
            else:
                with self._executing, self._switch.writing():
                    value = call(*values)
        except EngineError as error:
            log.warning("Thrift: %s(%s): %s", method.name, _shown(values), error)
            if error_type is None:
                raise
            answer.ouch = error_type(_ANY_ERROR[method.error])
        except TException as error:
            if error_type is None or type(error).__name__ != method.error:
                raise
            log.info("Thrift: %s(%s): %s", method.name, _shown(values), error)
            # simple_pre and simple_pre_lag have the same exception, as classes of their own
            answer.ouch = error_type(error.code)
        else:
            if method.result != "void":
                answer.success = value
        return answer


def _shown(values: list[Any]) -> str:
    return f"{', '.join(map(repr, values)):.200}"
