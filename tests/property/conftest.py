"""How many examples a property is tried on: few on every run, `HYPOTHESIS_PROFILE=thorough` for many."""

import os

from hypothesis import settings

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("thorough", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
