# SPDX-License-Identifier: Apache-2.0
"""Collectives between hosts: algorithms by packets, on meshes and from GOAL schedules."""
