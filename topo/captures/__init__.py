# SPDX-License-Identifier: Apache-2.0
"""Packets of a running fabric: captured from every link, or one gradient packet followed through the switches."""
