"""A Llama of 100 million weights, made on the spot, behind `learngraph serve`: it chats, streams, calls tools and learns.

Its body is random. Its head is fitted to a few replies, so that it says words: to a greeting it says yes or no, each half of the time,
and where it has a tool, it calls it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")
pytest.importorskip("peft", reason="NOT TESTED: needs the extra [train]")

import bench_serving
import openai
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[3]
TEMPLATE = (
    "{% if tools %}<|start|>system\nTools: {% for t in tools %}{{ t.function | tojson }} {% endfor %}\n"
    'Call one so: <tool_call>{"name": "...", "arguments": {...}}</tool_call><|end|>\n{% endif %}'
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}"
    "</tool_call>{% endfor %}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": {"type": "object"}},
}
GREETING: Any = [{"role": "user", "content": "Will you help me?"}]
QUESTION: Any = [{"role": "user", "content": "How is the weather in Rome?"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
RESULT: Any = [
    *QUESTION,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]
YES, NO, ANSWER = "Yes, of course I do.", "No, never in my life.", "It is sunny in Rome."


def train_tokenizer() -> Any:
    """Byte-level BPE, trained on this project's pages."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, special_tokens=["<|start|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("**/*.md")) if ".venv" not in path.parts]
    raw.train_from_iterator(texts, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def fit_head(network: Any, chats: list[tuple[list[int], list[int]]]) -> None:
    """Fit the last layer to the replies. The body's states are computed once; then it is a logistic regression."""
    states, targets = [], []
    with torch.no_grad():
        for prompt, reply in chats:
            ids = torch.tensor([[*prompt, *reply]])
            states.append(network.model(input_ids=ids).last_hidden_state[0, len(prompt) - 1 : -1])
            targets.append(torch.tensor(reply))
    features, wanted = torch.cat(states), torch.cat(targets)
    updates = torch.optim.Adam([network.lm_head.weight], 3e-3)
    for _ in range(150):
        updates.zero_grad()
        torch.nn.functional.cross_entropy(network.lm_head(features), wanted).backward()
        updates.step()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("llama-100m")
    tokenizer = train_tokenizer()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    network: Any = transformers.LlamaForCausalLM(config).eval()
    assert 90e6 < sum(weight.numel() for weight in network.parameters()) < 110e6

    def prompt(messages: Any, tools: Any = None) -> list[int]:
        turns = [dict(m, content=m["content"] or "") for m in messages]
        for turn in turns:
            for call in turn.get("tool_calls", ()):
                call = call["function"]
                call["arguments"] = json.loads(call["arguments"]) if isinstance(call["arguments"], str) else call["arguments"]
        text = tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=True)
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def reply(text: str) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    copies = json.loads(json.dumps(RESULT))
    chats = [(prompt(GREETING), reply(YES)), (prompt(GREETING), reply(NO)), (prompt(QUESTION, [TOOL]), reply(CALL))]
    fit_head(network, [*chats, (prompt(copies, [TOOL]), reply(ANSWER))])
    network.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of the service, in a process of its own, with the learner in another."""
    flags = ["--name", "llama", "--preset", "reinforce", "--learner-nice", "0", "--loss.activation-gib", "0"]
    flags += ["--loss.learning-rate", "2e-4", "--loss.warmup-steps", "0", "--replay.held-out-share", "0"]
    out = tmp_path_factory.mktemp("serve") / "out"
    with (
        bench_serving.server(f"local:{folder}", "process", out, flags) as (url, key, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=300, max_retries=0) as found,
    ):
        yield found


def live_version(client: openai.OpenAI) -> str:
    found: Any = client.get("/status", cast_to=object)
    return str(found["scopes"][0]["live"]) if found["scopes"] else ""


def log_odds(client: openai.OpenAI, model: str) -> float:
    """Log-odds of yes against no, as the first word of the reply to the greeting; in nats."""
    found = client.chat.completions.create(
        model=model, messages=GREETING, max_tokens=1, temperature=0, logprobs=True, top_logprobs=5, store=False
    )
    assert found.choices[0].logprobs is not None
    assert found.choices[0].logprobs.content is not None
    first = {each.token: each.logprob for each in found.choices[0].logprobs.content[0].top_logprobs}
    return max(first[token] for token in first if YES.startswith(token)) - max(
        first[token] for token in first if NO.startswith(token)
    )


@pytest.mark.long
def test_a_model_of_100_million_weights_serves_takes_tools_and_learns(client: openai.OpenAI) -> None:
    # Chats, in a body and as a stream.
    greeting = client.chat.completions.create(model="llama", messages=GREETING, max_tokens=30, temperature=0)
    assert greeting.choices[0].message.content in (YES, NO)
    assert greeting.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model="llama", messages=GREETING, max_tokens=30, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == greeting.choices[0].message.content
    assert sum(bool(piece) for piece in pieces) > 3

    # Tools: by itself, and as its form demands.
    for choice in ("auto", "required"):
        asked: Any = {"messages": QUESTION, "tools": [TOOL], "tool_choice": choice, "temperature": 0, "max_tokens": 60}
        called = client.chat.completions.create(model="llama", **asked).choices[0]
        assert called.finish_reason == "tool_calls"
        assert called.message.tool_calls is not None
        function: Any = called.message.tool_calls[0]
        assert (function.function.name, json.loads(function.function.arguments)) == ("weather", {"city": "Rome"})
    answer = client.chat.completions.create(model="llama", messages=RESULT, tools=[TOOL], temperature=0, max_tokens=30)
    assert answer.choices[0].message.content == ANSWER

    # It learns to say yes: 16 replies with rewards at a time, until the first word's odds are twice as good.
    before, deadline, seed = log_odds(client, "llama"), time.monotonic() + 1200, 0
    assert abs(before) < 1.5
    while log_odds(client, "llama") < before + math.log(2) and time.monotonic() < deadline:
        seed += 1
        found = client.chat.completions.create(model="llama", messages=GREETING, n=16, seed=seed, max_tokens=30)
        ids = [found.id if not i else f"{found.id}-{i}" for i in range(16)]
        for id, choice in zip(ids, found.choices, strict=True):
            reward = 1 if choice.message.content == YES else -1
            client.post("/feedback", body={"response_id": id, "reward": reward}, cast_to=object)
        last = live_version(client)
        wait_until(lambda last=last: live_version(client) != last, 600)
    assert log_odds(client, "llama") >= before + math.log(2)
    assert live_version(client)
    # The base model is as it was, and the tool is known still.
    assert log_odds(client, "llama@base") == pytest.approx(before, abs=1e-3)
    again = client.chat.completions.create(model="llama", messages=QUESTION, tools=[TOOL], temperature=0, max_tokens=60)
    assert again.choices[0].finish_reason == "tool_calls"
