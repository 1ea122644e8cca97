# SPDX-License-Identifier: Apache-2.0
"""simple_switch_CLI and the JSON of the program: what is none is refused with a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from softswitch.tools.cli.main import main
from softswitch.tools.cli.program import Names
from switch_support.thrift import served


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"actions": 5}', '{"actions": [{}]}', '{"headers": [1]}',
                                  '{"pipelines": [{"tables": [{"name": "t"}]}]}', "[" * 100_000])
def test_what_is_no_json_of_a_program_is_refused(text: str) -> None:
    """By one kind of error, whatever of it is wrong."""
    with pytest.raises(ValueError, match=r"."):
        Names(text)


@pytest.mark.parametrize(("content", "told"), [(None, "No such file"), (b"[]", "expected BMv2's JSON"),
                                               (b"\xff", "can't decode")])
def test_a_file_that_cannot_be_used_ends_the_command_line(
    content: bytes | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, and the file's name and what is wrong with it."""
    file = tmp_path / "prog.json"
    if content is not None:
        file.write_bytes(content)
    with served() as (_, server):
        assert main(["--thrift-port", str(server.port), "--json", str(file)]) == 1
    said = capsys.readouterr().out
    assert f"cannot be read from {file}: " in said
    assert told in said
