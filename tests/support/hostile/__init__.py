# SPDX-License-Identifier: Apache-2.0
"""The hosts' engines under sanitizers, fed with hostile packets."""
