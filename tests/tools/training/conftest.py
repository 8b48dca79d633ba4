"""What the tests of training share."""

import pytest

from learngraph.tools.local.model import LocalChatModel


@pytest.fixture
def model(tiny: str) -> LocalChatModel:
    """A tiny random model, on one thread."""
    return LocalChatModel(model=tiny, threads=1)
