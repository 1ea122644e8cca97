# SPDX-License-Identifier: Apache-2.0
"""What packets meet in simulated time: networks that lose them, switches and NICs in plain Python."""
