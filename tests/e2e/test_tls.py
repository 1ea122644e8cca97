# SPDX-License-Identifier: Apache-2.0
"""A whole fabric that speaks mutual TLS everywhere: controller and switches of both engines, ranks and controller."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from netfold.fabric.graph import Engine
from netfold.rpc.certificates import Certificates
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program
from switch_support.certificates import Authority

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network
from netfold.topo.network.switches import SwitchFailed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_ranks_fold_over_switches_that_ask_for_certificates(engine: Engine, tmp_path: Path) -> None:
    """The controller shows its certificate to all switches, which listen at TCP ports of loopback; sums are exact."""
    authority = Authority(tmp_path)
    (switch, switch_key), (ours, our_key) = authority.issue("switch"), authority.issue("controller")
    tls = Certificates("switches", str(authority.certificate), str(switch), str(switch_key))
    made = leafspine(2, 1, 2, engine=engine, rate="20mbit" if engine == "bmv2" else "1gbit")
    fabric = msgspec.structs.replace(
        made, jobs=f"unix:{sandbox.rundir()}/controller.sock", p4runtime_ca=str(authority.certificate),
        p4runtime_certificate=str(ours), p4runtime_key=str(our_key),
    )
    with Network(fabric, logs=tmp_path / "logs", tls=tls) as network:
        output = network.launch([*program("rank_sums.py"), "7"], job="sums").wait(within=150)
    results = [json.loads(lines[-1]) for lines in output]
    assert {result["rail"] for result in results} == {"innet"}
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=100)
def test_no_engine_starts_where_others_reach_it_without_tls(engine: Engine, tmp_path: Path) -> None:
    """BMv2 would listen there without a word; topo/ does not start it."""
    made = leafspine(1, 0, 1)
    (leaf,) = made.switches
    fabric = msgspec.structs.replace(made, engine=engine, switches=(
        msgspec.structs.replace(leaf, grpc="0.0.0.0:50051"),))
    with (pytest.raises(SwitchFailed, match=r"other machines may reach 0\.0\.0\.0:50051"),
          Network(fabric, logs=tmp_path / "logs", controller=False)):
        pass
