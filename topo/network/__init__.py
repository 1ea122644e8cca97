# SPDX-License-Identifier: Apache-2.0
"""Fabrics of switches, links and hosts in namespaces, one or several side by side."""
