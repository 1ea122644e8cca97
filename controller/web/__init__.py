# SPDX-License-Identifier: Apache-2.0
"""The controller over HTTP: metrics, and a page with a drawing of the fabric."""
