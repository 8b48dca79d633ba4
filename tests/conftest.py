"""What all tests share: settings of the process, the games of ALFWorld, small random models on disk, and a local API server.

One BLAS thread per process: more only take turns on a small machine, and make sums depend on scheduling.
"""

import gc
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import settings
from waiting import PATIENCE

if TYPE_CHECKING:  # seconds to import, and most tests here need none of it
    from transformers import PreTrainedTokenizerFast

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # games end before what the second compiler costs has paid

# A busy machine is no reason to fail; the same examples each time, so that a failure can be repeated.
settings.register_profile("steady", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("steady")

# Nor is it one for a client to give up after httpx's five seconds, where a test sets no limit.
DEFAULT_TIMEOUT_CONFIG.connect = DEFAULT_TIMEOUT_CONFIG.read = DEFAULT_TIMEOUT_CONFIG.write = PATIENCE

os.fsync = lambda file: None  # type: ignore[assignment,misc]  # it takes milliseconds, ten thousand times; no test cuts the power

gc.disable()  # what collection imports and lists stays to the end: it is neither looked through again and again here, nor later
gc.set_threshold(10_000, 10, 10)  # most of what a test makes is gone before it is looked through

# jsonschema, which Chroma and Ray import, would build 38 parsers of addresses for two seconds in each Python; no schema of ours asks for one.
ABSENT = str(Path(__file__).parent / "support/absent")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ABSENT, os.environ.get("PYTHONPATH")]))


def pytest_collection_finish() -> None:
    """Leave all that was imported out of what is looked through for garbage.

    Agents wait for a store as long as tests wait for anything, their critics for no more feedback, and OpenAI's client hardly between its
    tries.
    """
    if queue := sys.modules.get("learngraph.memory.conversations.write_queue"):
        queue.STORE_PATIENCE = queue.WRITE_PATIENCE = PATIENCE  # type: ignore[attr-defined]
    if worker := sys.modules.get("learngraph.graphs.agents.study_worker"):
        worker.PAUSE = 0.0  # type: ignore[attr-defined]
    if openai := sys.modules.get("openai._base_client"):
        openai.INITIAL_RETRY_DELAY = 0.01  # type: ignore[attr-defined]
    for client in (one for one in ("httpx", "httpx2") if one in sys.modules):  # each client would read all certificates, 20 ms
        transports: Any = sys.modules[f"{client}._transports.default"]
        transports.create_ssl_context = cache(transports.create_ssl_context)
    gc.freeze()
    gc.enable()


ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "alfworld_games.tar.xz"


@pytest.fixture(scope="session")
def alfworld_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with games: the user's, or some of an archive beside the checkout (1 s to read through)."""
    missing = [package for package in ("textworld", "fast_downward", "alfworld") if find_spec(package) is None]
    if missing:
        pytest.skip(f'NOT TESTED: no {", ".join(missing)} (pip install "textworld[pddl]" alfworld)')
    if os.environ.get("ALFWORLD_DATA"):
        return Path(os.environ["ALFWORLD_DATA"])
    if not ARCHIVE.is_file():
        pytest.skip("NOT TESTED: no games (set ALFWORLD_DATA to the folder that alfworld-download fills)")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(ARCHIVE, "r|xz") as archive:
        seen = 0
        for member in archive:
            seen += member.isfile()
            if member.isfile() and ("/valid_seen/" in member.name or seen % 30 == 0):
                archive.extract(member, folder, filter="data")
    return folder


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
def hermes(checkpoint: Callable[..., str]) -> str:
    """Folder of a random Llama whose chat template writes tool calls."""
    from chats import HERMES

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = HERMES
    return checkpoint(tokenizer, max_position_embeddings=2048)


@pytest.fixture(scope="session")
def words(checkpoint: Callable[..., str]) -> str:
    """Folder of a random Llama with a word tokenizer whose turns end with the line."""
    return checkpoint(word_tokenizer())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A Postgres server (tests/support/postgres_server.py), for tests that do not stop it; they take databases or schemas of their own."""
    from postgres_server import temporary_server

    with temporary_server() as server:
        yield server


@pytest.fixture(scope="session")
def openai_server() -> Any:
    """The class `OpenAIServer` of tests/support/openai_server.py: `with openai_server(replies=["hi"]) as server:`."""
    from openai_server import OpenAIServer

    return OpenAIServer


@pytest.fixture
def benchmark() -> Callable[[Callable[[], object]], object]:
    """What LangChain's own tests of models time with a plugin that is not loaded here is run once."""
    return lambda run: run()


@pytest.fixture
def snapshot() -> None:
    """What those tests compare with a recording by two other plugins; our models turn these off."""


vcr = snapshot
