# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for p4c's and BMv2's programs, so that what calls those runs on softswitch."""
