# SPDX-License-Identifier: Apache-2.0
"""What happened to each packet: records that a program compiled with hooks writes, and how they read."""
