"""Settings that hold for all tests."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same cases on every machine and every day: a red test is red for whoever looks next. New cases are
# the business of `make fuzz` and of WEIGHTSHARE_EXPLORE=1.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("explore" if os.environ.get("WEIGHTSHARE_EXPLORE") else "fixed")


@pytest.fixture
def one_thread():
    """For small networks: threads only slow them, and much more so where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
