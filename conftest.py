# SPDX-License-Identifier: Apache-2.0
"""Imports the packages whose projects are folders of the same name here, before pytest makes up modules of these names
for the folders (`--import-mode=importlib`)."""

import cbuild  # noqa: F401
import softswitch  # noqa: F401
