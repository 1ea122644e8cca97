# SPDX-License-Identifier: Apache-2.0
"""Files as a program may find and leave them on a disk that others use, too."""
