# SPDX-License-Identifier: Apache-2.0
"""What the controller shows over HTTP: metrics, and a page with the fabric drawn."""
