# SPDX-License-Identifier: Apache-2.0
"""Which switches, ports, links and cables of the fabric can be used: asked, watched, and left out by choice."""
