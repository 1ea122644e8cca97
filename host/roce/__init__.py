# SPDX-License-Identifier: Apache-2.0
"""Reliable connections in software on UDP 4791, their queue pairs spread over planned paths (Ethereal)."""
