# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: the site has the pages of the project softswitch, too, under softswitch/docs/ as here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = "softswitch/docs"


def on_files(files: Files, config: Any) -> Files:
    """Adds the switch's pages to those of docs/."""
    for path in sorted((ROOT / PAGES).iterdir()):
        files.append(File(f"{PAGES}/{path.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrites links from docs/ to the switch's pages, so that they work in the site as in the repository."""
    return markdown.replace(f"](../{PAGES}/", f"]({PAGES}/")
