# SPDX-License-Identifier: Apache-2.0
"""What docs/host.md shows of `netfold.testing` runs as it stands there."""

from __future__ import annotations

import re

import pytest

from netfold import testing
from support import ROOT

PAGE = (ROOT / "docs" / "host.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.partition("## Testing")[2].partition("\n## ")[0], re.M | re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_runs(example: str) -> None:
    """The example runs to its end, and what it asserts holds."""
    exec(compile(example, "docs/host.md", "exec"), {})


def test_there_is_an_example_of_each_kind() -> None:
    """The page has one example of ranks on loopback, and one of ranks in memory."""
    assert len(EXAMPLES) == 2
    assert "loopback_job" in EXAMPLES[0]
    assert "MemoryFabric" in EXAMPLES[1]


def test_what_the_package_lists_is_there() -> None:
    """Every name of ``__all__``, each with a docstring."""
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
