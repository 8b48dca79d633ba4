"""What the tests of training share."""

import pytest

from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model


@pytest.fixture
def model(tiny: str) -> LocalChatModel:
    """A tiny random model, on one thread."""
    return LocalChatModel(model=tiny, threads=1)


@pytest.fixture(scope="module")
def pocket() -> LocalChatModel:
    """The pocket model, a module's own, on one thread."""
    model = open_model("pocket", threads=1)
    assert isinstance(model, LocalChatModel)
    return model
