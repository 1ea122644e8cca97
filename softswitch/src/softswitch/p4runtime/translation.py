# SPDX-License-Identifier: Apache-2.0
"""Values of translated types: what controllers say, and the numbers that the data plane has (P4Runtime 1.4, 18.x).

    @p4runtime_translation("example.org/port", 32) type bit<9> port_t;         a number of other width
    @p4runtime_translation("example.org/vrf", string)
    @p4runtime_translation_mappings({ {"", 0}, {"blue", 7} }) type bit<10> vrf_t;      a string

The specification leaves to the switch what stands for what. Here a number of other width is the same number, and must
fit the data plane's width. A string is, in this order: what @p4runtime_translation_mappings says (it may map numbers
too); an IPv4, IPv6 or MAC address where the type has as many bits; the name of an interface of this switch, whose
number it is; a decimal number, which it is; otherwise it gets a number when a controller first writes it: the highest
that is free. All uses of a type, and all clients, share these.
Types of ports are the exception: a port that is neither is refused, as no number that could be made up would be a port.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping

from finsy.proto import p4t

from softswitch.engine.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange, ResourceExhausted
from softswitch.p4runtime import bytestrings

STRING_MAX = 4096
"""Bytes of the longest string."""
STRINGS_MAX = 1 << 20
"""Most strings of one type that controllers have written, however many values it has."""
STRING_BYTES_MAX = 64 << 20
"""Most bytes of all these."""
SHOWN_MAX = 1 << 16
"""Most values of one type that keep the decimal number as which controllers were shown them: packets create them."""

_MAPPINGS = "@p4runtime_translation_mappings("
_PAIR = re.compile(r'\{\s*("(?:[^"\\]|\\.)*"|\w+)\s*,\s*(\w+)\s*\}')

Interfaces = Callable[[], Mapping[str, int]]
"""Returns port numbers by the names of the ports' interfaces."""


class Codec:
    """Values of `bits` bits that controllers and the data plane share."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.sdn_bits = bits
        """Bits of the controllers' values; 0 for strings."""

    def decode(self, data: bytes, what: str, *, new: bool = True) -> int:
        """The data plane's value. `new` tells whether a string may get a value now; NotFound is raised where it has
        none and may not. Raises InvalidArgument, OutOfRange and ResourceExhausted as well."""
        return bytestrings.decode(data, self.bits, what)

    def encode(self, value: int) -> bytes:
        """The controller's form of the data plane's value."""
        return bytestrings.encode(value)


class Numbers(Codec):
    """Numbers of another width, or of pairs that the program maps."""

    def __init__(self, bits: int, sdn_bits: int, pairs: Mapping[int, int]) -> None:
        super().__init__(bits)
        self.sdn_bits = sdn_bits
        self.pairs = dict(pairs)
        self._back = {value: number for number, value in pairs.items()}

    def decode(self, data: bytes, what: str, *, new: bool = True) -> int:
        number = bytestrings.decode(data, self.sdn_bits, what)
        value = self.pairs.get(number, number)
        if value >> self.bits:
            raise OutOfRange(f"{what}: {number:#x} does not fit into the {self.bits} bits that the program has for it")
        if number not in self.pairs and number in self._back:
            raise InvalidArgument(f"{what}: {number:#x} is the program's value for {self._back[number]:#x}")
        return value

    def encode(self, value: int) -> bytes:
        return bytestrings.encode(self._back.get(value, value))


class Strings(Codec):
    """Strings, which get their numbers from the program, from the switch's ports, from themselves, or on first use."""

    def __init__(self, name: str, bits: int, pairs: Mapping[str, int], interfaces: Interfaces, *, ports: bool) -> None:
        super().__init__(bits)
        self.sdn_bits = 0
        self._name, self._ports, self._interfaces = name, ports, interfaces
        self._lock = threading.Lock()
        self._values = dict(pairs)
        self._strings = {value: string for string, value in pairs.items()}
        self._free = (1 << bits) - 1
        """The highest number that may be free."""
        self._bytes = 0
        self._shown: dict[str, int] = {}
        """Strings that no controller has written: they are evicted when all values are in use."""

    def decode(self, data: bytes, what: str, *, new: bool = True) -> int:
        if len(data) > STRING_MAX:
            raise InvalidArgument(f"{what}: a string of {len(data)} bytes; at most {STRING_MAX} are supported")
        try:
            string = data.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{what}: expected a string in UTF-8, got {data[:16].hex()}") from None
        with self._lock:
            value = self._values.get(string)
            if value is None:
                value = self._make(string, what, new)
            elif new and self._shown.pop(string, None) is not None:
                self._bytes += len(data)
            return value

    def _make(self, string: str, what: str, new: bool) -> int:
        address = _address(string, self.bits)
        if address is not None:
            other = self._strings.get(address)
            if other is not None and other in self._shown:
                if new:  # the number as which a packet had it stays a spelling of the address
                    del self._shown[other]
                    self._strings[address] = string
            elif other is not None and _address(other, self.bits) is None:
                raise ResourceExhausted(f"{what}: type {self._name} has the number of address {string} for {other!r}")
            self._remember(string, address, new)
            return address
        value = self._interfaces().get(string)
        if value is None and re.fullmatch("0|[1-9][0-9]{0,19}", string):
            value = int(string)
        fits = value is not None and not value >> self.bits
        if self._ports:
            if value is None or not fits:
                raise InvalidArgument(f"{what}: {string!r} is no port: expected the name of an interface of this "
                                      f"switch, or a number of {self.bits} bits")
            self._remember(string, value, new)
            return value
        if not new:
            raise NotFound(f"{what}: nothing uses {string!r}")
        if not self._has_room(string):
            raise ResourceExhausted(f"{what}: {STRINGS_MAX} strings of type {self._name}, or {STRING_BYTES_MAX >> 20} "
                                    "MiB of them, are in use")
        if value is not None and self._strings.get(value) in self._shown:  # an interface's number that packets had
            del self._shown[self._strings.pop(value)]
        if value is None or not fits or value in self._strings:
            while self._free in self._strings:
                self._free -= 1
            value = self._free if self._free >= 0 else self._forget_shown()
            if value is None:
                raise ResourceExhausted(f"{what}: all values of type {self._name}, {self.bits} bits, are in use")
        self._remember(string, value, new)
        return value

    def _forget_shown(self) -> int | None:
        """A value that is free again, of those that only packets had; None where there is none."""
        if not self._shown:
            return None
        string, value = self._shown.popitem()
        del self._values[string], self._strings[value]
        return value

    def _has_room(self, string: str) -> bool:
        return (len(self._values) - len(self._shown) < STRINGS_MAX
                and self._bytes + len(string.encode()) <= STRING_BYTES_MAX)

    def _remember(self, string: str, value: int, new: bool = True) -> None:
        """Keeps what is written (`new`); what is only asked for, and says itself what it is, takes no place."""
        if new and self._has_room(string):  # other spellings of ports and addresses go without once this is full
            self._values[string] = value
            self._strings.setdefault(value, string)
            self._bytes += len(string.encode())

    def encode(self, value: int) -> bytes:
        with self._lock:
            string = self._strings.get(value)
            if string is None:
                string = str(value)
                while self._values.get(string, value) != value:  # taken by another value
                    string += "'"
                if len(self._shown) < SHOWN_MAX:
                    self._values[string] = self._shown[string] = value
                    self._strings[value] = string
            return string.encode()

    def adopt(self, old: Strings) -> None:
        """Takes over the strings of the program before this one. Raises FailedPrecondition where this is not possible.
        """
        with self._lock, old._lock:
            for string, value in old._values.items():
                if value >> self.bits or self._values.get(string, value) != value:
                    raise FailedPrecondition(f"type {self._name}: {string!r} was {value}, which the new program "
                                             "has no room for, or maps otherwise")
                if string in old._shown:
                    self._values[string] = self._shown[string] = value
                    self._strings[value] = string
                else:
                    self._remember(string, value)


class Types:
    """The translated types of a program, by their names in P4Info."""

    def __init__(self, info: p4t.P4TypeInfo, interfaces: Interfaces, port_type: str) -> None:
        self._info, self._interfaces = info, interfaces
        self._port_type = port_type
        self._made: dict[str, Codec] = {}

    def codec(self, name: str, bits: int) -> Codec:
        """The codec of values of the type `name` ("" for none), which have `bits` bits in the data plane."""
        if name not in self._info.new_types or not self._info.new_types[name].HasField("translated_type"):
            return Codec(bits)
        if name not in self._made:
            self._made[name] = self._make(name, bits)
        return self._made[name]

    def _make(self, name: str, bits: int) -> Codec:
        spec = self._info.new_types[name]
        pairs = [pair for text in spec.annotations if text.startswith(_MAPPINGS) for pair in _PAIR.findall(text)]
        translated = spec.translated_type
        values = {key: _number(value) for key, value in pairs}
        wrong = next((key for key, value in values.items() if value >> bits), None)
        if wrong is not None or len(set(values.values())) < len(pairs):
            got = "" if wrong is None else f", got {values[wrong]} for {wrong}"
            raise InvalidArgument(f"type {name}: @p4runtime_translation_mappings: expected different numbers of {bits} "
                                  f"bits, one for each key{got}")
        if translated.HasField("sdn_string"):
            strings = {key[1:-1]: value for key, value in values.items()}
            ports = name == self._port_type or (bits == 9 and "port" in f"{name} {translated.uri}".lower())
            return Strings(name, bits, strings, self._interfaces, ports=ports)
        return Numbers(bits, translated.sdn_bitwidth, {_number(key): value for key, value in values.items()})

    @property
    def port(self) -> Codec:
        """The codec of port numbers where no field or parameter says so: in the replicas of groups and sessions."""
        return self.codec(self._port_type, 9)

    def adopt(self, old: Types) -> None:
        """Takes over what strings mean from the program before. Raises FailedPrecondition."""
        for name, codec in old._made.items():
            mine = self.codec(name, codec.bits)
            if isinstance(codec, Strings) and isinstance(mine, Strings):
                mine.adopt(codec)


def _address(string: str, bits: int) -> int | None:
    """The number of an address of so many bits, or None where the string is none."""
    import ipaddress  # here: a switch whose program has no such strings starts without it

    try:
        if bits == 32:
            return int(ipaddress.IPv4Address(string))
        if bits == 128:
            return int(ipaddress.IPv6Address(string))
    except ValueError:
        return None
    if bits == 48 and re.fullmatch("[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", string):
        return int(string.replace(":", ""), 16)
    return None


def _number(text: str) -> int:
    digits = text.split("w", 1)[1] if re.match(r"[0-9]+w", text) else text
    try:
        return int(digits.strip('"'), 0)
    except ValueError:
        raise InvalidArgument(f"@p4runtime_translation_mappings: expected a number, got {text}") from None
