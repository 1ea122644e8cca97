# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site (mkdocs.yml): it is built without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import netfold.mpi
import netfold.testing
from support import needs

pytestmark = [pytest.mark.needs("mkdocs"), pytest.mark.slow]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; strict: a link that leads nowhere, or a page without a place in the menu, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
                           env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site_and_can_be_searched(site: Path) -> None:
    """Each page of docs/ and of the switch's has become one of the site, whose title the search index holds."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    pages += [f"softswitch/docs/{page.name}" for page in (ROOT / "softswitch" / "docs").glob("*.md")]
    for page in pages:
        name = page.removesuffix(".md") + ".html"
        assert (site / name).is_file()
        assert name in found


def test_the_reference_has_all_public_names_and_options(site: Path) -> None:
    """Pages that are made from the code: public names with their parameters, errors, and options of nested commands."""
    names, options = ((site / f"{page}.html").read_text() for page in ("api", "options"))
    headings = set(re.findall(r'<h[34] id="([^"]+)"', names))
    for module in (netfold, netfold.mpi, netfold.testing, *torch()):
        assert {f"{module.__name__}.{name}".replace(".", "").lower() for name in module.__all__} <= headings
    assert {"iallreduce", "reduce_scatter", "grow"} <= headings
    assert {"peerlost", "rankmismatch", "treeslost"} <= headings
    assert "<td><code>join_timeout</code></td>" in names  # a parameter of Communicator.join
    assert "netfold bench allreduce" in options
    assert "<code>--lane-bits</code>" in options


def torch() -> list[ModuleType]:
    """The package for PyTorch, if that is installed."""
    return [] if needs.missing("torch") else [importlib.import_module("netfold.torch")]


def test_links_between_the_projects_pages_lead_to_pages_of_the_site(site: Path) -> None:
    """As they do in the repository, where the pages lie in other folders."""
    assert 'href="softswitch/docs/tools.html' in (site / "security.html").read_text()
    assert not re.findall(r'href="[^"]*softswitch/docs/\w+\.md', "".join(p.read_text() for p in site.rglob("*.html")))


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """No page refers to a script, a style sheet, an image or a font of another server, so that it works without one."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"' >]+", text)
        loaded += re.findall(r"<link\b[^>]*rel=[\"']?stylesheet[^>]*href=[\"']?(?:https?:)?//[^\"' >]+", text)
        assert not loaded, page.name
