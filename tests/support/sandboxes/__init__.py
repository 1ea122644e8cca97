# SPDX-License-Identifier: Apache-2.0
"""Tests in namespaces: processes of fabrics, virtual and other machines, and what goes over their links."""
