# SPDX-License-Identifier: Apache-2.0
"""The tests of the switch run from this folder, where NetFold need not be installed, and with NetFold's from the one
above."""

import pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """The options, fixtures and hooks of every suite, once."""
    pluginmanager.import_plugin("switch_support.suite")
