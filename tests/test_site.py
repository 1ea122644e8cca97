# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site (mkdocs.yml): it is built without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("mkdocs")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; strict: a link that leads nowhere, or a page without a place in the menu, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
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


def test_the_reference_has_all_methods_and_options(site: Path) -> None:
    """Pages that are made from the code: the communicator's methods, and the options of nested commands."""
    methods, options = ((site / f"{page}.html").read_text() for page in ("api", "options"))
    headings = set(re.findall(r'<h[23] id="(\w+)"', methods))
    assert {"netfoldallreduce", "iallreduce", "reduce_scatter", "grow"} <= headings
    assert "netfold bench allreduce" in options
    assert "<code>--lane-bits</code>" in options


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
