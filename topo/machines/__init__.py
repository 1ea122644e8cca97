# SPDX-License-Identifier: Apache-2.0
"""One fabric over several machines: what each runs, the agent that runs it there, and the launcher of all."""
