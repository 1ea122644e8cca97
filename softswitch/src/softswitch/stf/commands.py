# SPDX-License-Identifier: Apache-2.0
"""Commands of BMv2's simple_switch_CLI that packet tests may use: mirroring, multicast, counters, meters, registers."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.engine.entities import CloneSession, Count, Multicast
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.local import LocalEngine
from softswitch.stf.script import Command, number
from softswitch.stf.values import by_ending, rates


class Commands:
    """Executes commands on a switch.

    Multicast follows BMv2: a node is a replication id with ports, numbered in the order of creation, and a group is a
    list of nodes. ``note(command, value)`` receives what commands read.
    """

    def __init__(self, engine: LocalEngine, note: Callable[[Command, object], None]) -> None:
        self._engine = engine
        self._note = note
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = {}

    def run(self, s: Command) -> None:
        """Executes one command.  Raises EngineError, and ValueError for an argument that is no number."""
        engine, name, args = self._engine, s.name, s.args
        try:
            match name:
                case "mirroring_add":
                    self._mirror(number(args[0]), CloneSession(number(args[0]), ((number(args[1]), 0),)))
                case "mirroring_add_mc":
                    self._mirror(number(args[0]), CloneSession(number(args[0]), (), group=number(args[1])))
                case "mirroring_delete":
                    engine.write_clone_session("delete", CloneSession(number(args[0]), ()))
                case "mirroring_get":
                    self._note(s, engine.clone_sessions(number(args[0])))
                case "mc_mgrp_create":
                    self._groups[number(args[0])] = []
                    engine.write_multicast("insert", Multicast(number(args[0]), ()))
                case "mc_node_create":
                    self._nodes.append((number(args[0]), [number(port) for port in args[1:]]))
                case "mc_node_update":
                    rid, _ = self._nodes[number(args[0])]
                    self._nodes[number(args[0])] = (rid, [number(port) for port in args[1:]])
                    self._write_groups()
                case "mc_node_associate":
                    self._groups[number(args[0])].append(number(args[1]))
                    self._write_groups()
                case _:
                    self._state_command(s)
        except LookupError:
            call = " ".join((name, *args))
            raise InvalidArgument(f"{call}: an argument is missing, or there is no such node") from None

    def _state_command(self, s: Command) -> None:
        """Reads, writes or resets a register, counter or meter."""
        engine, args = self._engine, s.args
        match s.name.split("_")[0]:
            case "register":
                register = by_ending(engine.info.registers, args[0], "register")
                if s.name == "register_read":
                    self._note(s, engine.read_register(register, number(args[1]), 1)[0])
                elif s.name == "register_write":
                    engine.write_register(register, number(args[1]), [number(args[2])])
                else:
                    engine.reset_register(register)
            case "counter":
                counter = by_ending(engine.info.counters, args[0], "counter")
                if s.name == "counter_read":
                    self._note(s, engine.read_counter(counter, number(args[1]), 1)[0])
                else:
                    engine.write_counter(counter, number(args[1]), [Count(number(args[2]), number(args[3]))])
            case _:
                meter = by_ending(engine.info.meters, args[0], "meter")
                if s.name == "meter_get_rates":
                    self._note(s, engine.read_meter(meter, number(args[1]), 1)[0])
                elif s.name == "meter_set_rates":
                    engine.write_meter(meter, number(args[1]), [rates(args[2:])])
                else:
                    engine.write_meter(meter, 0, [rates(args[1:])] * meter.size)

    def _mirror(self, ident: int, session: CloneSession) -> None:
        """Makes a clone session, or replaces the one with this number."""
        known = {s.session for s in self._engine.clone_sessions()}
        self._engine.write_clone_session("modify" if ident in known else "insert", session)

    def _write_groups(self) -> None:
        """Writes every multicast group with the replicas that its nodes now stand for."""
        for group, handles in self._groups.items():
            replicas = [(port, rid) for rid, ports in (self._nodes[h] for h in handles) for port in sorted(ports)]
            self._engine.write_multicast("modify", Multicast(group, tuple(replicas)))
