# SPDX-License-Identifier: Apache-2.0
"""Formats that rooms share: packets (roce), the messages of the controller's services (jobs, paths, operator), and
files."""
