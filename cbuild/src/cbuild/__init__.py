# SPDX-License-Identifier: Apache-2.0
"""Compiles C sources on first use and loads the result; and the CRC-32 that host, simulator and switch share."""
