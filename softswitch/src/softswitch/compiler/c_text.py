# SPDX-License-Identifier: Apache-2.0
"""Pieces of C source: every identifier, comment and string of generated C that stems from a program is made here.

A program may come from anyone who reaches P4Runtime, and its C runs as the switch. So nothing of it reaches C but

    c_name      identifiers of [A-Za-z0-9_] behind a prefix that no header and no macro of C has
    c_comment   comments of [A-Za-z0-9_.:] and blanks
    c_string    strings of [A-Za-z0-9_.] and blanks, in which every other byte is an octal number

and integers. `verify` holds the finished file to that, whatever wrote it.
"""

from __future__ import annotations

import re

from softswitch.compiler import ir
from softswitch.compiler.types import Bits

PREFIX = "u_"
"""Prefix of every identifier that was made from a P4 name."""

INCLUDES = '#include "softswitch.h"\n#include "wide.h"\n#include "wire.h"\n#include <stdio.h>\n'
"""The only directives of a generated file."""

MORE_STANDARD = "more_standard_metadata"
"""The name of the variable for a program's further fields of standard metadata."""

_PACKET_FIELDS = frozenset(re.findall(r"\w+", """
    ingress_port egress_spec egress_port instance_type packet_length enq_timestamp enq_qdepth deq_timedelta deq_qdepth
    ingress_global_timestamp egress_global_timestamp mcast_grp egress_rid checksum_error priority parser_error
"""))
_WORDS = _PACKET_FIELDS | frozenset(re.findall(r"\w+", """
    bool break case char const default else false for goto if int int32_t int64_t long memcmp memcpy memmove memset NULL
    offsetof ptrdiff_t restrict return sizeof snprintf static struct switch true typedef uint8_t uint16_t uint32_t
    uint64_t unsigned void

    _nothing _valid bits c compute_checksum counters data deparse digests e egress end errors frame from from_ i ingress
    init keep_fields len limit list meters next o out p packet params parse parsed profiles registers registers_info
    reset_metadata s state state_ steps sw tables to to_ value_sets verify_checksum

    action clone_asked clone_list clone_session hit length_change payload payload_len recirculate_asked recirculate_list
    resubmit_asked resubmit_list truncate_to

    bytes frame head parts ref ref_len stable tail

    abi actions const_default const_entries default_action default_params direct_counter direct_meter has_const_entries
    id idle_timeout keys n_actions n_const_entries n_counters n_digests n_errors n_keys n_meters n_profiles n_registers
    n_tables n_value_sets name packet_in_bits packet_out_bits profile size source state_size
"""))
"""Words of C; then variables, fields and functions of the generated file; of ss_packet and ss_entry; of
ss_parts and ss_run; of ss_program."""

_P4_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKENS = re.compile(
    r"""(?P<space>[ \n]+)
    |(?P<comment>/\*[A-Za-z0-9_.: ]*\*/)
    |(?P<string>"(?:[A-Za-z0-9_. %]|\\[0-7]{3})*")
    |(?P<number>(?:0x[0-9a-f]+|[0-9]+)(?:ull|u)?\b)
    |(?P<own>(?:u_|ss_|SS_)[A-Za-z0-9_]+|(?:digest|value_set|table)_[0-9]+_[a-z0-9_]+|[a-z]{1,5}[0-9]+|wide_[0-9]+)\b
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<op>/(?![*/])|[-+*%&|^~!<>=?:;,.(){}\[\]])""",
    re.VERBOSE,
)


def c_name(name: str) -> str:
    """The C identifier for a P4 name. Raises ValueError for what is no P4 name."""
    if not _P4_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a name in generated C")
    return PREFIX + name


def c_packet_field(name: str) -> str:
    """The place of a field of standard metadata: a member of ss_packet, or of the program's own further ones."""
    return f"p->{name}" if name in _PACKET_FIELDS else f"s->{c_name(MORE_STANDARD)}.{c_name(name)}"


def c_comment(text: object) -> str:
    """A C comment; what is neither a letter, digit, dot nor colon becomes a blank."""
    return f"/* {re.sub(r'[^A-Za-z0-9_.:]+', ' ', str(text)).strip()} */"


def c_string(text: str) -> str:
    """A C string literal with the bytes of the text in UTF-8."""
    return '"' + re.sub(rb"[^A-Za-z0-9_. ]", lambda m: b"\\%03o" % m[0][0], text.encode()).decode() + '"'


def verify(source: str) -> str:
    """Returns a generated C file whose every token is one that the compiler writes. Raises ValueError elsewhere."""
    head, includes, rest = source.partition(INCLUDES)
    for part in (head, rest):
        at = 0
        for match in _TOKENS.finditer(part):
            if match.start() != at or (match.lastgroup == "word" and match[0] not in _WORDS):
                break
            at = match.end()
        if at != len(part) or not includes:
            raise ValueError(f"generated C has what the compiler never writes: {part[at : at + 60]!r}")
    return source


def limbs(width: int) -> int:
    return (width + 63) // 64


def is_wide(t: ir.Type) -> bool:
    return isinstance(t, Bits) and t.width > 128


def width(t: ir.Type) -> int:
    return t.width if isinstance(t, Bits) else 1


def u64(value: int) -> str:
    return f"{value}ull" if value < 1 << 16 else f"{value:#x}ull"
