# SPDX-License-Identifier: Apache-2.0
"""Charts of what the simulators and benchmarks found, drawn by matplotlib (the extra `plots`)."""
