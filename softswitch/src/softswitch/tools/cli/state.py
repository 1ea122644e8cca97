# SPDX-License-Identifier: Apache-2.0
"""The commands of counters, meters, registers and parser value sets."""

from __future__ import annotations

import sys
from typing import Any

from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.program import Array, ValueSetName
from softswitch.tools.cli.shell import Shell, command
from softswitch.tools.cli.values import CommandError, to_bytes

_T = TYPES["standard"]


class StateCommands(Shell):
    """counter_*, meter_*, register_* and pvs_*."""

    # ---- counters --------------------------------------------------------------------------------------------

    @command
    def do_counter_read(self, args: list[str]) -> None:
        "Read counter value: counter_read <name> <index>"
        self.exactly(args, 2)
        counter: Array = self.find("counter", args[0])
        index = self.number(args[1], "index")
        if counter.table is not None:
            print("this is the direct counter for table", counter.table)
            value = self.client.bm_mt_read_counter(0, counter.table, index)
        else:
            value = self.client.bm_counter_read(0, counter.name, index)
        print(f"{args[0]}[{index}]= ({value.bytes} bytes, {value.packets} packets)")

    @command
    def do_counter_write(self, args: list[str]) -> None:
        "Write counter value: counter_write <name> <index> <packets> <bytes>"
        self.exactly(args, 4)
        counter: Array = self.find("counter", args[0])
        index, packets, octets = (self.number(text, what)
                                  for text, what in zip(args[1:], ("index", "packets", "bytes"), strict=True))
        value = _T.BmCounterValue(bytes=octets, packets=packets)
        if counter.table is not None:
            print("writing to direct counter for table", counter.table)
            self.client.bm_mt_write_counter(0, counter.table, index, value)
        else:
            self.client.bm_counter_write(0, counter.name, index, value)
        print(f"{args[0]}[{index}] has been updated")

    @command
    def do_counter_reset(self, args: list[str]) -> None:
        "Reset counter: counter_reset <name>"
        self.exactly(args, 1)
        counter: Array = self.find("counter", args[0])
        if counter.table is not None:
            print("this is the direct counter for table", counter.table)
            self.client.bm_mt_reset_counters(0, counter.table)
        else:
            self.client.bm_counter_reset_all(0, counter.name)

    # ---- meters ----------------------------------------------------------------------------------------------

    def _rates(self, meter: Array, texts: list[str]) -> list[Any]:
        if len(texts) != meter.rates:
            raise CommandError(f"Invalid number of rates, expected {meter.rates} but got {len(texts)}")
        try:
            pairs = [(float(rate), int(burst)) for rate, burst in (text.split(":") for text in texts)]
        except ValueError:
            raise CommandError("Error while parsing rates") from None
        return [_T.BmMeterRateConfig(*pair) for pair in pairs]

    @command
    def do_meter_array_set_rates(self, args: list[str]) -> None:
        ("Configure rates for an entire meter array: meter_array_set_rates <name> <rate_1>:<burst_1> "
         "<rate_2>:<burst_2> ...")
        self.at_least(args, 1)
        meter: Array = self.find("meter", args[0])
        self.client.bm_meter_array_set_rates(0, meter.name, self._rates(meter, args[1:]))

    @command
    def do_meter_set_rates(self, args: list[str]) -> None:
        ("Configure rates for a meter: meter_set_rates <name> <index> <rate_1>:<burst_1> <rate_2>:<burst_2> ...\n"
         "Rate uses units/microsecond and burst uses units where units is bytes or packets")
        self.at_least(args, 2)
        meter: Array = self.find("meter", args[0])
        index = self.number(args[1], "index")
        rates = self._rates(meter, args[2:])
        if meter.table is not None:
            self.client.bm_mt_set_meter_rates(0, meter.table, index, rates)
        else:
            self.client.bm_meter_set_rates(0, meter.name, index, rates)

    @command
    def do_meter_get_rates(self, args: list[str]) -> None:
        "Retrieve rates for a meter: meter_get_rates <name> <index>"
        self.exactly(args, 2)
        meter: Array = self.find("meter", args[0])
        index = self.number(args[1], "index")
        if meter.table is not None:
            rates = self.client.bm_mt_get_meter_rates(0, meter.table, index)
        else:
            rates = self.client.bm_meter_get_rates(0, meter.name, index)
        if len(rates) != meter.rates:
            print(f"WARNING: expected {meter.rates} rates but only received {len(rates)}")
        for at, rate in enumerate(rates):
            print(f"{at}: info rate = {rate.units_per_micros}, burst size = {rate.burst_size}")

    # ---- registers -------------------------------------------------------------------------------------------

    @command
    def do_register_read(self, args: list[str]) -> None:
        "Read register value: register_read <name> [index]"
        self.at_least(args, 1)
        register = self.find("register", args[0])
        if len(args) == 1:
            print("register index omitted, reading entire array", file=sys.stderr)
            print(f"{args[0]}=", ", ".join(map(str, self.client.bm_register_read_all(0, register.name))))
            return
        self.exactly(args, 2)
        index = self.number(args[1], "index")
        print(f"{args[0]}[{index}]=", self.client.bm_register_read(0, register.name, index))

    @command
    def do_register_write(self, args: list[str]) -> None:
        "Write register value: register_write <name> <index> <value>"
        self.exactly(args, 3)
        register = self.find("register", args[0])
        index = self.number(args[1], "index")
        value = self.number(args[2], "value, must be an integer")
        self.client.bm_register_write(0, register.name, index, value)

    @command
    def do_register_reset(self, args: list[str]) -> None:
        "Reset all the cells in the register array to 0: register_reset <name>"
        self.exactly(args, 1)
        self.client.bm_register_reset(0, self.find("register", args[0]).name)

    # ---- parser value sets -----------------------------------------------------------------------------------

    def _value(self, args: list[str]) -> tuple[str, bytes]:
        self.exactly(args, 2)
        value_set: ValueSetName = self.find("parser value set", args[0])
        try:
            value = int(args[1], 0)
        except ValueError:
            raise CommandError("Invalid input, could not cast to integer, try in hex with 0x prefix") from None
        if value.bit_length() > value_set.bits:
            raise CommandError(f"Input is too large, it should fit within {value_set.bits} bits")
        return value_set.name, to_bytes(value, (value_set.bits + 7) // 8)

    @command
    def do_show_pvs(self, args: list[str]) -> None:
        "List parser value sets defined in the P4 program: show_pvs"
        self.exactly(args, 0)
        for name in sorted(self.names.value_sets):
            print(f"{name:30} [compressed bitwidth:{self.names.value_sets[name].bits}]")

    @command
    def do_pvs_add(self, args: list[str]) -> None:
        """
        Add a value to a parser value set: pvs_add <pvs_name> <value>
        bmv2 will not report an error if the value already exists.
        """
        self.client.bm_parse_vset_add(0, *self._value(args))

    @command
    def do_pvs_remove(self, args: list[str]) -> None:
        """
        Remove a value from a parser value set: pvs_remove <pvs_name> <value>
        bmv2 will not report an error if the value does not exist.
        """
        self.client.bm_parse_vset_remove(0, *self._value(args))

    @command
    def do_pvs_get(self, args: list[str]) -> None:
        """
        Print all values from a parser value set: pvs_get <pvs_name>
        Values are displayed in no particular order, one per line.
        """
        self.exactly(args, 1)
        for value in self.client.bm_parse_vset_get(0, self.find("parser value set", args[0]).name):
            print(value.hex())

    @command
    def do_pvs_clear(self, args: list[str]) -> None:
        """
        Remove all values from a parser value set: pvs_clear <pvs_name>
        """
        self.exactly(args, 1)
        self.client.bm_parse_vset_clear(0, self.find("parser value set", args[0]).name)
