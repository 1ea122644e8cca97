# SPDX-License-Identifier: Apache-2.0
"""The demo's parts that need no fabric: the model, the reports, the picture."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from netfold.controller.web import picture
from netfold.demo import demo, measure, report, train
from netfold.fabric.generate import leafspine, threetier
from netfold.wire.operator import LinkStatus, Traffic
from support import needs
from support.demo import a_report

SPEC = train.TrainingSpec(data="", steps=4, hidden=(16,), batch=64)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits of scikit-learn, as ranks load them."""
    pytest.importorskip("sklearn", reason=needs.reason("scikit-learn"))
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    train.save_digits(path)
    return path


# ---- the model -------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_the_loss() -> None:
    """Central differences in random directions agree with the gradient, for two hidden layers."""
    rng = np.random.default_rng(5)
    model = train.Mlp((6, 9, 7, 4), seed=3)
    x, y = rng.standard_normal((11, 6), np.float32), rng.integers(0, 4, 11)
    gradient, scrap = np.zeros_like(model.weights), np.zeros_like(model.weights)
    model.gradient(x, y, gradient)
    origin = model.weights.copy()
    for _ in range(8):
        direction = rng.standard_normal(len(origin)).astype(np.float32)
        direction /= np.linalg.norm(direction)
        step = np.float32(1e-3)  # small, or it steps over ReLU's kinks
        model.weights[:] = origin + step * direction
        above = model.gradient(x, y, scrap)
        model.weights[:] = origin - step * direction
        below = model.gradient(x, y, scrap)
        slope = (above - below) / (2 * float(step))
        assert slope == pytest.approx(float(gradient @ direction), rel=0.02, abs=0.02)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_shares_of_a_batch_add_up_to_it(data: Path, world: int) -> None:
    """The ranks' gradients sum to the whole batch's, and no sample is left out or counted twice."""
    digits = train.load_digits(data)
    whole = train.Trainer(SPEC, digits, 0, 1, None)
    whole.step()
    ranks = [train.Trainer(SPEC, digits, rank, world, None) for rank in range(world)]
    for rank in ranks:
        rank.step()
    total = np.sum([rank.buffer for rank in ranks], axis=0, dtype=np.float64)
    assert np.allclose(total, whole.buffer, rtol=1e-4, atol=1e-4)


def test_every_epoch_sees_every_sample_once(data: Path) -> None:
    """Each epoch uses every sample once, also where a batch spans two epochs."""
    digits = train.load_digits(data)
    trainer = train.Trainer(msgspec.structs.replace(SPEC, batch=100), digits, 0, 1, None)
    seen = np.concatenate([trainer.next_batch() for _ in range(len(digits.x))])
    for epoch in range(3):
        part = seen[epoch * len(digits.x) : (epoch + 1) * len(digits.x)]
        assert np.array_equal(np.sort(part), np.arange(len(digits.x)))


def test_training_alone_is_repeatable_and_learns(data: Path) -> None:
    """Two trainings give the same bits, another seed gives others, and most digits are recognised after 30 steps."""
    spec = msgspec.structs.replace(SPEC, data=str(data), steps=30, hidden=(64,), batch=256)
    (first, _, accuracy), (second, _, _) = train.train_single_process(spec), train.train_single_process(spec)
    assert train.digest(first) == train.digest(second)
    assert accuracy > 0.9
    other, _, _ = train.train_single_process(msgspec.structs.replace(spec, seed=1))
    assert train.digest(other) != train.digest(first)


def test_test_samples_are_not_trained_on(data: Path) -> None:
    """Every sample is either in the training set or in the test set."""
    digits = train.load_digits(data)
    with np.load(data) as file:
        everything = file["x"]
    both = np.concatenate([digits.x, digits.test_x])
    assert len(digits.test_x) == round(len(everything) * train.TEST_SHARE)
    assert np.array_equal(np.sort(both, axis=0), np.sort(everything, axis=0))


# ---- reports ---------------------------------------------------------------------------------------------------------


def link(a: str, b: str, there: int, back: int, lost: int) -> LinkStatus:
    return LinkStatus(a, b, "1gbit", 0.0, Traffic(1, there, lost), Traffic(1, back, 0))


def test_traffic_of_a_phase_is_the_difference_of_two_looks() -> None:
    """Bytes and losses of each link are differences; only links of hosts count for the mean."""
    before = report.traffic([link("leaf1:1", "h1:0", 100, 50, 1), link("leaf1:2", "spine1:1", 7, 7, 0)])
    after = report.traffic([link("leaf1:1", "h1:0", 400, 150, 3), link("leaf1:2", "spine1:1", 9007, 7, 0)])
    phase = report.difference(before, after)
    assert phase == {("leaf1:1", "h1:0"): (300, 100, 2), ("leaf1:2", "spine1:1"): (9000, 0, 0)}
    assert report.host_link_bytes(phase, {"h1"}) == 200
    loads = report.link_bytes(phase, phase, 2.5)
    assert (loads[0].there, loads[0].ring_there, loads[0].lost) == (300, 750, 2)
    assert report.link_bytes(phase, None, 2.5)[0].ring_there == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (38_444, "38.4 kB"), (2.5e6, "2.5 MB"), (3e11, "300 GB")],
)
def test_sizes_read_well(count: float, text: str) -> None:
    """Sizes have three digits and a unit."""
    assert report.size(count) == text


def shown(record: report.DemoReport) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 (closed with the process)
    report.show(record, console)
    return console.export_text()


def test_different_weights_are_shouted() -> None:
    """Different weights are printed in capitals, since they are an error."""
    assert "NOT EQUAL" in shown(a_report(final_weights_equal=False))
    assert "equal, bit for bit" in shown(a_report())


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    """The table says so where ring or gloo were not measured, instead of a zero or a blank."""
    record = a_report(
        ring_bytes_per_host_link=None,
        times=[{"way": "in the network", "seconds": 0.01}, {"way": "gloo", "seconds": None, "problem": "no torch"}],
    )
    text = shown(record)
    assert "ring not measured" in text
    assert "gloo - (no torch)" in text
    record.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["ring_bytes_per_host_link"] is None


@pytest.mark.parametrize("there", [True, False])
def test_gloo_is_timed_where_torch_is_and_hosts_are_no_machines(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, and in virtual machines, the report has the reason in place of a time; the others are timed."""
    monkeypatch.setattr(measure, "find_spec", lambda name: object() if there else None)
    assert measure.not_timed("gloo", machines=False) == (None if there else "torch is not installed")
    assert "virtual machines" in (measure.not_timed("gloo", machines=True) or "")
    assert measure.not_timed("innet", machines=False) is None
    assert measure.not_timed("ring", machines=True) is None


# ---- the picture -----------------------------------------------------------------------------------------------------


@given(
    leaves=st.integers(1, 5),
    spines=st.integers(1, 4),
    hosts=st.integers(1, 20),
    seed=st.integers(0, 2**31),
)
def test_pictures_are_svg_with_everything_inside(leaves: int, spines: int, hosts: int, seed: int) -> None:
    """The SVG is well-formed, names every node once, and each line has a width and is inside the canvas."""
    fabric = leafspine(leaves, spines, hosts + leaves)
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 10**9, (len(fabric.links), 2)).tolist()
    loads = [
        report.LinkBytes(link.a, link.b, there, back, 0, 0, 0)
        for link, (there, back) in zip(fabric.links, counts, strict=True)
    ]
    root = ElementTree.fromstring(picture.draw(fabric, loads, 'a <title> & "more"', report.size))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(t for t in texts if t in {n.name for n in fabric.nodes}) == sorted(n.name for n in fabric.nodes)
    lines = list(root.iter("{http://www.w3.org/2000/svg}line"))
    assert len(lines) == 2 * len(fabric.links)
    for line in lines:
        left, right = sorted((float(line.attrib["x1"]), float(line.attrib["x2"])))
        assert left >= 0
        assert right <= width
        assert 0 <= float(line.attrib["y1"]) <= height
        assert 0 < float(line.attrib["stroke-width"]) <= picture.WIDEST


def test_the_busier_direction_is_the_thicker_line() -> None:
    """Each direction has its colour, whichever end of the link is named first, and the busier one is thicker."""
    fabric = leafspine(1, 1, 1)
    loads = [report.LinkBytes("leaf1:1", "h1:0", 10, 1000, 0, 0, 0),
             report.LinkBytes("leaf1:2", "spine1:1", 500, 20, 0, 0, 0)]
    root = ElementTree.fromstring(picture.draw(fabric, loads, "", report.size))
    widths = [
        (line.attrib["stroke"], float(line.attrib["stroke-width"]))
        for line in root.iter("{http://www.w3.org/2000/svg}line")
    ]
    assert widths[0] == (picture.UP, picture.WIDEST)  # h1 to leaf1
    assert widths[1][0] == picture.DOWN
    assert widths[1][1] < widths[0][1]
    assert widths[2] == (picture.UP, picture.WIDEST / 2)  # leaf1 to spine1


def test_every_tier_has_a_row_and_what_is_down_or_drained_its_mark() -> None:
    """Three tiers are above each other; a marked switch has a frame, and a marked link a dashed line."""
    fabric = threetier(2, 1, 2, 2, 4)
    loads = [report.LinkBytes(link.a, link.b, 1, 1, 0, 0, 0) for link in fabric.links]
    marked = picture.draw(fabric, loads, "", report.size, down=["spine1", fabric.links[0].a], drained=["spine2"])
    assert (marked.count(picture.GONE), marked.count(picture.DRAINED)) == (2, 1)
    root = ElementTree.fromstring(marked)
    rows = {text.text: float(text.attrib["y"]) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert rows["spine1"] < rows["agg1"] < rows["leaf1"] < rows["h1"]


# ---- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "remedy"), [("mininet", "sudo apt install mininet"), ("sklearn", r"pip install scikit-learn")]
)
def test_what_is_not_installed_is_named_with_its_remedy(
    package: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing package is named in one line, before anything starts."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == package else object())
    monkeypatch.setattr(demo.sandbox, "enter", lambda: pytest.fail("went on without it"))
    assert demo.demo() == 1
    assert re.search(rf"demo needs {package}, which is not installed: {remedy}", capsys.readouterr().err)


def test_results_are_in_the_order_of_ranks_whoever_ends_first() -> None:
    """Results beside a host, such as the counts of its NIC, are those of its own rank."""
    ended = [2, 0, 1]
    lines = [(rank, msgspec.json.encode(train.TrainingResult(
        rank, "", 0.0, 0.0, 0.0, 0.0, 4, "innet", "", 10 + rank, 0, {})).decode()) for rank in ended]
    network: Any = None
    found = measure.train_ranks(network, SPEC, Console(quiet=True), iter(lines), len(ended))
    assert [(result.rank, result.packets_sent) for result in found] == [(0, 10), (1, 11), (2, 12)]
