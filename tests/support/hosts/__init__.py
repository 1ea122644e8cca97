# SPDX-License-Identifier: Apache-2.0
"""Ranks in one process over loopback or memory: meshes, rails, job services and RDMA devices that are stand-ins."""
