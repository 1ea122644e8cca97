# SPDX-License-Identifier: Apache-2.0
"""The client of the controller: joining a job, watching it, and the plans that come back."""
