# SPDX-License-Identifier: Apache-2.0
"""docs/failures.md: every error that a user can meet is there, as the code makes it, with what it means and what to
do."""

from __future__ import annotations

import re

import pytest

from support import needs
from support.handbook import all_scenes, page

pytestmark = pytest.mark.slow


def test_every_exception_has_an_entry_or_becomes_one_that_has() -> None:
    """A new exception without a remedy in its docstring, and one that is gone, are told."""
    there = {one.dotted for one in page.declared()}
    assert len(there) == len(page.declared())
    assert not (page.INTERNAL.keys() | page.UNSTAGED.keys()) - there
    assert {one.dotted for one in page.entries()} == there - page.INTERNAL.keys()
    assert not [one.dotted for one in page.entries() if not one.remedy]
    assert not [one.dotted for one in page.declared() if one.dotted in page.INTERNAL and one.remedy]


@pytest.mark.needs("mininet")
@pytest.mark.timeout(180)
def test_the_page_says_what_the_code_says() -> None:
    """Each error is made to happen, and its message stands on the page but for its numbers."""
    needs.require("mininet")
    all_scenes()
    assert page.staged().keys() == {one.dotted for one in page.entries()} - page.UNSTAGED.keys()
    written, made = (page.comparable(text) for text in (page.PAGE.read_text(), page.text()))
    entry = re.compile(r"^(?=##)", re.M)
    for old, new in zip(entry.split(written), entry.split(made), strict=False):
        assert old == new, "docs/failures.md is old: .venv/bin/python tests/support/handbook"
    assert written == made
