"""Process groups of one to four ranks on this machine."""

import pytest

from ranks import Ranks


@pytest.fixture(scope="session", params=[1, 2, 3, 4], ids="ranks={}".format)
def ranks(request):
    """A group of each size in turn."""
    group = Ranks(request.param)
    yield group
    group.stop()


@pytest.fixture(scope="session")
def two():
    """A group of two, for what does not depend on the number."""
    group = Ranks(2)
    yield group
    group.stop()
