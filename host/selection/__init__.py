# SPDX-License-Identifier: Apache-2.0
"""Which algorithm carries an operation: measured links, predicted costs, and the choice between them."""
