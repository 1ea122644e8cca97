# SPDX-License-Identifier: Apache-2.0
"""Compiles C sources on first use and loads the result; the CRC-32 that host, simulator and switch share; and files
that are replaced whole, as the cache of what was compiled needs them."""
