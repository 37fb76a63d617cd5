"""Settings that hold for all tests."""

import os

from hypothesis import HealthCheck, settings

# The same cases on every machine and every day: a red test is red for whoever looks next. New cases are
# the business of `make fuzz` and of WEIGHTSHARE_EXPLORE=1.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("explore" if os.environ.get("WEIGHTSHARE_EXPLORE") else "fixed")
