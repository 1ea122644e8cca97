# SPDX-License-Identifier: Apache-2.0
"""The version of the switch, where every folder of it may read it; its pyproject.toml takes it from here too."""

VERSION = "0.2.0"
