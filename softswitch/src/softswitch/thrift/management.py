# SPDX-License-Identifier: Apache-2.0
"""The switch itself over Thrift: its program, ports, state, hashes, mirroring sessions and queues."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

from google.protobuf import text_format

from softswitch.engine.entities import CloneSession
from softswitch.engine.errors import InvalidArgument, NotFound, ResourceExhausted, Unimplemented
from softswitch.p4runtime import config
from softswitch.thrift import tables
from softswitch.thrift.notifications import Learning
from softswitch.thrift.switch import STANDARD, SWITCH, Switch

log = logging.getLogger(__name__)

_SESSIONS = 1 << 15
"""Upper bound of the numbers of mirroring sessions."""


def _fail_crc(error: str) -> NoReturn:
    raise STANDARD.InvalidCrcOperation(getattr(STANDARD.CrcErrorCode, error))


class Management:
    """The methods of Standard that are about no object of the program in particular."""

    def __init__(self, switch: Switch, port: Callable[[], int], forget: Callable[[], None]) -> None:
        """`port` tells the server's own port; `forget` is called when all state is reset."""
        self._switch, self._port, self._forget = switch, port, forget

    # ---- program ---------------------------------------------------------------------------------------------

    def bm_get_config(self) -> str:
        return self._switch.config()

    def bm_get_config_md5(self) -> bytes:
        return hashlib.md5(self._switch.config().encode(), usedforsecurity=False).digest()

    def bm_load_new_config(self, config_str: str) -> None:
        self._switch.load(config_str)

    def bm_swap_configs(self) -> None:
        try:
            self._switch.swap()
        except NotFound:
            raise STANDARD.InvalidSwapOperation(STANDARD.SwapOperationErrorCode.NO_ONGOING_SWAP) from None

    def bm_get_id_from_name(self, cxt_id: int, resource_type: int, resource_name: str) -> int:
        """BMv2 numbers the objects of each kind; here the numbers are places in the engine's lists."""
        kinds, errors = STANDARD.BmResourceType, STANDARD.IdLookupErrorCode
        info = self._switch.context().engine.info
        things = {
            kinds.MATCH_TABLE: info.tables, kinds.ACTION_PROFILE: info.profiles, kinds.COUNTER: info.counters,
            kinds.METER: info.meters, kinds.REGISTER: info.registers, kinds.LEARNING_LIST: info.digests,
        }.get(resource_type)
        if things is None:
            raise STANDARD.InvalidIdLookup(errors.INVALID_RESOURCE_TYPE)
        for thing in things:
            if thing.name == resource_name:
                return thing.index
        raise STANDARD.InvalidIdLookup(errors.INVALID_RESOURCE_NAME)

    # ---- state -----------------------------------------------------------------------------------------------

    def bm_reset_state(self) -> None:
        context = self._switch.context()
        context.engine.reset()
        context.reset()
        if (published := self._switch.notifications()) is not None:
            published.learning.reset()
        self._forget()

    def bm_serialize_state(self) -> str:
        """All state as P4Runtime entities in protobuf's text form, one a line; BMv2 has a form of its own."""
        lines: list[str] = []
        for _, entity in config.everything(self._switch.context()):
            if len(lines) >= tables.ENTRIES_MAX:
                raise ResourceExhausted(f"the switch's state has more than {tables.ENTRIES_MAX} entries and cells that "
                                        "are not zero, and an answer has at most as many: read them over P4Runtime")
            lines.append(f"{text_format.MessageToString(entity, as_one_line=True)}\n")
        return "".join(lines)

    # ---- ports -----------------------------------------------------------------------------------------------

    def bm_dev_mgr_show_ports(self) -> list[Any]:
        ports = sorted(self._switch.ports(), key=lambda port: port.number)
        return [STANDARD.DevMgrPortInfo(port.number, port.interface, port.up, {}) for port in ports]

    def bm_dev_mgr_add_port(self, iface_name: str, port_num: int, pcap_path: str) -> None:
        if pcap_path:
            raise Unimplemented(f"port {port_num}: a capture file for one port is not supported: --pcap captures all")
        self._switch.add_port(port_num, iface_name)

    def bm_dev_mgr_remove_port(self, port_num: int) -> None:
        self._switch.remove_port(port_num)

    def bm_mgmt_get_info(self) -> Any:
        published = self._switch.notifications()
        return STANDARD.BmConfig(self._switch.device_id, self._port(), published.address if published else "")

    # ---- hashes ----------------------------------------------------------------------------------------------

    def _set_crc(self, name: str, bits: int, given: Any) -> None:
        if given is None:
            _fail_crc("INVALID_CONFIG")
        ones = (1 << bits) - 1
        numbers = [(value or 0) & ones for value in (given.polynomial, given.initial_remainder, given.final_xor_value)]
        try:
            self._switch.set_crc(name, bits, *numbers, data_reflected=bool(given.data_reflected),
                                 remainder_reflected=bool(given.remainder_reflected))
        except NotFound:
            _fail_crc("INVALID_CALCULATION_NAME")
        except InvalidArgument:
            _fail_crc("WRONG_TYPE_CALCULATION")

    def bm_set_crc16_custom_parameters(self, cxt_id: int, calc_name: str, crc16_config: Any) -> None:
        self._set_crc(calc_name, 16, crc16_config)

    def bm_set_crc32_custom_parameters(self, cxt_id: int, calc_name: str, crc32_config: Any) -> None:
        self._set_crc(calc_name, 32, crc32_config)

    def bm_set_toeplitz_hash_key(self, cxt_id: int, calc_name: str, key: bytes) -> None:
        errors = STANDARD.ToeplitzHashErrorCode  # v1model has no such hash
        raise STANDARD.InvalidToeplitzHashOperation(errors.INVALID_CALCULATION_NAME)

    # ---- learning --------------------------------------------------------------------------------------------

    def _learning(self) -> Learning:
        published = self._switch.notifications()
        if published is None:
            raise Unimplemented("this switch publishes no digests for Thrift's clients")
        return published.learning

    def _known(self, there: bool) -> None:
        if not there:
            raise STANDARD.InvalidLearnOperation(STANDARD.LearnOperationErrorCode.INVALID_LIST_ID)

    def bm_learning_ack(self, cxt_id: int, list_id: int, buffer_id: int, sample_ids: Any) -> None:
        self._known(self._learning().acknowledge(list_id, buffer_id, list(sample_ids or [])))

    def bm_learning_ack_buffer(self, cxt_id: int, list_id: int, buffer_id: int) -> None:
        self._known(self._learning().acknowledge(list_id, buffer_id))

    def bm_learning_set_timeout(self, cxt_id: int, list_id: int, timeout_ms: int) -> None:
        if timeout_ms < 0:
            raise InvalidArgument(f"learn list {list_id}: expected a timeout from 0 ms on, got {timeout_ms}")
        self._known(self._learning().set_timeout(list_id, timeout_ms))

    def bm_learning_set_buffer_size(self, cxt_id: int, list_id: int, nb_samples: int) -> None:
        self._known(self._learning().set_samples(list_id, nb_samples))


class SimpleSwitch:
    """The methods of the service SimpleSwitch."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._began = time.monotonic()

    def mirroring_session_add(self, mirror_id: int, config: Any) -> None:
        if not 0 <= mirror_id < _SESSIONS:
            raise InvalidArgument(f"mirroring session {mirror_id}: expected a number from 0 to {_SESSIONS - 1}")
        port = None if config is None else config.port
        group = 0 if config is None or config.mgid is None else config.mgid
        replicas = () if port is None else ((port & 0xFFFFFFFF, 0),)
        session = CloneSession(mirror_id, replicas, group=group & 0xFFFFFFFF)
        engine = self._switch.context().engine
        try:
            engine.clone_sessions(mirror_id)
        except NotFound:
            engine.write_clone_session("insert", session)
        else:
            engine.write_clone_session("modify", session)

    def _session(self, mirror_id: int) -> CloneSession:
        try:
            (session,) = self._switch.context().engine.clone_sessions(mirror_id & 0xFFFFFFFF)
        except NotFound:
            raise SWITCH.InvalidMirroringOperation(SWITCH.MirroringOperationErrorCode.SESSION_NOT_FOUND) from None
        return session

    def mirroring_session_delete(self, mirror_id: int) -> None:
        self._switch.context().engine.write_clone_session("delete", self._session(mirror_id))

    def mirroring_session_get(self, mirror_id: int) -> Any:
        session = self._session(mirror_id)
        port = session.replicas[0][0] if session.replicas else None
        return SWITCH.MirroringSessionConfig(port, session.group or None)

    def mirroring_mapping_add(self, mirror_id: int, egress_port: int) -> int:
        self.mirroring_session_add(mirror_id, SWITCH.MirroringSessionConfig(egress_port))
        return 0

    def mirroring_mapping_delete(self, mirror_id: int) -> int:
        try:
            self.mirroring_session_delete(mirror_id)
        except SWITCH.InvalidMirroringOperation:
            return 0
        return 1

    def mirroring_mapping_get_egress_port(self, mirror_id: int) -> int:
        try:
            port = self.mirroring_session_get(mirror_id).port
        except SWITCH.InvalidMirroringOperation:
            port = None
        return -1 if port is None else int(port)

    # ---- queues ----------------------------------------------------------------------------------------------

    def _limit(self, port: int | None, priority: int = 0, **limit: int) -> int:
        (value,) = limit.values()
        if priority:
            raise Unimplemented(f"port {port}: priority {priority}: a port has one queue here, whose priority is 0")
        if value < 0:
            raise InvalidArgument(f"expected a number from 0 on, got {value}")
        try:
            self._switch.limit_queue(port, **limit)
        except NotFound as error:  # BMv2 remembers it for a port to come
            log.warning("%s", error)
        return 0

    def set_egress_priority_queue_depth(self, port_num: int, priority: int, depth_pkts: int) -> int:
        return self._limit(port_num, priority, depth=depth_pkts)

    def set_egress_queue_depth(self, port_num: int, depth_pkts: int) -> int:
        return self._limit(port_num, depth=depth_pkts)

    def set_all_egress_queue_depths(self, depth_pkts: int) -> int:
        return self._limit(None, depth=depth_pkts)

    def set_egress_priority_queue_rate(self, port_num: int, priority: int, rate_pps: int) -> int:
        return self._limit(port_num, priority, rate=rate_pps)

    def set_egress_queue_rate(self, port_num: int, rate_pps: int) -> int:
        return self._limit(port_num, rate=rate_pps)

    def set_all_egress_queue_rates(self, rate_pps: int) -> int:
        return self._limit(None, rate=rate_pps)

    # ---- time ------------------------------------------------------------------------------------------------

    def get_time_elapsed_us(self) -> int:
        return int((time.monotonic() - self._began) * 1e6)

    def get_time_since_epoch_us(self) -> int:
        return time.time_ns() // 1000
