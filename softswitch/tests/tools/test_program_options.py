# SPDX-License-Identifier: Apache-2.0
"""Command lines as Boost's program_options reads them."""

from __future__ import annotations

import pytest

from softswitch.tools.program_options import Option, OptionError, parse

OPTIONS = (
    Option("interface", "i", str, "", many=True), Option("pcap", "", str, "", implicit="."),
    Option("device-id", "", int, ""), Option("log-console", "", bool, ""), Option("log-file", "", str, ""),
    Option("log-level", "L", str, ""),
)


@pytest.mark.parametrize(("words", "values", "others"), [
    ("-i 1@a -i2@b prog.json", {"interface": ["1@a", "2@b"]}, ["prog.json"]),
    ("prog.json --interface=1@a --device-id 3", {"interface": ["1@a"], "device-id": 3}, ["prog.json"]),
    ("--pcap -i 1@a prog.json", {"pcap": ".", "interface": ["1@a"]}, ["prog.json"]),
    ("--pcap pcaps prog.json", {"pcap": "pcaps"}, ["prog.json"]),
    ("--pcap=pcaps prog.json", {"pcap": "pcaps"}, ["prog.json"]),
    ("--log-c --log-l debug -", {"log-console": True, "log-level": "debug"}, ["-"]),
    ("-Linfo", {"log-level": "info"}, []),
])
def test_words_are_options_with_values_or_others(words: str, values: dict[str, object], others: list[str]) -> None:
    """In any order, short, long, cut, with the value in the same word or the next."""
    assert parse(words.split(), OPTIONS) == (values, others)


@pytest.mark.parametrize(("words", "says"), [
    ("--bogus", "unrecognised option '--bogus'"), ("-x", "unrecognised option '-x'"),
    ("--log x", "option '--log' is ambiguous and matches '--log-console' and '--log-file' and '--log-level'"),
    ("--device-id x", r"the argument \('x'\) for option '--device-id' is invalid"),
    ("--device-id", "the required argument for option '--device-id' is missing"),
    ("--device-id 1 --device-id 2", "cannot be specified more than once"), ("--log-console=1", "not take any"),
])
def test_what_boost_refuses_is_refused(words: str, says: str) -> None:
    """In its words."""
    with pytest.raises(OptionError, match=says):
        parse(words.split(), OPTIONS)
