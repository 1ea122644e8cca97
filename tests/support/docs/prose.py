# SPDX-License-Identifier: Apache-2.0
"""Figures of our prose, which `make prose` prints: how long the sentences of each page are, and how docstrings begin.

It is a report, not a check.  Sentences end with a full stop, a question mark or an exclamation mark, or with their
paragraph, list item or quotation.  Headings, tables and blocks of code do not count.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from support.docs.pages import PAGES, ROOT

LONG: Final = 30
"""Words of a sentence above which it is counted as long."""
GOAL: Final = 18
"""Words of a sentence on average that a page for users has at most."""
WEAK: Final = ("Of", "Whether", "What", "Who", "That", "Those")
"""First words of docstrings that have a clause where a noun belongs."""
SHORTENED: Final = re.compile(r"\b(e\.g|i\.e|etc|cf|vs|fig|sec|no)\.", re.I)
END: Final = re.compile(r"(?<=[.?!])[)\"'*_]*\s+")


def sentences(markdown: str) -> list[str]:
    """The sentences of a page, each with its words separated by single spaces; code in the text counts as a word."""
    found: list[str] = []
    table = False
    heading = False
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type in ("table_open", "table_close"):
            table = token.type == "table_open"
        elif token.type in ("heading_open", "heading_close"):
            heading = token.type == "heading_open"
        elif token.type == "inline" and not table and not heading:
            text = SHORTENED.sub(r"\1", "".join(_plain(child) for child in token.children or ()))
            found += [" ".join(sentence.split()) for sentence in END.split(text) if re.search(r"\w", sentence)]
    return found


def _plain(token: Token) -> str:
    """The words of a part of a paragraph, with one word for code."""
    if token.type == "code_inline":
        return "code"
    return " " if token.type.endswith("break") else token.content


def lengths(markdown: str) -> list[int]:
    """Words of each sentence of a page."""
    return [len(re.findall(r"\w[\w'.,/%+-]*", sentence)) for sentence in sentences(markdown)]


def docstrings(source: str) -> Iterator[str]:
    """All docstrings of a module, those that follow a constant or a field too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip()


def main() -> None:
    """Print a line for each page, and the number of docstrings by their first word in each folder."""
    print(f"{'page':40} {'sentences':>9} {'mean':>6} {f'over {LONG}':>8}   (goal for pages for users: {GOAL} words)")
    every: list[int] = []
    for page in PAGES:
        found = lengths(page.read_text())
        every += found
        if found:
            print(f"{page.relative_to(ROOT)!s:40} {len(found):9} {sum(found) / len(found):6.1f} "
                  f"{sum(words > LONG for words in found):8}")
    print(f"{'all':40} {len(every):9} {sum(every) / len(every):6.1f} {sum(words > LONG for words in every):8}\n")
    print(f"{'docstrings that begin with':40} " + " ".join(f"{word:>7}" for word in WEAK) + "      all")
    for folder in sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."):
        modules = [module for module in sorted(folder.rglob("*.py")) if "build" not in module.relative_to(ROOT).parts]
        texts = [text for module in modules for text in docstrings(module.read_text())]
        first = Counter(text.split()[0] for text in texts if text)
        if texts:
            print(f"{folder.name:40} " + " ".join(f"{first[word]:7}" for word in WEAK) + f" {len(texts):8}")


if __name__ == "__main__":
    main()
