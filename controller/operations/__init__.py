# SPDX-License-Identifier: Apache-2.0
"""What an operator asks a running controller, and tells it."""
