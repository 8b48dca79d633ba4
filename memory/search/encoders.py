"""Encoders of dense keys: sentence-transformers models in this process, and models behind an OpenAI-compatible API."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from langchain_core.embeddings import Embeddings
from typing_extensions import override

from ..errors import UserError
from ..storage.chroma_store import embedder_name
from .sections import split_sections

__all__ = ["APIEncoder", "EncoderOptions", "Prompts", "SectionEncoder", "SentenceEncoder", "open_encoder"]


class Prompts(NamedTuple):
    """The texts that an encoder wants before what it embeds, where it was trained to find documents by queries."""

    query: str = ""
    """Before a query: `query: ` (E5), or an instruction that says what is searched (Qwen3-Embedding)."""
    document: str = ""
    """Before a text that is stored: `passage: ` (E5); most encoders want none."""


@dataclass(frozen=True)
class EncoderOptions:
    """An encoder by name, and how it is used."""

    name: str
    """A sentence-transformers model by folder or name, or `openai:NAME` for one behind an API."""
    base_url: str | None = None
    """The address of the API; OPENAI_BASE_URL if not given."""
    query_prompt: str | None = None
    """The text before a query; None: that of the model's own configuration, if it has one."""
    document_prompt: str | None = None
    """The text before a text that is stored; None likewise."""


def open_encoder(options: EncoderOptions) -> tuple[Embeddings, Prompts]:
    """The encoder of this name, and the texts that go before queries and stored texts.

    Raises:
        UserError: there is no such model, or a key is missing.
    """
    kind, _, name = options.name.partition(":")
    encoder: SentenceEncoder | APIEncoder
    if kind == "openai" and name:
        encoder = APIEncoder(name, options.base_url)
    elif options.base_url:
        raise UserError(
            f"the embedder {options.name!r} runs in this process and has no address ({options.base_url}); 'openai:NAME' has one"
        )
    else:
        encoder = SentenceEncoder(options.name)
    query = encoder.prompts.query if options.query_prompt is None else options.query_prompt
    document = encoder.prompts.document if options.document_prompt is None else options.document_prompt
    return encoder, Prompts(query, document)


class SentenceEncoder(Embeddings):
    """A sentence-transformers model as LangChain `Embeddings`. It embeds texts as they are, without any prompt of its own.

    Args:
        model: the name of its repository, or its folder.

    Raises:
        UserError: there is no such model.
    """

    def __init__(self, model: str | os.PathLike[str]) -> None:
        from sentence_transformers import SentenceTransformer

        self.model_name = os.fspath(model)
        self._lock = threading.Lock()  # its tokenizer cannot be used by two threads at once
        try:
            self._model = SentenceTransformer(self.model_name)
        except (OSError, ValueError) as error:
            raise UserError(
                f"no sentence-transformers model {self.model_name!r} ({' '.join(str(error).split())[:200]}): give the folder of "
                "one, or the name of one that this machine has or can fetch"
            ) from error

    @property
    def prompts(self) -> Prompts:
        """The prompts in the model's configuration, by the names that sentence-transformers looks for."""
        named = self._model.prompts
        usual = named.get(self._model.default_prompt_name or "") or ""
        document = next((text for name in ("document", "passage", "corpus") if (text := named.get(name))), usual)
        return Prompts(named.get("query") or usual, document)

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        with self._lock:
            return cast(list[list[float]], self._model.encode(texts, prompt="", show_progress_bar=False).tolist())

    @override
    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class APIEncoder(Embeddings):
    """An embedding model behind an OpenAI-compatible API. The key is OPENAI_API_KEY.

    Args:
        model: its name at the server.
        base_url: the address of the API, ending in /v1; OPENAI_BASE_URL if not given, and OpenAI's own without that.
        timeout: seconds that one request may take.
        max_retries: retries of rate-limited, failed and timed-out requests.

    Raises:
        UserError: the key is missing.
    """

    prompts = Prompts()

    def __init__(self, model: str, base_url: str | None = None, *, timeout: float = 600.0, max_retries: int = 4) -> None:
        self.model_name = f"openai:{model}"
        self._where = base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or None
        key = os.environ.get("OPENAI_API_KEY")
        if not key and self._where is None:
            raise UserError(
                f"the embedder '{self.model_name}' needs OPENAI_API_KEY in the environment; or give the address of a server "
                "without keys (--embedder-url), or the folder of a sentence-transformers model"
            )
        from langchain_openai import OpenAIEmbeddings
        from pydantic import SecretStr

        self._embeddings = OpenAIEmbeddings(
            model=model,
            base_url=self._where,
            api_key=SecretStr(key or "none"),
            timeout=timeout,
            max_retries=max_retries,
            check_embedding_ctx_length=False,  # else it sends OpenAI's token numbers, which other servers cannot read
            model_kwargs={"encoding_format": "float"},  # some servers know no base64
        )

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        import openai

        try:
            return self._embeddings.embed_documents(texts)
        except openai.APIError as error:
            reason = " ".join(str(error.__cause__ or error).split())[:300]
            raise UserError(
                f"the embedder '{self.model_name}' at {self._where or 'api.openai.com'} did not answer ({reason}): "
                "check its address (--embedder-url), OPENAI_API_KEY and the model's name"
            ) from error

    @override
    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class SectionEncoder(Embeddings):
    """An encoder of keys with sections (memory/search/sections.py): a key's vector holds those of its sections side by side.

    Each is scaled to length sqrt(weight), so that with weights that add up to 1 the cosine of two keys is the weighted mean of
    their sections' cosines.

    Args:
        encoder: embeds the text of a section.
        weights: name of a section -> its weight. A section that a key lacks is empty; a text without sections is the first one.
    """

    def __init__(self, encoder: Embeddings, weights: Mapping[str, float]) -> None:
        self.encoder, self.weights = encoder, dict(weights)
        self.model_name = f"{embedder_name(encoder)} by sections {self.weights}"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vector of each key; one call of the encoder for all."""
        keys = [split_sections(text) or {next(iter(self.weights)): text} for text in texts]
        parts = [key.get(name, "") for key in keys for name in self.weights]
        distinct = {part: number for number, part in enumerate(dict.fromkeys(parts))}
        vectors = np.asarray(self.encoder.embed_documents([*distinct]), np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        scales = np.sqrt(list(self.weights.values()))
        found = vectors[[distinct[part] for part in parts]].reshape(len(texts), len(scales), -1) * scales[:, None]
        rows: list[list[float]] = found.reshape(len(texts), -1).tolist()
        return rows

    def embed_query(self, text: str) -> list[float]:
        """The vector of one key."""
        return self.embed_documents([text])[0]
