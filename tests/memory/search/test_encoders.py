"""Encoders of dense keys: which texts they send, which prompts they want, and what they say where something is wrong."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from openai_server import OpenAIServer

from learngraph.memory.errors import UserError
from learngraph.memory.search.encoders import APIEncoder, EncoderOptions, Prompts, open_encoder


def embeddings(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of an embeddings server: the length of each text and a one."""
    data = [
        {"object": "embedding", "index": n, "embedding": [float(len(text)), 1.0]} for n, text in enumerate(request["input"])
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"body": json.dumps({"object": "list", "model": request["model"], "data": data, "usage": usage})}


def test_an_embedder_behind_an_api_is_sent_texts_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with OpenAIServer(embeddings) as server:
        encoder, prompts = open_encoder(EncoderOptions("openai:small", server.url, query_prompt="find: "))
        assert encoder.embed_documents(["door", "a red door"]) == [[4.0, 1.0], [10.0, 1.0]]
        assert encoder.embed_query("gate!") == [5.0, 1.0]
        assert [request["input"] for request in server.requests] == [["door", "a red door"], ["gate!"]]
        assert {(request["model"], request["encoding_format"]) for request in server.requests} == {("small", "float")}
        assert server.headers[0]["authorization"] == "Bearer secret"
    assert prompts == Prompts("find: ", "")


def test_the_address_may_stand_in_the_environment_and_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    with OpenAIServer(embeddings) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert APIEncoder("small").embed_query("door") == [4.0, 1.0]
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(UserError, match=r"the embedder 'openai:small' needs OPENAI_API_KEY .* \(--embedder-url\)"):
        APIEncoder("small")


def test_an_api_that_refuses_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with OpenAIServer([{"status": 404, "text": "no model small here"}]) as server:
        with pytest.raises(
            UserError, match=r"'openai:small' at http://127.*/v1 did not answer \(.*no model small here.*\): check"
        ):
            APIEncoder("small", server.url).embed_query("door")
        closed = server.url
    with pytest.raises(UserError, match=r"'openai:small' at http://127.* did not answer \(.*refused.*\): check its address"):
        APIEncoder("small", closed, max_retries=0).embed_query("door")


def test_an_address_is_for_an_api_only() -> None:
    with pytest.raises(UserError, match=r"'some/model' runs in this process and has no address \(http://x/v1\); 'openai:NAME'"):
        open_encoder(EncoderOptions("some/model", "http://x/v1"))


@pytest.mark.parametrize(
    ("named", "default", "given", "expected"),
    [
        ({}, None, {}, Prompts("", "")),
        ({"query": "Instruct: find\nQuery:", "document": ""}, None, {}, Prompts("Instruct: find\nQuery:", "")),
        ({"query": "query: ", "passage": "passage: "}, None, {}, Prompts("query: ", "passage: ")),
        ({"alike": "text: "}, "alike", {}, Prompts("text: ", "text: ")),
        ({"query": "query: "}, None, {"query_prompt": "", "document_prompt": "d: "}, Prompts("", "d: ")),
    ],
)
def test_the_prompts_are_those_of_the_models_files_unless_others_are_given(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], default: str | None, given: dict[str, str], expected: Prompts
) -> None:
    class Model:
        """What sentence-transformers makes of a model's files."""

        prompts, default_prompt_name = named, default

        def __init__(self, name: str) -> None:
            pass

        def encode(self, texts: list[str], *, prompt: str | None = None, show_progress_bar: bool = True) -> Any:
            import numpy as np

            assert prompt == ""  # else a default prompt would come before that of the memory
            return np.array([[float(len(text))] for text in texts])

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    encoder, prompts = open_encoder(EncoderOptions("some/model", **given))
    assert prompts == expected
    assert encoder.embed_query("door") == [4.0]
