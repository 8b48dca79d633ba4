"""LocalChatModel against plain forward passes: scores, cache reuse, sampling, stopping, errors."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from learngraph.memory.claas.settings import LoRA
from learngraph.memory.errors import UserError
from learngraph.tools.local.fingerprint import fingerprint
from learngraph.tools.local.model import LocalChatModel, ModelUsage
from learngraph.tools.training.lora import attach_lora

VERBS = ["go", "take", "open", "look at", "eat"]
NOUNS = ["north", "the lamp", "the door", "", "the map", "naïve café"]


@pytest.fixture(scope="module")
def model(tiny: str) -> LocalChatModel:
    return LocalChatModel(model=tiny, threads=1)


@pytest.fixture(scope="module")
def worded(words: str) -> LocalChatModel:
    return LocalChatModel(model=words)


def naive(model: LocalChatModel, messages: list[BaseMessage], option: str, ending: str = "<|end|>") -> float:
    """One forward pass over the whole text, rendered and tokenised in one piece."""
    roles = {"human": "user", "ai": "assistant", "system": "system"}
    turns = [{"role": roles[m.type], "content": m.content} for m in messages]
    template = model.tokenizer.apply_chat_template
    prompt = template(turns, tokenize=False, add_generation_prompt=True)
    whole = template([*turns, {"role": "assistant", "content": option}], tokenize=False)
    whole = whole[: len(prompt) + whole[len(prompt) :].index(ending) + len(ending)]
    start = len(model.tokenizer(prompt, add_special_tokens=False)["input_ids"])
    ids = torch.tensor([model.tokenizer(whole, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        logps = model.network(ids, use_cache=False).logits[0].double().log_softmax(-1)
    return sum(float(logps[i - 1, ids[0, i]]) for i in range(start, ids.shape[1]))


def options(rng: random.Random) -> list[str]:
    pairs = {f"{rng.choice(VERBS)} {rng.choice(NOUNS)}".strip() for _ in range(rng.randint(1, 14))}
    return sorted(pairs)


def ask(text: str) -> list[BaseMessage]:
    return [HumanMessage(text)]


@pytest.mark.parametrize("seed", range(8))
def test_scores_equal_separate_passes(model: LocalChatModel, seed: int) -> None:
    rng = random.Random(seed)
    messages: list[BaseMessage] = [SystemMessage("You are in the kitchen.")]
    for _ in range(rng.randint(0, 3)):
        messages += [HumanMessage(f"look {rng.random()}"), AIMessage(rng.choice(VERBS))]
    messages.append(HumanMessage("There is a lamp on the table. " * rng.randint(1, 3)))
    actions = options(rng)
    scores = model.score(messages, actions)
    assert scores == pytest.approx([naive(model, messages, action) for action in actions], abs=1e-4)
    assert all(score <= 0 for score in scores)


def test_very_many_options_take_several_passes(model: LocalChatModel) -> None:
    actions = [f"{i} go {i * i}" for i in range(400)]
    model.usage = ModelUsage()
    scores = model.score(ask("hello"), actions)
    assert model.usage.forward_passes > 1
    for i in (0, 150, 399):
        assert scores[i] == pytest.approx(naive(model, ask("hello"), actions[i]), abs=1e-4)
    assert model.usage.prompt_tokens == len(model.prompt_ids(ask("hello")))


@pytest.mark.slow
def test_scores_are_probabilities_of_what_generation_says(worded: LocalChatModel) -> None:
    """Sampled replies' own log-probabilities add up to their score, and they stop at the end of the turn."""
    found = 0
    for seed in range(200):
        reply = worded.invoke("hello", seed=seed, max_tokens=6)
        if reply.response_metadata["finish_reason"] == "stop" and reply.text.strip() and "<unk>" not in reply.text:
            found += 1
            total = sum(reply.response_metadata["model_logprobs"])
            assert worded.score(ask("hello"), [reply.text.strip()]) == pytest.approx([total], abs=1e-4)
    assert found >= 5


KITCHEN = "You are in the kitchen. There is a lamp on the table. Look at the map."


@pytest.mark.parametrize(
    ("settings", "texts", "actions"),
    [
        ({}, ["hello"], ["go north", "go", "go north and take the lamp", "g"]),  # options that begin others
        ({"max_position_embeddings": 2048}, ["look " * 600], ["go", "take the lamp"]),  # a prompt with a pass of its own
        ({"kind": "Qwen2"}, ["hello", "hello, how are you"], ["go", "go north", "take the lamp"]),
        ({"kind": "GPT2"}, ["hello", "hello, how are you"], ["go", "go north", "take the lamp"]),
        ({"kind": "Mistral", "sliding_window": 16}, [KITCHEN, KITCHEN], ["go", "go north", "take the lamp"]),  # no cache
    ],
    ids=["options", "long", "Qwen2", "GPT2", "sliding"],
)
def test_scores_of_other_prompts_options_and_architectures(
    checkpoint: Callable[..., str], settings: dict[str, Any], texts: list[str], actions: list[str]
) -> None:
    model = LocalChatModel(model=checkpoint(**settings))
    for text in texts:
        expected = [naive(model, ask(text), action) for action in actions]
        assert model.score(ask(text), actions) == pytest.approx(expected, abs=1e-4)
    assert model.invoke(texts[0], seed=1, max_tokens=8).text == model.invoke(texts[0], seed=1, max_tokens=8).text


def test_scores_of_one_token_replies_and_line_ends(worded: LocalChatModel) -> None:
    actions = ["go", "lamp", "take the lamp", "take"]
    expected = [naive(worded, ask("open the door"), action, "\n") for action in actions]
    assert worded.score(ask("open the door"), actions) == pytest.approx(expected, abs=1e-4)
    assert worded.reply_ids("lamp")[-1] == worded.tokenizer.convert_tokens_to_ids("\n")


# Cache


def test_growing_prompts_prefill_only_what_is_new(model: LocalChatModel) -> None:
    model.clear_cache()
    model.usage = ModelUsage()
    text, new, before = "You are in the kitchen.", 0, 0
    for step in range(6):
        text += f" > go north {step}\nThere is a lamp."
        messages = ask(text)
        assert model.score(messages, ["go", "take the lamp"]) == pytest.approx(
            [naive(model, messages, "go"), naive(model, messages, "take the lamp")], abs=1e-4
        )
        ids = model.prompt_ids(messages)
        # The end of the turn and the generation prompt move on with the text.
        closing = len(model.prompt_ids(ask(""))) - 3
        new += len(ids) - before + (closing if step else 0)
        before = len(ids)
    assert model.usage.prefilled_tokens <= 1.05 * new
    assert model.usage.forward_passes == 6


def test_forks_and_returns_equal_fresh(model: LocalChatModel, tiny: str) -> None:
    long = "You are in the kitchen. There is a lamp on the table. Look at the map. " * 3
    prompts = [long, long[:40], long[:40] + "go east", "hello", long, long, long + "go", "look", long[:100]]
    for text in prompts:
        expected = [naive(model, ask(text), action) for action in ("go", "open the door")]
        assert model.score(ask(text), ["go", "open the door"]) == pytest.approx(expected, abs=1e-4)


def test_two_questions_by_turns_both_stay_cached(model: LocalChatModel) -> None:
    model.clear_cache()
    model.usage = ModelUsage()
    texts = ["You are in the kitchen. " * 4, "There is a lamp on the table. " * 4]
    for _ in range(3):
        for text in texts:
            model.score(ask(text), ["go", "look"])
    lengths = [len(model.prompt_ids(ask(text))) for text in texts]
    assert model.usage.prefilled_tokens <= sum(lengths)
    assert model.usage.prompt_tokens == 3 * sum(lengths)


def test_chat_and_scores_share_the_cache(model: LocalChatModel) -> None:
    model.clear_cache()
    first = model.invoke("hello, how are you", seed=3, max_tokens=8)
    model.usage = ModelUsage()
    messages = [HumanMessage("hello, how are you"), first, HumanMessage("look")]
    expected = naive(model, messages, "go")
    assert model.score(messages, ["go"]) == pytest.approx([expected], abs=1e-4)
    reused = model.usage.prompt_tokens - model.usage.prefilled_tokens
    assert reused >= len(model.prompt_ids(ask("hello, how are you")))


def test_forget_after_the_weights_change(checkpoint: Callable[..., str]) -> None:
    model = LocalChatModel(model=checkpoint())
    model.score(ask("hello"), ["go"])
    with torch.no_grad():
        model.network.model.layers[0].mlp.down_proj.weight.mul_(-1)
    model.clear_cache()
    assert model.score(ask("hello"), ["go"]) == pytest.approx([naive(model, ask("hello"), "go")], abs=1e-4)


def test_threads_do_not_mix_prompts(model: LocalChatModel) -> None:
    texts = [f"You are in the kitchen. {'look ' * n}" for n in range(6)]
    expected = {text: naive(model, ask(text), "take the lamp") for text in texts}
    wrong: list[Any] = []

    def work(offset: int) -> None:
        try:
            for i in range(12):
                text = texts[(i * offset) % len(texts)]
                score = model.score(ask(text), ["go", "take the lamp"])[1]
                model.invoke(text, max_tokens=2, seed=i)
                if abs(score - expected[text]) > 1e-4:
                    wrong.append((text, score, expected[text]))
        except BaseException as error:  # shown by the assertion, not lost in the thread
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(offset,)) for offset in (1, 2, 3, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


# Chat


def test_same_seed_same_reply_and_the_global_generator_is_left_alone(model: LocalChatModel) -> None:
    state = torch.random.get_rng_state()
    replies = [model.invoke("hello", seed=seed, max_tokens=12).text for seed in (1, 1, 2)]
    assert replies[0] == replies[1] != replies[2]
    assert len({model.invoke("hello", max_tokens=12).text for _ in range(4)}) > 1  # without a seed
    assert torch.equal(state, torch.random.get_rng_state())


def test_stream_adds_up_to_the_reply(model: LocalChatModel) -> None:
    for seed in range(5):
        chunks = list(model.stream("hello", seed=seed, max_tokens=20))
        whole = model.invoke("hello", seed=seed, max_tokens=20)
        total = chunks[0]
        for chunk in chunks[1:]:
            total = total + chunk
        assert total.text == whole.text
        assert total.response_metadata["token_ids"] == whole.response_metadata["token_ids"]
        assert total.usage_metadata is not None
        assert total.usage_metadata["output_tokens"] == len(whole.response_metadata["token_ids"])


def test_a_stream_comes_token_by_token(model: LocalChatModel) -> None:
    model.usage = ModelUsage()
    stream = model.stream("hello", seed=0, max_tokens=50)
    next(stream)
    assert model.usage.generated_tokens < 10
    stream.close()
    assert model.score(ask("hello"), ["go"]) == pytest.approx([naive(model, ask("hello"), "go")], abs=1e-4)


def test_logprobs_are_those_of_a_plain_pass(model: LocalChatModel) -> None:
    reply = model.invoke("hello", temperature=0.7, top_p=0.9, seed=5, max_tokens=10, logprobs=True, top_logprobs=3)
    meta = reply.response_metadata
    prompt = model.prompt_ids(ask("hello"))
    with torch.no_grad():
        logits = model.network(torch.tensor([prompt + meta["token_ids"]])).logits[0].double()
    for i, token in enumerate(meta["token_ids"]):
        own = logits[len(prompt) - 1 + i].log_softmax(-1)
        drawn = (own / 0.7).softmax(-1)
        order = drawn.argsort(descending=True)
        kept = order[: int((drawn[order].cumsum(0) < 0.9).sum()) + 1]
        assert token in kept
        assert meta["model_logprobs"][i] == pytest.approx(float(own[token]), abs=1e-4)
        assert meta["sampled_logprobs"][i] == pytest.approx(float((drawn[token] / drawn[kept].sum()).log()), abs=1e-3)
    entry = meta["logprobs"]["content"][0]
    best = logits[len(prompt) - 1].log_softmax(-1).topk(3)
    assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert entry["token"] == model.tokenizer.decode([meta["token_ids"][0]])


def test_temperature_0_takes_the_best_token(model: LocalChatModel) -> None:
    ids = model.prompt_ids(ask("hello"))
    for token in model.invoke("hello", temperature=0, max_tokens=5).response_metadata["token_ids"]:
        with torch.no_grad():
            assert token == int(model.network(torch.tensor([ids])).logits[0, -1].argmax())
        ids = [*ids, token]


def test_stop_sequences_end_the_reply_and_are_not_shown(model: LocalChatModel) -> None:
    whole = model.invoke("hello", seed=4, max_tokens=30).text
    stop = whole[5:8]
    cut = model.invoke("hello", seed=4, max_tokens=30, stop=[stop])
    assert cut.text == whole[: whole.index(stop)]
    assert cut.response_metadata["finish_reason"] == "stop"
    streamed = "".join(chunk.text for chunk in model.stream("hello", seed=4, max_tokens=30, stop=[stop]))
    assert streamed == cut.text


def test_a_reply_that_reaches_its_longest_says_so(model: LocalChatModel) -> None:
    reply = model.invoke("hello", temperature=0, max_tokens=1)
    assert reply.response_metadata["finish_reason"] == "length"
    assert len(reply.response_metadata["token_ids"]) == 1


def test_a_tokenizer_without_a_template_gets_the_plain_one(checkpoint: Callable[..., str], model: LocalChatModel) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.model)
    tokenizer.chat_template = None
    plain = LocalChatModel(model=checkpoint(tokenizer))
    assert plain.tokenizer.decode(plain.prompt_ids(ask("hello"))) == "User: hello\nAssistant:"
    assert plain.tokenizer.decode(list(plain.reply_ids("go"))) == " go<|end|>"
    assert plain.score(ask("hello"), ["go", "look"])[0] < 0


# Errors


@pytest.mark.parametrize(
    ("options", "says"),
    [([], "at least one"), ("go", "a list"), (["go", " "], "empty option"), (["go", "look", "go"], "stands twice")],
)
def test_bad_options(model: LocalChatModel, options: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        model.score(ask("hello"), options)


def test_options_with_the_end_of_a_turn_in_them(model: LocalChatModel, worded: LocalChatModel) -> None:
    for asked, option in ((model, "go<|end|>\nnorth"), (worded, "go\nnorth")):
        with pytest.raises(UserError, match="has the end of a turn in it"):
            asked.score(ask("hello"), ["look", option])


def test_options_the_model_cannot_tell_apart(worded: LocalChatModel) -> None:
    with pytest.raises(UserError, match="'xyzzy' stands like 'plugh'"):
        worded.score(ask("hello"), ["go", "plugh", "xyzzy"])


def test_prompts_longer_than_the_window(model: LocalChatModel) -> None:
    for call in (lambda m: model.score(m, ["go"]), model.invoke):
        with pytest.raises(UserError, match=r"prompt of \d+ tokens does not fit its window of 512"):
            call(ask("look at the map " * 300))
    n = len(model.prompt_ids(ask("")))
    with pytest.raises(UserError, match=r"option of \d+ do not fit"):
        model.score(ask("7" * (511 - n)), ["go north and take the lamp"])
    full = model.invoke(ask("7" * (508 - n)), temperature=0.01, seed=0)
    assert len(full.response_metadata["token_ids"]) <= 4


def test_what_cannot_be_loaded_or_said(
    model: LocalChatModel, tmp_path: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    picture = HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}])
    for call, says in (
        (lambda: LocalChatModel(model=str(tmp_path)), "cannot be loaded"),
        (lambda: LocalChatModel(model="nobody/nothing"), "'nobody/nothing' cannot be loaded on cpu: We couldn't connect to"),
        (lambda: LocalChatModel(model=tiny, dtype="float7"), "'float7' is not a torch dtype"),
        (lambda: model.score([], ["go"]), "no messages"),
        (lambda: model.invoke([picture]), "reads text only"),
        (lambda: model.invoke("hello", n=2), r"has no \['n'\]"),
        (lambda: model.invoke("hello", temperature=-1), "temperature -1"),
    ):
        with pytest.raises(UserError, match=says):
            call()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('no') }}", "refuses messages in the roles user"),
        ("{% for m in messages %}{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}AI{% endif %}", "begin with"),
        ("{% for m in messages %}{{ m['content'] }}\n{% if loop.first %}g{% endif %}{% endfor %}", "merges the end"),
    ],
)
def test_templates_that_cannot_frame_a_reply(checkpoint: Callable[..., str], tiny: str, template: str, says: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = template
    model = LocalChatModel(model=checkpoint(tokenizer))
    with pytest.raises(UserError, match=says):
        model.score(ask("hello"), ["o north"])


# Fingerprints and chats in OpenAI's shape


def test_a_fingerprint_says_which_base(tiny: str, words: str, checkpoint: Callable[..., str], tmp_path: Any) -> None:
    first, again, other = LocalChatModel(model=tiny), LocalChatModel(model=tiny), LocalChatModel(model=words)
    base = fingerprint(first)
    assert len(base) == 32
    assert base == fingerprint(again) == fingerprint(first)
    assert base != fingerprint(other)
    again.network.save_pretrained(tmp_path, max_shard_size="20KB")  # cut into several files
    again.tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert fingerprint(LocalChatModel(model=str(tmp_path))) == base
    with torch.no_grad():
        next(again.network.parameters())[0, 0] += 1e-3
    again.clear_cache()
    assert fingerprint(again) != base
    attach_lora(first.network, LoRA(rank=2))
    assert fingerprint(first) == base
    templated = LocalChatModel(model=tiny)
    templated.tokenizer.chat_template += " "
    assert fingerprint(templated) != base


def test_chats_in_the_shape_of_openai(model: LocalChatModel) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts}]
    assert model.chat_ids(messages) == model.prompt_ids([SystemMessage("be kind"), HumanMessage("hello")])
    for wrong, words in (
        ({"role": "user", "content": [{"type": "image_url"}]}, "image_url"),
        ({"content": "x"}, "role"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "tool call"),
        ({"role": "user", "content": "look " * 2000}, "window of 512"),
    ):
        with pytest.raises(UserError, match=words):
            model.chat_ids([wrong])
