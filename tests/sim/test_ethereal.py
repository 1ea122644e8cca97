# SPDX-License-Identifier: Apache-2.0
"""`netfold sim ethereal`: what it writes, and that its verdicts follow from the rows."""

from __future__ import annotations

import csv
import json
import socket
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import inf
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.fabric.file import save
from netfold.fabric.generate import leafspine
from netfold.sim.engines.topology import leaf_spine
from netfold.sim.ethereal import comparison as ethereal
from netfold.sim.ethereal.claims import ComparisonRow, claims, relative
from netfold.sim.ethereal.comparison import Comparison, run
from netfold.sim.ethereal.points import BROKEN, FABRICS, Point, broken, simulate_point
from netfold.sim.ethereal.results import ROWS
from netfold.sim.sweeps.sweep import EngineError, engine, sweep
from support import needs

pytestmark = pytest.mark.slow

SMALL = {"collectives": ["halving-doubling"], "models": [], "sizes": [1, 2], "schemes": ["netfold", "spray", "ecmp"]}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FABRICS, "leaf-spine", lambda: leaf_spine(hosts=16, leaves=4, spines=4))


@pytest.mark.needs("matplotlib")
@pytest.mark.usefixtures("small")
def test_the_command_writes_results_and_figures_and_says_its_seed(tmp_path: Path) -> None:
    """Every point has a row in the JSON, every scheme is in the figure, and the last line has the seed."""
    said: list[str] = []
    found = run(Comparison(seeds=[7], **SMALL), out=tmp_path, jobs=1, echo=said.append)

    document = json.loads((tmp_path / "results.json").read_text())
    assert len(document["rows"]) == 2 * 3 * 3
    assert {row["state"] for row in document["rows"]} == {"healthy", "link breaks", "link is out"}
    assert [claim["says"] for claim in document["claims"]] == [claim.says for claim in found]
    assert document["seeds"] == [7]
    stuck = [row for row in document["rows"] if row["scheme"] == "ecmp" and row["state"] == "link breaks"]
    assert all((row["time"] is None) == (row["unfinished"] > 0) for row in document["rows"])
    assert all(row["time"] is None for row in stuck)
    drawing = ET.parse(tmp_path / "leaf-spine-healthy.svg")
    texts = {element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"NetFold", "random spraying", "ECMP, hashed", "halving-doubling"} <= texts
    assert "seeds 7" in said[-1]
    with (tmp_path / "leaf-spine.csv").open() as table:
        lines = list(csv.DictReader(table))
    assert [line["scheme"] for line in lines] == [row["scheme"] for row in document["rows"]]
    assert [float(line["time"] or "inf") for line in lines] == [row["time"] or inf for row in document["rows"]]
    with (tmp_path / "claims.csv").open() as table:
        assert [line["claim"] for line in csv.DictReader(table)] == [claim.says for claim in found]
    sentences = ET.parse(tmp_path / "leaf-spine-claims.svg")
    texts = {element.text for element in sentences.iter("{http://www.w3.org/2000/svg}text")}
    assert "time / random spraying's" in texts


@pytest.mark.usefixtures("small", "undrawn")
def test_without_matplotlib_the_data_are_written_and_the_extra_is_named(tmp_path: Path) -> None:
    """A machine without the extra loses the figures alone, and hears how to get them."""
    said: list[str] = []
    run(Comparison(**{**SMALL, "sizes": [1]}), out=tmp_path, jobs=1, echo=said.append)
    assert "pip install matplotlib" in said[-2]
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 3 * 3
    assert not list(tmp_path.glob("*.svg"))


@pytest.mark.usefixtures("small", "undrawn")
def test_equal_seeds_give_equal_rows(tmp_path: Path) -> None:
    """Two runs with the same seed give the same rows."""
    rows = []
    for name in "ab":
        run(Comparison(**SMALL), out=tmp_path / name, jobs=1, echo=lambda _: None)
        rows.append(json.loads((tmp_path / name / "results.json").read_text())["rows"])
    assert rows[0] == rows[1]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    """A misspelt name is refused before anything is simulated, and the message has the known names."""
    with pytest.raises(ValueError, match="no scheme is called ecpm; there are ethereal, netfold"):
        Comparison(schemes=["ecpm"])
    with pytest.raises(ValueError, match="a number of links of 0: expected 1 or more"):
        Comparison(links=[0])
    with pytest.raises(ValueError, match="257 links out: the fabric has 256"):
        Comparison(links=[1, 257])
    with pytest.raises(ValueError, match="nothing to simulate"):
        Comparison(collectives=[], models=[])


ROW = ComparisonRow("leaf-spine", "ring", 1 << 20, "spray", "healthy", 1, 1.0, 0, 8, 1.0, 0, 0)


def verdict(rows: list[ComparisonRow], words: str) -> bool:
    (claim,) = [claim for claim in claims(rows) if words in claim.says]
    return claim.holds


def test_verdicts_follow_the_numbers() -> None:
    """The same claim holds with numbers that bear it out, and does not with numbers that do not."""
    mine = replace(ROW, scheme="netfold")
    for time, wins, near in ((0.65, True, True), (0.75, False, True), (1.04, False, True), (1.2, False, False)):
        rows = [ROW, replace(mine, time=time)]
        assert verdict(rows, "30 % earlier than spray") is wins
        assert verdict(rows, "nearly as good as random packet spraying") is near
        assert verdict(rows, "do not care about the balancer") is (0.9 < time < 1.1)
    assert verdict([mine], "64 queue pairs")
    assert not verdict([replace(mine, queue_pairs=65)], "64 queue pairs")
    assert not verdict([replace(mine, uplink=1.1)], "loads uplinks")
    hashed = replace(ROW, scheme="ecmp", state="link breaks", time=inf)
    assert verdict([hashed], "never finish")
    assert not verdict([hashed, replace(hashed, time=0.01, seed=2)], "never finish")


def test_a_claim_speaks_only_of_states_that_were_compared() -> None:
    """Rows of one state give a claim about that state alone, with the workload and the size of its best case."""
    broke = replace(ROW, state="link breaks", workload="halving-doubling", size=4 << 20)
    rows = [broke, replace(broke, scheme="netfold", time=0.5), replace(ROW, scheme="netfold")]  # no spray when healthy
    said = [claim for claim in claims([rows[0], rows[1], rows[2]]) if "earlier than" in claim.says]
    assert [(claim.says, claim.holds) for claim in said] == [
        ("netfold finishes up to 30 % earlier than spray, while a link breaks that routing knows not of", True)]
    assert said[0].found == ("best 50 % earlier (leaf-spine, halving-doubling, 4 MB, link breaks); worst 50 % earlier "
                             "(leaf-spine, halving-doubling, 4 MB, link breaks); median 50 % earlier of 1")
    never = [replace(broke, time=inf), replace(broke, scheme="netfold", time=0.5)]
    (alone,) = [claim for claim in claims(never) if "earlier than" in claim.says]
    assert not alone.holds
    assert alone.found == "spray never finished in 1 of 1 runs, which are left out"


def test_of_several_seeds_the_median_decides() -> None:
    """One lucky seed bears no claim out, and what was found has the range of all seeds."""
    rows = [replace(ROW, seed=seed, scheme=scheme, time=took) for seed, mine in enumerate((0.6, 0.8, 0.9), 1)
            for scheme, took in (("spray", 1.0), ("ethereal", mine))]
    (claim,) = [c for c in claims(rows) if "earlier than" in c.says]
    assert not claim.holds
    assert claim.found.startswith("best 20 % earlier, by seed 40 % earlier to 10 % earlier (leaf-spine, ring, 1 MB, ")
    assert "median 20 % earlier of 1" in claim.found
    lucky = [replace(row, time=1.0 if row.scheme == "spray" else 0.7) if row.seed == 2 else row for row in rows]
    assert verdict(lucky, "earlier than")


def test_each_kind_of_spraying_has_its_own_verdict() -> None:
    """What is earlier than random spraying need not be earlier than ideal spraying, and each claim names its
    opponent."""
    mine = replace(ROW, scheme="ethereal", time=0.6)
    rows = [mine, ROW, replace(ROW, scheme="spray-rr", time=0.75), replace(ROW, scheme="spray-ideal", time=0.55)]
    assert [claim.holds for claim in claims(rows) if "30 % earlier" in claim.says] == [True, False, False]
    near = {claim.says: claim.holds for claim in claims(rows) if "nearly as good" in claim.says}
    assert [(words, holds) for words in ("random", "round-robin", "ideal") for says, holds in near.items()
            if f"as {words} packet" in says] == [("random", True), ("round-robin", True), ("ideal", False)]


def test_equal_times_are_not_called_earlier() -> None:
    """A ratio of 1 is neither earlier nor later."""
    (claim,) = [c for c in claims([ROW, replace(ROW, scheme="netfold")]) if "earlier than" in c.says]
    assert "best as early, within 0.5 %" in claim.found


def test_what_never_finished_is_no_yardstick() -> None:
    """A baseline that hung gives no ratio; a scheme that hung is infinitely slower."""
    hung = replace(ROW, scheme="netfold", time=inf)
    assert relative([ROW, hung], "netfold", "spray") == {ROW.key: inf}
    assert relative([replace(ROW, time=inf), hung], "netfold", "spray") == {}


def _square(x: int) -> int:
    return x * x


def test_sweeps_keep_order_and_follow_the_users_configuration() -> None:
    """Results come in order with any backend of joblib; the default is other processes."""
    joblib = pytest.importorskip("joblib", reason=needs.reason("joblib"))
    assert list(sweep(_square, range(5), jobs=1)) == [0, 1, 4, 9, 16]
    with joblib.parallel_config("threading", n_jobs=2):
        assert list(sweep(lambda x: -x, range(3))) == [0, -1, -2]  # a lambda: threads take it, processes would not


@pytest.mark.parametrize("name", ["threading", "loky"])
def test_sweeps_run_on_the_engine_that_was_asked_for(name: str) -> None:
    """Results come in order on joblib's threads and processes."""
    pytest.importorskip("joblib", reason=needs.reason("joblib"))
    with engine(name):
        assert list(sweep(_square, range(6), jobs=2)) == [0, 1, 4, 9, 16, 25]


@pytest.mark.parametrize("name", ["spark", "dask", "dask="])
def test_engines_that_there_are_not_are_refused(name: str) -> None:
    """An unknown engine is refused, and the message has the known ones."""
    with pytest.raises(ValueError, match="expected loky, threading, dask=HOST:PORT"), engine(name):
        pass


@pytest.mark.parametrize(("name", "package"), [("dask=127.0.0.1:1", "distributed"), ("ray", "ray"), ("loky", "joblib")])
def test_an_engine_that_is_not_installed_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which package to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None if module == package else object())
    with pytest.raises(EngineError, match=f"pip install {package}"), engine(name):
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_ray_cluster_that_is_not_there_is_not_waited_for(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is tried first, since Ray itself would try for minutes."""
    pytest.importorskip("joblib", reason=needs.reason("joblib"))
    monkeypatch.setattr("importlib.util.find_spec", lambda module: object())
    for module in ("ray", "ray.util", "ray.util.joblib"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"{scheme}127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"no Ray cluster answers at {address}"), engine(f"ray={address}"):
            pass
    sys.modules["ray"].init.assert_not_called()


@pytest.mark.usefixtures("small", "undrawn")
def test_several_links_break_the_papers_first(tmp_path: Path) -> None:
    """The given number of different cables break, and each number has its rows; healthy runs are not repeated."""
    topology = FABRICS["leaf-spine"]()
    few, more = (broken(topology, n, seed=1) for n in (2, 5))
    assert few[0] == more[0] == BROKEN
    assert [len(set(few)), len(set(more))] == [2, 5]
    assert len(set(broken(topology, 16, seed=1))) == 16
    with pytest.raises(ValueError, match="17 links out: the fabric has 16"):
        broken(topology, 17, seed=1)
    run(Comparison(**{**SMALL, "links": [1, 3], "sizes": [1]}), out=tmp_path, jobs=1, echo=lambda _: None)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["state"], row["links"]) for row in rows if row["scheme"] == "netfold"] == [
        ("healthy", 1), ("link breaks", 1), ("link breaks", 3), ("link is out", 1), ("link is out", 3)]
    assert all(row["time"] for row in rows if row["scheme"] == "netfold")


@pytest.mark.usefixtures("small", "undrawn")
def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is simulated twice, and the results are those of a run in one go; other settings are not mixed in."""
    whole = tmp_path / "whole"
    run(Comparison(**SMALL), out=whole, jobs=1, echo=lambda line: None)
    parts = tmp_path / "parts"
    parts.mkdir()
    lines = (whole / ROWS).read_text().splitlines(keepends=True)
    (parts / ROWS).write_text("".join(lines[:7]))
    count: list[Point] = []
    real = ethereal.simulate_point

    def counted(point: Point) -> ComparisonRow:
        count.append(point)
        return real(point)

    monkeypatch.setattr(ethereal, "simulate_point", counted)
    run(Comparison(**SMALL), out=parts, jobs=1, resume=True, echo=lambda line: None)
    assert len(count) == len(lines) - 7
    first, second = (json.loads((folder / "results.json").read_text()) for folder in (whole, parts))
    assert first["rows"] == second["rows"]
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: no row of a run like this one"):
        run(Comparison(rto=2e-3, **SMALL), out=parts, jobs=1, resume=True, echo=lambda line: None)


def test_without_joblib_the_sweep_says_that_it_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing degrades silently, and asking for more cores than that is an error."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said: list[str] = []
    assert list(sweep(_square, [2, 3], echo=said.append)) == [4, 9]
    assert "one core" in said[0]
    with pytest.raises(ModuleNotFoundError, match="pip install joblib"):
        list(sweep(_square, [2], jobs=2))


@pytest.mark.usefixtures("undrawn")
def test_the_short_form_has_a_pipeline_and_every_state(tmp_path: Path) -> None:
    """`netfold sim ethereal --short` simulates 64 hosts, a collective and a training step in three dimensions."""
    result = CliRunner().invoke(app, ["sim", "ethereal", "--short", "--out", str(tmp_path), "--jobs", "1", "--schemes",
                                      "netfold,spray", "--collectives", "halving-doubling"])
    assert result.exit_code == 0, result.output
    with (tmp_path / "leaf-spine-64.csv").open() as table:
        rows = {(row["workload"], row["state"], row["scheme"]) for row in csv.DictReader(table)}
    assert len(rows) == 2 * 3 * 2
    assert {work for work, _, _ in rows} == {"halving-doubling", "GPT-117M-3d"}
    for state in ("all links up", "while a link breaks that routing knows not of", "with a link known to be out"):
        assert f"netfold finishes up to 30 % earlier than spray, {state}:" in " ".join(result.output.split())


@pytest.mark.usefixtures("undrawn")
def test_a_fabric_file_is_simulated_as_it_says(tmp_path: Path) -> None:
    """Hosts, uplinks and rates are those of the file; names that are none, and irregular fabrics, are refused."""
    file = tmp_path / "lab.toml"
    save(leafspine(4, 2, 8, rate="100gbit"), file)
    run(Comparison(**{**SMALL, "sizes": [1], "fabrics": [str(file)]}), out=tmp_path, jobs=1, echo=lambda _: None)
    document = json.loads((tmp_path / "results.json").read_text())
    (described,) = document["fabrics"].values()
    assert [described[name] for name in ("hosts", "leaves", "aggs", "host_rate")] == [2, 4, 2, 100e9]
    assert (tmp_path / "lab.csv").exists()
    with pytest.raises(ValueError, match="no fabric is called lab; there are leaf-spine"):
        Comparison(fabrics=["lab"])
    with pytest.raises(ValueError, match=r"missing\.toml"):
        Comparison(fabrics=[str(tmp_path / "missing.toml")])
    save(leafspine(3, 2, 8, rate="100gbit"), file)
    with pytest.raises(ValueError, match="equally many hosts on each leaf"):
        Comparison(fabrics=[str(file)])
    with pytest.raises(ValueError, match="need different names"):
        Comparison(fabrics=["leaf-spine", "leaf-spine"])


@pytest.mark.parametrize("name", ["unequal-spines-64", "unequal-leaves-64"])
def test_uplinks_of_unequal_rates_are_loaded_by_rate(name: str) -> None:
    """Weighted plans load them as their rates say, the paper's equal pieces do not, and end later."""
    rows = {scheme: simulate_point(Point(name, "all-to-all", 1 << 20, scheme, "healthy", 1, 1e-3))
            for scheme in ("netfold", "ethereal")}
    assert rows["netfold"].uplink < 1.3 < 3 < rows["ethereal"].uplink
    assert rows["netfold"].time < 0.6 * rows["ethereal"].time
