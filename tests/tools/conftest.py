"""Small random models on disk, and the local API server, for the tests of models. Nothing is downloaded."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # seconds to import, and most tests here need none of it
    from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
WORDS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}\n>"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}\n{% endif %}{% endfor %}"
)
CORPUS = [
    "go north go south go east go west take the lamp open the door look at the map hello how are you",
    "user assistant system\nYou are in the kitchen. There is a lamp on the table. 0 1 2 3 4 5 6 7 8 9",
] * 20


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """Byte-level BPE: any text has tokens, and words split into several."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|start|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(CORPUS, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def word_tokenizer() -> "PreTrainedTokenizerFast":
    """A token a word and one for the line end, which ends a turn; other words are unknown."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = ["<unk>", "\n", ">", *dict.fromkeys(" ".join(CORPUS[:2]).split())]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|[^\s]+"), behavior="removed", invert=True)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    tokenizer.chat_template = WORDS
    return tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Make a random checkpoint and return its folder: `checkpoint(tokenizer, kind, **config)`.

    Weights are drawn wide, so that scores differ by several nats.
    """

    import torch
    import transformers

    def make(tokenizer: Any = None, kind: str = "Llama", **settings: Any) -> str:
        tokenizer = tokenizer or byte_tokenizer()
        values = {
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        }
        config = getattr(transformers, f"{kind}Config")(**(values | settings))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = transformers.AutoModelForCausalLM.from_config(config)
        folder: Path = tmp_path_factory.mktemp("checkpoint")
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def tiny(checkpoint: Callable[..., str]) -> str:
    """Folder of a random Llama with a byte-level tokenizer and a chat template."""
    return checkpoint()


@pytest.fixture(scope="session")
def words(checkpoint: Callable[..., str]) -> str:
    """Folder of a random Llama with a word tokenizer whose turns end with the line."""
    return checkpoint(word_tokenizer())


@pytest.fixture(scope="session")
def openai_server() -> Any:
    """The class `OpenAIServer` of openai_server.py beside this file: `with openai_server(replies=["hi"]) as server:`."""
    path = Path(__file__).with_name("openai_server.py")
    spec = importlib.util.spec_from_file_location("openai_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OpenAIServer
