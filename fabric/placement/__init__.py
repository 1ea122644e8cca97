# SPDX-License-Identifier: Apache-2.0
"""Which machine runs what, and how ranks lie on machines: who folds together there, and the order of a ring."""
