# SPDX-License-Identifier: Apache-2.0
"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# No deadlines: the suite shares two cores with native compilers.  A failing example prints how to repeat it.
settings.register_profile("netfold", deadline=None, print_blob=True)
settings.load_profile("netfold")
