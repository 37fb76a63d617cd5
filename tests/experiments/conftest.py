"""All networks here are small."""

import pytest


@pytest.fixture(autouse=True)
def _small_networks(one_thread):
    """One thread for all of them."""
