# SPDX-License-Identifier: Apache-2.0
"""The commands of the switch itself: program, ports, state, hashes, mirroring, queues."""

from __future__ import annotations

from pathlib import Path

from softswitch.runtime import files
from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.program import Names
from softswitch.tools.cli.shell import Shell, command
from softswitch.tools.cli.values import CommandError

_T, _S = TYPES["standard"], TYPES["simple_switch"]


class SwitchCommands(Shell):
    """Commands that refer to no object of the program, and the commands that only simple_switch has."""

    # ---- program ---------------------------------------------------------------------------------------------

    @command
    def do_load_new_config_file(self, args: list[str]) -> None:
        "Load new json config: load_new_config_file <path to .json file>"
        self.exactly(args, 1)
        if not Path(args[0]).is_file():
            raise CommandError("Not a valid filename")
        print("Loading new Json config")
        try:
            text = files.read_text(args[0])
            names = Names(text)
        except (OSError, ValueError):
            raise CommandError("Not a valid JSON file") from None
        self.client.bm_load_new_config(text)
        self.names = names

    @command
    def do_swap_configs(self, args: list[str]) -> None:
        "Swap the 2 existing configs, need to have called load_new_config_file before"
        print("Swapping configs")
        self.client.bm_swap_configs()

    @command
    def do_write_config_to_file(self, args: list[str]) -> None:
        "Retrieves the JSON config currently used by the switch and dumps it to user-specified file"
        self.exactly(args, 1)
        self._write(args[0], self.client.bm_get_config())

    @command
    def do_serialize_state(self, args: list[str]) -> None:
        "Serialize the switch state and dumps it to user-specified file"
        self.exactly(args, 1)
        self._write(args[0], self.client.bm_serialize_state())

    def _write(self, path: str, text: str) -> None:
        try:
            files.replace(path, text)
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}") from None

    @command
    def do_reset_state(self, args: list[str]) -> None:
        "Reset all state in the switch (table entries, registers, ...), but P4 config is preserved: reset_state"
        self.exactly(args, 0)
        self.client.bm_reset_state()

    # ---- ports -----------------------------------------------------------------------------------------------

    @command
    def do_port_add(self, args: list[str]) -> None:
        ("Add a port to the switch (behavior depends on device manager used): port_add <iface_name> <port_num> "
         "[pcap_path]")
        self.at_least(args, 2)
        number = self.number(args[1], "port_num, must be an integer")
        self.client.bm_dev_mgr_add_port(args[0], number, args[2] if len(args) > 2 else "")

    @command
    def do_port_remove(self, args: list[str]) -> None:
        "Removes a port from the switch (behavior depends on device manager used): port_remove <port_num>"
        self.exactly(args, 1)
        self.client.bm_dev_mgr_remove_port(self.number(args[0], "port_num, must be an integer"))

    @command
    def do_show_ports(self, args: list[str]) -> None:
        "Shows the ports connected to the switch: show_ports"
        self.exactly(args, 0)
        ports = self.client.bm_dev_mgr_show_ports()
        print(f"{'port #':^10}{'iface name':^20}{'status':^10}extra info")
        print("=" * 50)
        for port in ports:
            extra = "; ".join(f"{name}={value}" for name, value in (port.extra or {}).items())
            print(f"{port.port_num:^10}{port.iface_name:^20}{'UP' if port.is_up else 'DOWN':^10}{extra}")

    @command
    def do_switch_info(self, args: list[str]) -> None:
        "Show some basic info about the switch: switch_info"
        self.exactly(args, 0)
        info = self.client.bm_mgmt_get_info()
        names = [field[2] for field in info.thrift_spec[1:]]
        wide = 5 + max(map(len, names))
        for name in names:
            print(f"{name:{wide}}: {getattr(info, name)}")

    # ---- hashes ----------------------------------------------------------------------------------------------

    def _set_crc(self, args: list[str], bits: int) -> None:
        self.exactly(args, 6)
        if self.names.crcs.get(args[0]) != bits:
            raise CommandError(f"Invalid crc{bits}_custom name ({args[0]})")
        numbers = []
        for text in args[1:4]:
            value = self._hex(text)
            if value.bit_length() > bits:
                raise CommandError(f"Integer cannot fit within {bits} bits")
            numbers.append(value - (1 << bits) if value >> bits - 1 else value)
        flags = [self._flag(text) for text in args[4:6]]
        if bits == 16:
            self.client.bm_set_crc16_custom_parameters(0, args[0], _T.BmCrc16Config(*numbers, *flags))
        else:
            self.client.bm_set_crc32_custom_parameters(0, args[0], _T.BmCrc32Config(*numbers, *flags))

    def _hex(self, text: str) -> int:
        try:
            return int(text, 0)
        except ValueError:
            raise CommandError(f"Bad format for {text}, expected integer") from None

    def _flag(self, text: str) -> bool:
        if text in ("true", "True"):
            return True
        if text in ("false", "False"):
            return False
        try:
            return bool(int(text, 0))
        except ValueError:
            raise CommandError("Invalid bool parameter") from None

    @command
    def do_set_crc16_parameters(self, args: list[str]) -> None:
        ("Change the parameters for a custom crc16 hash: set_crc16_parameters <name> <polynomial> "
         "<initial remainder> <final xor value> <reflect data?> <reflect remainder?>")
        self._set_crc(args, 16)

    @command
    def do_set_crc32_parameters(self, args: list[str]) -> None:
        ("Change the parameters for a custom crc32 hash: set_crc32_parameters <name> <polynomial> "
         "<initial remainder> <final xor value> <reflect data?> <reflect remainder?>")
        self._set_crc(args, 32)

    @command
    def do_set_toeplitz_hash_key(self, args: list[str]) -> None:
        "Set Toeplitz hash key: set_toeplitz_hash_key <name> <key in hex string>"
        self.exactly(args, 2)
        try:
            key = bytes.fromhex(args[1])
        except ValueError:
            raise CommandError("Toeplitz hash key must be a hex string") from None
        if len(key) % 4:
            raise CommandError("Toeplitz hash key must be a multiple of 4 bytes in length")
        self.client.bm_set_toeplitz_hash_key(0, args[0], key)

    # ---- simple_switch ---------------------------------------------------------------------------------------

    def _int(self, text: str, what: str) -> int:
        return self.number(text, f"{what}, expected integer")

    def _set_queue(self, args: list[str], what: str, limit: str) -> None:
        self.at_least(args, 1)
        value = self._int(args[0], what)
        numbers = [self._int(text, name) for text, name in zip(args[1:3], ("egress_port", "priority"), strict=False)]
        method = {0: f"set_all_egress_queue_{limit}s", 1: f"set_egress_queue_{limit}",
                  2: f"set_egress_priority_queue_{limit}"}[len(numbers)]
        getattr(self.sswitch_client, method)(*numbers, value)

    @command
    def do_set_queue_depth(self, args: list[str]) -> None:
        "Set depth of one / all egress queue(s): set_queue_depth <nb_pkts> [<egress_port> [<priority>]]"
        self._set_queue(args, "nb_pkts", "depth")

    @command
    def do_set_queue_rate(self, args: list[str]) -> None:
        "Set rate of one / all egress queue(s): set_queue_rate <rate_pps> [<egress_port> [<priority>]]"
        self._set_queue(args, "rate_pps", "rate")

    @command
    def do_mirroring_add(self, args: list[str]) -> None:
        "Add mirroring session to unicast port: mirroring_add <mirror_id> <egress_port>"
        self.exactly(args, 2)
        session, port = self._int(args[0], "mirror_id"), self._int(args[1], "egress_port")
        self.sswitch_client.mirroring_session_add(session, _S.MirroringSessionConfig(port=port))

    @command
    def do_mirroring_add_mc(self, args: list[str]) -> None:
        "Add mirroring session to multicast group: mirroring_add_mc <mirror_id> <mgrp>"
        self.exactly(args, 2)
        session, group = self._int(args[0], "mirror_id"), self._int(args[1], "mgrp")
        self.sswitch_client.mirroring_session_add(session, _S.MirroringSessionConfig(mgid=group))

    @command
    def do_mirroring_delete(self, args: list[str]) -> None:
        "Delete mirroring session: mirroring_delete <mirror_id>"
        self.exactly(args, 1)
        self.sswitch_client.mirroring_session_delete(self._int(args[0], "mirror_id"))

    @command
    def do_mirroring_get(self, args: list[str]) -> None:
        "Display mirroring session: mirroring_get <mirror_id>"
        self.exactly(args, 1)
        print(self.sswitch_client.mirroring_session_get(self._int(args[0], "mirror_id")))

    @command
    def do_get_time_elapsed(self, args: list[str]) -> None:
        "Get time elapsed (in microseconds) since the switch started: get_time_elapsed"
        print(self.sswitch_client.get_time_elapsed_us())

    @command
    def do_get_time_since_epoch(self, args: list[str]) -> None:
        "Get time elapsed (in microseconds) since the switch clock's epoch: get_time_since_epoch"
        print(self.sswitch_client.get_time_since_epoch_us())
