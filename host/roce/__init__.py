# SPDX-License-Identifier: Apache-2.0
"""Reliable connections in software over UDP 4791, whose queue pairs are spread over planned paths (Ethereal)."""
