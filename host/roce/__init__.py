# SPDX-License-Identifier: Apache-2.0
"""Reliable connections in software over UDP, whose queue pairs are spread over planned paths (Ethereal)."""
