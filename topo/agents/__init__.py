# SPDX-License-Identifier: Apache-2.0
"""Programs on a virtual or another machine, started over a line to an agent there as if they ran here."""
