# SPDX-License-Identifier: Apache-2.0
"""The client of the controller: joining a job, watching it, and checking the plans that it returns."""
