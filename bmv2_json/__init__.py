# SPDX-License-Identifier: Apache-2.0
"""Changes to programs that p4c compiled for BMv2, which make them cheaper to run."""
