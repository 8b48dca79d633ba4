"""LangChain's own unit tests of chat models, on OpenAIChatModel. Its integration tests need a real model."""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests
from typing_extensions import override

from learngraph.tools.models.openai_model import OpenAIChatModel


class TestOpenAI(ChatModelUnitTests):
    @property
    @override
    def chat_model_class(self) -> type[BaseChatModel]:
        return OpenAIChatModel

    @property
    @override
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "test-model", "base_url": "http://127.0.0.1:1/v1", "api_key": "none"}

    @pytest.mark.xfail(reason="LangChain restores classes of its own packages only", strict=False)
    @override
    def test_serdes(self, model: BaseChatModel, snapshot: Any) -> None:
        super().test_serdes(model, snapshot)
