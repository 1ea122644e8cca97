# SPDX-License-Identifier: Apache-2.0
"""The documentation's command lines work: each is run, here or beside a fabric (tests/e2e/test_documented_commands.py),
or stands in a list with the reason why not (support/docs/commands.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from netfold.host.tracing import flight, timeline
from netfold.testing import loopback_job, on_every_rank
from netfold.wire.training_trace import FORMAT, RankTrace, TracedCall, TracedGroup, TracedStep
from support import SWITCH
from support.docs.commands import FABRIC, NOT_RUN, OFFLINE
from support.docs.pages import PAGES, commands, invoked, resolve
from support.hosts.host import impatient

ENTRIES = {"table_entries": [{"table": "I.routes", "match": {"hdr.ipv4.dst": ["10.0.2.0", 24]},
                              "action_name": "I.forward", "action_params": {"to": "02:00:00:00:00:99", "port": 3}}]}


def test_every_command_line_is_run_or_listed() -> None:
    """A new one that is neither, and one that no page shows any more, are told; a name alone need not be there."""
    shown = {" ".join(words): words for page in PAGES for words in commands(page)}
    listed = [*OFFLINE, *FABRIC, *(line for lines in NOT_RUN.values() for line in lines)]
    assert len(listed) == len(set(listed))
    assert not set(listed) - shown.keys()
    assert not {line for line, words in shown.items() if line not in listed and resolve(words)[2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that command lines name."""
    made = tmp_path_factory.mktemp("commands")
    examples = SWITCH / "examples"
    shutil.copytree(examples, made / "examples")
    shutil.copy(examples / "firewall.p4", made / "prog.p4")
    shutil.copy(examples / "firewall.stf", made / "test.stf")
    shutil.copy(SWITCH / "tests/explain/l3.p4", made / "l3.p4")
    (made / "s1-runtime.json").write_text(json.dumps(ENTRIES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert invoked("netfold fabric leafspine,2,2,8 -o lab.toml")[0] == 0
    (made / "hosts.txt").write_text("m1 address=10.9.0.1\nm2 address=10.9.0.2\n")
    call = TracedCall(0.1, 0.1, 1, "all_reduce", 0, 1 << 20, "float32", False)
    (made / "two.goal").write_text("num_ranks 2\nrank 0 {\na: send 9000b to 1\n}\nrank 1 {\nb: recv 9000b from 0\n}\n")
    (made / "steps.json").write_bytes(msgspec.json.encode(RankTrace(
        FORMAT, 0, 4, "gloo", [TracedGroup("0", (0, 1, 2, 3))], [TracedStep(0, 0), call, TracedStep(0.2, 0.2)])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(flight.FOLDER_VARIABLE, str(made / "flights"))
        patch.setenv(timeline.VARIABLE, str(made / "trace.json"))
        with loopback_job(2, rail="tcp") as comms:
            on_every_rank(comms, lambda comm: comm.allreduce(np.ones(10, np.float32)))
            impatient(comms, 0.5)
            comms[1].close()
            on_every_rank(comms, lambda comm: comm.barrier())  # fails, and is written down
    return made


@pytest.mark.timeout(120)
@pytest.mark.parametrize("line", OFFLINE)
def test_a_command_line_does_what_its_page_says(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with its status, and says what it should."""
    monkeypatch.chdir(folder)
    run = OFFLINE[line]
    status, said = invoked(run.instead or line)
    assert status == run.status, said
    assert run.says in said
