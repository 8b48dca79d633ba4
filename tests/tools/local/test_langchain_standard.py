"""LangChain's own tests of chat models, on LocalChatModel with a random Llama whose chat template writes tool calls.

The suite's switches say what a local text model has not: pictures, sound, and a `model` argument that would load another checkpoint
within a call. Its recorded-traffic test needs a network.
"""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from typing_extensions import override

from learngraph.tools.local.model import LocalChatModel


class _Local:
    @pytest.fixture(autouse=True)
    def _checkpoint(self, hermes: str) -> None:
        self.folder = hermes

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return LocalChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.folder, "temperature": 0, "max_tokens": 20, "threads": 1}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        """Without the length, which the suite itself gives once more, and without a server's time limit and retries."""
        return {"temperature": 0, "stop": []}

    @property
    def supports_model_override(self) -> bool:
        return False


class TestUnit(_Local, ChatModelUnitTests):
    @property
    @override
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.folder, "threads": 1}


class TestIntegration(_Local, ChatModelIntegrationTests):
    """Without the tests of tools, in which a model must know what to pass; ours are in test_calls.py."""

    @property
    @override
    def has_tool_calling(self) -> bool:
        return False

    @property
    @override
    def has_structured_output(self) -> bool:
        return False
