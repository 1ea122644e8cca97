# SPDX-License-Identifier: Apache-2.0
"""The runtime in C that a compiled program is linked with; no Python."""
