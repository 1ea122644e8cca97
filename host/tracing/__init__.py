# SPDX-License-Identifier: Apache-2.0
"""Records of what a rank did and when: the flight recorder and the timeline."""
