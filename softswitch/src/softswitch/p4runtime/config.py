# SPDX-License-Identifier: Apache-2.0
"""The forwarding pipeline: verify, save, commit, reconcile (P4Runtime 7), and the program that runs now.

A new program starts beside the old one, with its ports closed, and takes over only when it is ready: an error leaves
the old program as it was. When a program's process dies, the switch has no pipeline any more, as if none had ever been
pushed; crashes.py bounds how often the same program starts again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from finsy.proto import p4r

from softswitch.engine.entities import Event
from softswitch.engine.errors import EngineError, FailedPrecondition, Internal, InvalidArgument
from softswitch.p4runtime import entities
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.crashes import Crashes
from softswitch.p4runtime.crcs import set_crc
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.process import Settings, SwitchProcess
from softswitch.p4runtime.program import Builder, Built
from softswitch.p4runtime.schema import Schema, differences

log = logging.getLogger(__name__)

_Request = p4r.SetForwardingPipelineConfigRequest


@dataclass
class Pipeline:
    """A running program, and the configuration that it came from."""

    config: p4r.ForwardingPipelineConfig
    built: Built
    process: SwitchProcess
    context: Context
    ports_up: dict[int, bool] = field(default_factory=dict)
    """The state of ports that the process has reported so far."""

    def close(self) -> None:
        self._log_losses()
        self.context.digests.close()
        self.process.close()

    def _log_losses(self) -> None:
        """Logs the frames that ports have lost."""
        try:
            ports = self.process.ports()
        except EngineError:
            return
        for port in ports:
            lost = {
                "queue full": port.dropped_full,
                "link down": port.dropped_down,
                "received too fast": port.missed,
                "malformed": port.malformed,
            }
            said = ", ".join(f"{n} {why}" for why, n in lost.items() if n)
            if said:
                log.warning("port %d (%s) lost frames: %s", port.number, port.interface, said)


@dataclass(frozen=True)
class Listener:
    """The receivers of a pipeline's events. Each is called on another thread and must not block."""

    on_event: Callable[[Pipeline, Event], None]
    on_digest: Callable[[p4r.DigestList], None]
    on_death: Callable[[str], None]


class Configuration:
    """The pipeline of one switch."""

    def __init__(self, settings: Settings, builder: Builder, listener: Listener) -> None:
        self._settings = settings
        self._builder = builder
        self._listener = listener
        self._lock = threading.Lock()
        self._saved: p4r.ForwardingPipelineConfig | None = None
        self._running: Pipeline | None = None
        self.crashes = Crashes()

    def change(self, settings: Callable[[Settings], Settings], apply: Callable[[SwitchProcess], None]) -> None:
        """Changes the running process by `apply`, and the settings of those that follow it. Raises EngineError, and
        leaves both as they were."""
        with self._lock:
            apply(self.running().process)
            self._settings = settings(self._settings)

    def _interfaces(self) -> dict[str, int]:
        return {port.interface: port.number for port in self._settings.ports}

    def close(self) -> None:
        with self._lock:
            if self._running is not None:
                self._running.close()
                self._running = None

    def running(self) -> Pipeline:
        """The running pipeline. Raises FailedPrecondition where there is none, or its process has ended."""
        pipeline = self._running
        if pipeline is None:
            raise FailedPrecondition(
                "no forwarding pipeline config was pushed yet: SetForwardingPipelineConfig comes first"
            )
        if pipeline.process.death is not None:
            raise FailedPrecondition(
                f"there is no forwarding pipeline any more: {pipeline.process.death}; "
                "SetForwardingPipelineConfig starts one again, with empty tables"
            )
        return pipeline

    def runs(self) -> bool:
        """True if there is a pipeline whose process is alive."""
        return self._running is not None and self._running.process.death is None

    def wait_to_restart(self) -> float:
        """Seconds until the program that died may start again."""
        pipeline = self._running
        return 0.0 if pipeline is None else self.crashes.wait(pipeline.built.executable)

    def apply(self, action: int, config: p4r.ForwardingPipelineConfig) -> None:
        """Executes one SetForwardingPipelineConfig. Raises EngineError, and leaves the running pipeline unchanged."""
        with self._lock:
            if action == _Request.VERIFY:
                self._verify(config)
            elif action == _Request.VERIFY_AND_SAVE:
                self._verify(config)
                self._saved = _copy(config)
            elif action == _Request.VERIFY_AND_COMMIT:
                self._replace(config, self._verify(config))
            elif action == _Request.COMMIT:
                if self._saved is None:
                    raise FailedPrecondition("COMMIT without a saved pipeline: VERIFY_AND_SAVE comes first")
                self._replace(self._saved, self._verify(self._saved))
                self._saved = None
            elif action == _Request.RECONCILE_AND_COMMIT:
                self._reconcile(config)
            else:
                raise InvalidArgument("SetForwardingPipelineConfig needs an action")

    def _verify(self, config: p4r.ForwardingPipelineConfig) -> Built:
        if not config.HasField("p4info"):
            raise InvalidArgument("the configuration has no p4info")
        built = self._builder(config.p4_device_config)
        wrong = differences(config.p4info, built.p4info)
        if wrong:
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise InvalidArgument(
                f"p4info and p4_device_config are of different programs: {'; '.join(wrong[:5])}{more}"
            )
        return built

    def _prepare(self, config: p4r.ForwardingPipelineConfig, built: Built) -> Pipeline:
        """Starts a program with its ports closed. Raises Unavailable where it has crashed too often."""
        self.crashes.check(built.executable)
        made: list[Pipeline] = []
        began = time.monotonic()

        def event(e: Event) -> None:
            if made:
                self._listener.on_event(made[0], e)

        def death(why: str) -> None:
            self.crashes.died(built.executable, time.monotonic() - began, why)
            if made and made[0] is self._running:
                self._listener.on_death(why)

        try:
            process = SwitchProcess(
                built.executable, self._settings, on_event=event, on_death=death, description=built.trace
            )
        except EngineError as error:
            self.crashes.died(built.executable, 0.0, str(error))
            raise
        try:
            digests = Digests(self._listener.on_digest)
            schema = Schema(built.p4info, process.engine, json=built.json, interfaces=self._interfaces)
            digests.describe(schema.digests, built.p4info, schema.types)
            pipeline = Pipeline(_copy(config), built, process, Context(schema, process.engine, digests))
        except BaseException:
            process.close()
            raise
        made.append(pipeline)
        return pipeline

    def _replace(self, config: p4r.ForwardingPipelineConfig, built: Built) -> None:
        self._switch_over(self._prepare(config, built))

    def _switch_over(self, new: Pipeline) -> None:
        if new.process.death is not None:
            new.close()
            raise Internal(new.process.death)
        old, self._running = self._running, new
        if old is not None:
            old.close()
        new.process.start()

    def _reconcile(self, config: p4r.ForwardingPipelineConfig) -> None:
        """Keeps entries and counts: the same program continues, another one gets all state that it has objects for."""
        built = self._verify(config)
        old = self._running
        if old is None or old.process.death is not None:
            self._replace(config, built)
            return
        if built.executable == old.built.executable:
            old.config.CopyFrom(config)
            return
        new = self._prepare(config, built)
        try:
            new.context.schema.types.adopt(old.context.schema.types)
            _carry_over(old.context, new.context)
            for name, (*numbers, data, remainder) in old.context.crcs.items():
                set_crc(new.context.engine, built.json, name, *numbers, data_reflected=data,
                        remainder_reflected=remainder)
            new.context.crcs.update(old.context.crcs)
        except EngineError as error:
            new.close()
            raise FailedPrecondition(
                "RECONCILE_AND_COMMIT: the new program has no place for the present state: "
                f"{error}; use VERIFY_AND_COMMIT to start afresh"
            ) from error
        except BaseException:
            new.close()
            raise
        self._switch_over(new)


def _copy(config: p4r.ForwardingPipelineConfig) -> p4r.ForwardingPipelineConfig:
    kept = p4r.ForwardingPipelineConfig()
    kept.CopyFrom(config)
    return kept


def everything(context: Context) -> Iterator[tuple[int, p4r.Entity]]:
    """The whole state of a pipeline as updates, in an order in which they can be written."""
    insert, modify = p4r.Update.INSERT, p4r.Update.MODIFY

    def ask(kind: int, *wanted: p4r.Entity) -> Iterator[tuple[int, p4r.Entity]]:
        for entity in entities.read(context, wanted):
            yield kind, entity

    pre = p4r.PacketReplicationEngineEntry
    yield from ask(
        insert, p4r.Entity(packet_replication_engine_entry=pre(multicast_group_entry=p4r.MulticastGroupEntry()))
    )
    yield from ask(
        insert, p4r.Entity(packet_replication_engine_entry=pre(clone_session_entry=p4r.CloneSessionEntry()))
    )
    yield from ask(insert, p4r.Entity(action_profile_member=p4r.ActionProfileMember()))
    yield from ask(insert, p4r.Entity(action_profile_group=p4r.ActionProfileGroup()))
    wanted = p4r.Entity(table_entry=p4r.TableEntry())
    wanted.table_entry.counter_data.SetInParent()
    wanted.table_entry.meter_config.SetInParent()
    for kind, entity in ask(insert, wanted):
        if entity.table_entry.is_const:
            yield from _direct_state(entity.table_entry)
        else:
            yield kind, entity
    wanted.table_entry.is_default_action = True
    for kind, entity in ask(modify, wanted):
        if entity.table_entry.is_const:
            yield from _direct_state(entity.table_entry)
        elif entity.table_entry.action.WhichOneof("type") == "action":
            yield kind, entity
    yield from ask(modify, p4r.Entity(value_set_entry=p4r.ValueSetEntry()))
    yield from ask(insert, p4r.Entity(digest_entry=p4r.DigestEntry()))
    for kind, entity in ask(modify, p4r.Entity(counter_entry=p4r.CounterEntry())):
        if entity.counter_entry.data.packet_count or entity.counter_entry.data.byte_count:
            yield kind, entity
    for kind, entity in ask(modify, p4r.Entity(meter_entry=p4r.MeterEntry())):
        if entity.meter_entry.HasField("config"):
            yield kind, entity
    for kind, entity in ask(modify, p4r.Entity(register_entry=p4r.RegisterEntry())):
        if entity.register_entry.data.bitstring.strip(b"\0"):
            yield kind, entity


def _direct_state(entry: p4r.TableEntry) -> Iterator[tuple[int, p4r.Entity]]:
    """The state of a const entry or default action: its meter and counter."""
    target = p4r.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority,
                            is_default_action=entry.is_default_action)
    if entry.HasField("meter_config"):
        meter = p4r.DirectMeterEntry(table_entry=target, config=entry.meter_config)
        yield p4r.Update.MODIFY, p4r.Entity(direct_meter_entry=meter)
    if entry.counter_data.packet_count or entry.counter_data.byte_count:
        counter = p4r.DirectCounterEntry(table_entry=target, data=entry.counter_data)
        yield p4r.Update.MODIFY, p4r.Entity(direct_counter_entry=counter)


def _unwritten(old: Context, new: Context, entity: p4r.Entity) -> bool:
    """True for a default action or value set that the new program lacks and that is as the old program began."""
    if entity.HasField("value_set_entry"):
        values = entity.value_set_entry
        return values.value_set_id not in new.schema.value_sets and not values.members
    entry = entity.table_entry
    if not entry.is_default_action or entry.table_id in new.schema.tables:
        return False
    (first,) = (t.initial_default_action for t in old.schema.p4info.tables if t.preamble.id == entry.table_id)
    action = p4r.Action(action_id=first.action_id)
    for argument in first.arguments:
        action.params.add(param_id=argument.param_id, value=argument.value.lstrip(b"\0") or b"\0")
    counted = entry.counter_data.packet_count or entry.counter_data.byte_count
    kept = counted or entry.HasField("meter_config") or entry.metadata or entry.controller_metadata
    return entry.action.action == action and not kept


def _carry_over(old: Context, new: Context) -> None:
    """Writes the old state into a new program. Tables of both get the old entries alone: the new program's initial ones
    would be in their way, or bring back what a controller has deleted."""
    for ident, table in new.schema.tables.items():
        before = old.schema.tables.get(ident)
        if before is not None and not (before.info.const_entries or table.info.const_entries):
            new.engine.clear(table.info)
    batch = [p4r.Update(type=kind, entity=entity) for kind, entity in everything(old)  # type: ignore[arg-type]
             if not _unwritten(old, new, entity)]
    for update, error in zip(batch, entities.write(new, batch), strict=True):
        if error is not None:
            raise type(error)(f"{update.entity.WhichOneof('entity')}: {error}")
