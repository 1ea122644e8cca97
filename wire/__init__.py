# SPDX-License-Identifier: Apache-2.0
"""What rooms say to each other: the packet format (roce) and the job service's messages (jobs)."""
