# SPDX-License-Identifier: Apache-2.0
"""What a rank did and when: the flight recorder and the timeline."""
