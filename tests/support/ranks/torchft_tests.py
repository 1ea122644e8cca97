# SPDX-License-Identifier: Apache-2.0
"""Runs torchft's own tests of process groups, as they come with it, on ours in gloo's place.

    torchft_tests.py        ends with status 1 where one fails; prints how many ran

All collectives are tried on three ranks, those as well that torchft leaves out for gloo, which lacks them.  Each is
tried again, after all those, with a rank that goes away, of which the others are to be told.
"""

import sys
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torchft.process_group_test as theirs

import netfold.torch  # noqa: F401
from netfold.host.torch.torchft_group import ProcessGroupNetfold

WITH_GLOO = ("test_gloo_apis_0_cpu", "test_gloo_timeout", "test_functional_collectives")
"""Their tests of a single group that are of gloo."""


class Collectives(theirs.MultiPgBaseTest):
    """Their base of tests with several ranks, with our group."""

    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend: str) -> ProcessGroupNetfold:
        return ProcessGroupNetfold(timeout=timedelta(seconds=30))


def of(how: str, collective: str) -> Callable[[Any], None]:
    """The test of a collective by one of the base's ways."""
    return lambda test: getattr(test, how)(collective)


for name in theirs._ALL_COLLECTIVES:
    setattr(Collectives, f"test_collective_{name}", of("_run_parallel", name))
    setattr(Collectives, f"test_collective_with_resiliency_{name}", of("_run_with_resiliency", name))
theirs.ProcessGroupGloo = ProcessGroupNetfold
tests = unittest.TestSuite([unittest.TestLoader().loadTestsFromTestCase(Collectives),
                            *(theirs.ProcessGroupTest(name) for name in WITH_GLOO)])
result = unittest.TextTestRunner(stream=sys.stderr).run(tests)
print(result.testsRun, len(result.skipped))
sys.exit(not result.wasSuccessful())
