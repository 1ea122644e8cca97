# SPDX-License-Identifier: Apache-2.0
"""Fabrics that are drawn or made for a test, and what is planned on them."""
