# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: the site has the pages of the project softswitch, too, under softswitch/docs/ as here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = "softswitch/docs"


def on_files(files: Files, config: Any) -> Files:
    """Adds the switch's pages to those of docs/."""
    for path in sorted((ROOT / PAGES).iterdir()):
        files.append(File(f"{PAGES}/{path.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Rewrites links from docs/ to the switch's pages, so that they work in the site as in the repository.  Links to
    other files of the repository, which the site does not have, become the names of these files."""
    folder = Path(str(page.file.abs_src_path or ROOT / "docs" / page.file.src_uri)).parent

    def place(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return link[0]
        name = str(target.relative_to(ROOT))
        return link[0] if files.get_file_from_path(name.removeprefix("docs/")) else f"{link[1]} (`{name}`)"

    markdown = markdown.replace(f"](../{PAGES}/", f"]({PAGES}/")
    return re.sub(r"(?<!!)\[([^]]+)\]\(([^)#:]+)(?:#[^)]*)?\)", place, markdown)
