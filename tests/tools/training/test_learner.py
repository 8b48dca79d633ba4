"""CLaaS's learner on the pocket model: it learns a preference with every loss, to the byte the same again, and says what it
cannot learn from."""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from claas_settings import make_objective
from minibatches import StoredVersions
from safetensors.torch import load_file, save_file
from variants import quick

from learngraph.memory.claas.settings import LoRA
from learngraph.memory.errors import UserError
from learngraph.memory.records import ChatRequest, Correction, Exchange, Feedback, Measured, Minibatch, Reply, Sampling, Update
from learngraph.nodes.learn.gradient_step import with_base_logprobs
from learngraph.nodes.prompt import Prompt
from learngraph.tools.local.fingerprint import fingerprint
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import POCKET, open_model
from learngraph.tools.pocket import guard
from learngraph.tools.pocket.guard_chats import retention_probes
from learngraph.tools.training.calls import LearnerSettings
from learngraph.tools.training.examples import hindsight_block
from learngraph.tools.training.learner import InProcessLearner, _room
from learngraph.tools.training.lora import Rewriting
from learngraph.tools.training.sft import read_retention

KITCHEN = "You are in the kitchen.\nnorth: hall\ntake: lamp"
LIKED = (" take", " read")
"""What a reply should begin with; the pocket model does so with a probability of 0.21."""
HINDSIGHT = Prompt.load("claas/hindsight").parts[0][1].template
SMALL = LoRA(rank=8, alpha=16)
QUICK: dict[str, Any] = {"learning_rate": 3e-3, "warmup_steps": 1}


def take_step(learner: InProcessLearner, lot: Minibatch) -> Update:
    return learner.step(lot, learner.correct(lot))


@pytest.fixture
def shelf(tmp_path: Path) -> StoredVersions:
    return StoredVersions(tmp_path / "versions")


Make = Callable[..., InProcessLearner]


@pytest.fixture
def learner(pocket: LocalChatModel, shelf: StoredVersions) -> Make:
    def make(
        lora: LoRA = SMALL, model: LocalChatModel = pocket, hindsight: str = HINDSIGHT, **settings: Any
    ) -> InProcessLearner:
        chosen = LearnerSettings(lora, make_objective(**(QUICK | settings)), hindsight)
        return InProcessLearner(model, shelf.folder, shelf.write, chosen)

    return make


class Talker:
    """Answers as a version would: PEFT itself reads the folder, so that what we write is what others read."""

    def __init__(self, model: LocalChatModel, folder: Path | None) -> None:
        import peft

        self.model = LocalChatModel(model=model.model, threads=1)
        self.network = peft.PeftModel.from_pretrained(self.model.network, str(folder)) if folder else self.model.network
        self.network.eval()
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def logps(self, ids: tuple[int, ...]) -> torch.Tensor:
        if ids not in self.known:
            with torch.no_grad():
                self.known[ids] = self.network(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        return self.known[ids]

    def say(self, question: str, draw: random.Random, tokens: int = 3, temperature: float = 1.0) -> Reply:
        prompt = tuple(self.model.chat_ids([{"role": "user", "content": question}]))
        end = self.model.reply_ids("go")[-1]
        said, logps = list[int](), list[float]()
        while len(said) < tokens and (not said or said[-1] != end):
            now = (self.logps(prompt + tuple(said)) / temperature).log_softmax(-1)
            said.append(draw.choices(range(len(now)), now.exp().tolist())[0])
            logps.append(min(0.0, float(now[said[-1]])))
        return Reply(self.model.tokenizer.decode(said), prompt, tuple(said), tuple(logps))

    def liked(self, question: str = KITCHEN) -> float:
        """How probable it is that a reply is liked, exactly."""
        now = self.logps(tuple(self.model.chat_ids([{"role": "user", "content": question}]))).exp()
        return sum(float(now[self.model.get_token_ids(word)[0]]) for word in LIKED)


def exchange(model: LocalChatModel, reply: Reply, feedback: Feedback | None, n: int = 0, **more: Any) -> Exchange:
    request = ChatRequest(({"role": "user", "content": KITCHEN},), Sampling(max_tokens=3))
    return Exchange(**({"id": f"r{n}", "tenant": "acme", "request": request, "reply": reply, "base": fingerprint(model)}
                       | {"feedback": feedback} | more))  # fmt: skip


def judged(reply: Reply, text: str = "") -> Feedback:
    return Feedback(1.0 if reply.text.startswith(LIKED) else -1.0, text)


def minibatch(exchanges: Sequence[Exchange], step: int = 1, parent: str = "") -> Minibatch:
    return Minibatch(f"acme/default/{step}", "acme", "default", step, parent, tuple(exchanges), seed=step)


def following(lot: Minibatch, step: int, parent: str) -> Minibatch:
    """The same exchanges as the minibatch of a later step."""
    return replace(lot, id=f"acme/default/{step}", step=step, parent=parent)


@pytest.fixture
def small(batch: Minibatch) -> Minibatch:
    return replace(batch, exchanges=batch.exchanges[:6])


def served(model: LocalChatModel, size: int = 8, text: str = "", seed: int = 0, **more: Any) -> list[Exchange]:
    """Exchanges of the base model, with their feedback."""
    talker, draw = Talker(model, None), random.Random(seed)
    replies = [talker.say(KITCHEN, draw) for _ in range(size)]
    return [exchange(model, reply, judged(reply, text), n, **more) for n, reply in enumerate(replies)]


@pytest.fixture(scope="module")
def batch(pocket: LocalChatModel) -> Minibatch:
    """Sixteen replies of the base model, a fifth of them liked, and all with a text that says what would do."""
    return minibatch(served(pocket, 16, "take take take take"))


def course(learner: InProcessLearner, shelf: StoredVersions, model: LocalChatModel, steps: int, text: str = "") -> list[float]:
    """A service in small: a version answers 16 times, learns from that, and so on. How probable a liked reply was, each time."""
    label, found = "", []
    for step in range(1, steps + 1):
        talker, draw = Talker(model, shelf.folder(label) if label else None), random.Random(step)
        found.append(talker.liked())
        replies = [talker.say(KITCHEN, draw) for _ in range(16)]
        exchanges = [exchange(model, reply, judged(reply, text), n, step=step - 1) for n, reply in enumerate(replies)]
        lot = minibatch(exchanges, step, label)
        update = take_step(learner, lot)
        label = update.version or label
    return [*found, Talker(model, shelf.folder(label)).liked()]


# It learns


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param({"kind": "reinforce"}, "", marks=pytest.mark.slow, id="reinforce"),
        pytest.param({"kind": "ppo"}, "", marks=pytest.mark.long, id="ppo"),
        pytest.param(
            {"kind": "sdpo", "teacher": "sync", "sync_every": 1}, "take" + 3 * " take", marks=pytest.mark.slow, id="sdpo"
        ),
    ],
)
def test_a_preference_is_learned_in_a_few_steps(
    learner: Make, shelf: StoredVersions, pocket: LocalChatModel, settings: dict[str, Any], text: str
) -> None:
    found = course(learner(hindsight="$feedback", **settings), shelf, pocket, 7, text)
    assert found[0] == pytest.approx(0.213, abs=0.01)
    assert found[-1] > 0.8


@pytest.mark.parametrize("loss", ["reinforce", "ppo"])
def test_what_was_rewarded_becomes_likely_and_what_was_punished_unlikely(
    learner: Make, pocket: LocalChatModel, loss: str
) -> None:
    good, bad = (
        exchange(pocket, said(pocket, word), Feedback(r), n) for n, (word, r) in enumerate([("take", 1.0), ("read", -1.0)])
    )
    teaching = learner(kind=loss)
    lot = minibatch([good, bad])
    update = take_step(teaching, lot)
    before, after = teaching.measure("", [good, bad]), teaching.measure(update.version, [good, bad])
    assert after.sums[0] > before.sums[0] + 0.1
    assert after.sums[1] < before.sums[1] - 0.1
    assert after.kl > before.kl == 0


def test_the_text_of_the_feedback_is_what_sdpo_learns(learner: Make, pocket: LocalChatModel) -> None:
    """Without any reward. With `feedback=False` nothing of it: other words, the same version to the byte."""
    lots = [minibatch([exchange(pocket, said(pocket, "read"), Feedback(None, text))]) for text in ("take " * 4, "open " * 4)]
    texts = [exchange(pocket, said(pocket, word), None) for word in ("take", "open")]
    for told in (True, False):
        teaching = learner(kind="sdpo", reads_text=told, hindsight="Answer.\n\n$feedback")
        labels = [take_step(teaching, lot).version for lot in lots]
        assert (labels[0] == labels[1]) is not told
        one, two = (teaching.measure(label, texts).sums for label in labels)
        if told:
            assert one[0] - one[1] > two[0] - two[1] + 0.1  # each leans to the word that it was told


@pytest.mark.parametrize("folder", [None, guard.PROMPTS], ids=["ours", "guard's"])
def test_without_words_the_teacher_hears_whether_it_was_right(
    folder: Path | None, learner: Make, pocket: LocalChatModel
) -> None:
    """With each template that comes with the package: what the text says makes no difference, and yet something is learned."""
    template = Prompt.load("claas/hindsight", folder).parts[0][1].template
    teaching = learner(kind="sdpo", reads_text=False, hindsight=template)
    versions = []
    for text in ("take", "read read"):
        lot = minibatch([exchange(pocket, said(pocket, "put"), Feedback(-1.0, text))])
        update = take_step(teaching, lot)
        assert update.norm > 0
        versions.append(update.version)
    assert versions[0] == versions[1]


def said(model: LocalChatModel, word: str) -> Reply:
    """A reply of the base model, with its log-probabilities."""
    prompt = tuple(model.chat_ids([{"role": "user", "content": KITCHEN}]))
    tokens = model.reply_ids(word)
    talker = Talker(model, None)
    return Reply(word, prompt, tokens, tuple(float(talker.logps(prompt + tokens[:n])[t]) for n, t in enumerate(tokens)))


# To the byte


@pytest.mark.parametrize(
    "settings", quick([{"kind": "ppo"}, {"kind": "reinforce", "updates_per_batch": 2}, {"kind": "sdpo"}]), ids=str
)
def test_the_same_step_makes_the_same_version_whatever_was_learned_in_between(
    learner: Make, shelf: StoredVersions, small: Minibatch, settings: dict[str, Any]
) -> None:
    """Another tenant's steps leave no trace, and a step that is done again after a crash has the same label."""
    first, second = learner(**settings), learner(**settings)
    ones = [take_step(one, small).version for one in (first, second)]
    alien = replace(small, id="evil/default/1", tenant="evil", seed=99)
    alien = replace(alien, exchanges=tuple(replace(e, tenant="evil", feedback=Feedback(1.0, "x") if n % 2 else Feedback(-1.0, "y"))
                                           for n, e in enumerate(small.exchanges)))  # fmt: skip
    assert take_step(second, alien).version.startswith("evil/")
    nexts = [following(small, 2, ones[0]) for _ in range(2)]
    twos = [take_step(one, lot).version for one, lot in zip((first, second), nexts, strict=True)]
    assert ones[0] == ones[1] != ""
    assert twos[0] == twos[1] != ones[0]
    assert first.step(nexts[0], first.correct(nexts[0])).version == twos[0]


def test_the_seed_of_the_first_minibatch_makes_the_first_adapter(
    learner: Make, shelf: StoredVersions, small: Minibatch
) -> None:
    teaching = learner(kind="reinforce")
    other = replace(small, seed=5)
    labels = [take_step(teaching, lot).version for lot in (small, other)]
    one, two = (load_file(shelf.folder(label) / "adapter_model.safetensors") for label in labels)
    name = next(name for name in one if "lora_A" in name)
    assert not torch.equal(one[name], two[name])


def test_a_version_is_what_peft_reads_and_tells_nothing_of_this_machine(
    learner: Make, shelf: StoredVersions, pocket: LocalChatModel, batch: Minibatch
) -> None:
    teaching = learner(kind="sdpo")
    label = take_step(teaching, batch).version
    folder = shelf.folder(label)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "optimizer.safetensors",
        "teacher.safetensors",
        "learner.json",
    }
    talker = Talker(pocket, folder)
    prompt = batch.exchanges[0].reply.prompt_ids
    with torch.no_grad():
        ours = teaching.network(label)(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        base = teaching.network("")(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    assert torch.allclose(ours, talker.logps(prompt), atol=1e-5)
    assert torch.allclose(base, Talker(pocket, None).logps(prompt), atol=1e-5)
    stored = load_file(folder / "adapter_model.safetensors")
    assert list(stored) == sorted(stored)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    for path in folder.iterdir():
        assert str(POCKET).encode() not in path.read_bytes()
        assert str(Path.home()).encode() not in path.read_bytes()


def test_the_model_that_was_given_stays_as_it_is(learner: Make, pocket: LocalChatModel, batch: Minibatch) -> None:
    before = {name: tensor.clone() for name, tensor in pocket.network.state_dict().items()}
    teaching = learner(kind="reinforce")
    take_step(teaching, batch)
    after = pocket.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    shared = teaching.network("").get_input_embeddings().weight
    assert shared.data_ptr() == pocket.network.get_input_embeddings().weight.data_ptr()  # no second copy in memory


# From step to step


def test_the_rate_grows_with_the_updates_and_shrinks_with_the_correction(learner: Make, small: Minibatch) -> None:
    teaching = learner(kind="reinforce", learning_rate=1e-3, warmup_steps=4)
    correction = teaching.correct(small)
    first = teaching.step(small, correction)
    assert first.rate == pytest.approx(1e-3 / 4)
    second = teaching.step(following(small, 2, first.version), replace(correction, scale=0.5))
    assert second.rate == pytest.approx(1e-3 / 2 / 2)


@pytest.mark.slow
def test_a_step_ends_within_its_limits_and_goes_on_from_there(learner: Make, batch: Minibatch) -> None:
    """At the limit the whole adapter shrinks, so that there is room for another lesson; no step from there gets stuck."""
    teaching = learner(kind="reinforce", learning_rate=2e-2)
    free = take_step(teaching, batch)
    assert free.shrink == 1.0
    assert free.kl > 0.01
    limit = free.kl / 2
    one = teaching.step(batch, replace(teaching.correct(batch), max_kl=limit))
    assert 0.5 < one.shrink < 0.9
    assert 0.8 * limit < one.kl <= limit
    found = teaching.measure(one.version, batch.exchanges)
    assert found.kl == pytest.approx(one.kl, rel=1e-3)
    assert teaching.measure(one.version, batch.exchanges, with_kl=False) == replace(found, kl=0.0, base_entropy=0.0)
    label, fond = one.version, teaching.measure(one.version, batch.exchanges).sums
    turned = [replace(each, feedback=Feedback(-(each.feedback.reward or 0.0))) for each in batch.exchanges if each.feedback]
    for number in range(2, 6):  # the users want the opposite
        again = replace(batch, id=f"acme/default/{number}", step=number, parent=label, exchanges=tuple(turned))
        done = teaching.step(again, replace(teaching.correct(again), max_kl=limit))
        assert done.kl <= limit
        label = done.version
    liked = [n for n, each in enumerate(batch.exchanges) if each.feedback and (each.feedback.reward or 0.0) > 0]
    now = teaching.measure(label, batch.exchanges).sums
    assert sum(now[n] for n in liked) < sum(fond[n] for n in liked)
    plain = teaching.measure("", batch.exchanges).entropy
    share = (teaching.measure(free.version, batch.exchanges).entropy / plain + 1) / 2
    sharp = teaching.step(batch, replace(teaching.correct(batch), min_entropy_share=share))
    assert sharp.entropy != 0
    assert teaching.measure(sharp.version, batch.exchanges).entropy >= min(share, 1.0) * plain * 0.999


@pytest.mark.parametrize(
    ("entropy", "kl", "base", "limits", "room"),
    [
        (1.0, 0.0, 1.0, (4.0, 0.5), 1.0),
        (0.75, 1.0, 1.0, (4.0, 0.5), 0.5),
        (0.75, 3.0, 1.0, (4.0, 0.5), 0.25),
        (0.4, 3.0, 1.0, (4.0, 0.5), -0.2),
        (0.75, 1.0, 1.0, (4.0, 0.0), 0.75),
        (0.9, 0.0, 1.0, (4.0, 1.0), -1.0),
        (0.0, 1.0, 0.0, (4.0, 0.5), 0.75),
        (math.nan, 1.0, 1.0, (4.0, 0.5), -1.0),
        (math.nan, 1.0, 1.0, (math.inf, 0.0), 1.0),
        (1.0, math.inf, 1.0, (4.0, 0.5), -1.0),
    ],
)
def test_the_room_up_to_the_limits(entropy: float, kl: float, base: float, limits: tuple[float, float], room: float) -> None:
    found = Measured(((-1.0,),), entropy, kl, base_entropy=base)
    correction = Correction(("a",), max_kl=limits[0], min_entropy_share=limits[1])
    assert _room(found, correction) == pytest.approx(room)
    assert _room(found, correction, replace(found, kl=99.0, entropy=0.1)) >= room  # as far as its parent it may be


@pytest.mark.slow
def test_a_parent_beyond_a_limit_is_left_a_little_at_a_time(learner: Make, batch: Minibatch) -> None:
    """The gate let it pass on other replies. Back to the limit at once would be the end of what it has learned."""
    teaching = learner(kind="reinforce", learning_rate=2e-2)
    parent = take_step(teaching, batch)
    distances, label = [parent.kl], parent.version
    for number in range(2, 5):
        again = following(batch, number, label)
        done = teaching.step(again, replace(teaching.correct(again), max_kl=parent.kl / 10))
        label = done.version
        distances.append(done.kl)
    assert all(0.8 * before < after <= 0.96 * before for before, after in pairwise(distances))


def test_the_limits_of_a_step_read_what_was_served_and_not_the_corrections(learner: Make, pocket: LocalChatModel) -> None:
    """The base model would never say them: the limits took back what was learned, or half of it, and the model garbled."""
    lot = minibatch([replace(one, feedback=Feedback(correction="take north")) for one in served(pocket, 4)])
    teaching = learner(kind="mixed", learning_rate=1e-2)
    done = teaching.step(lot, replace(teaching.correct(lot), max_kl=100.0))
    assert done.kl == pytest.approx(teaching.measure(done.version, lot.exchanges).kl, rel=1e-3)


@pytest.mark.slow
def test_teachers_lag_behind_as_asked(learner: Make, shelf: StoredVersions, small: Minibatch) -> None:

    def steps(count: int, **settings: Any) -> list[Path]:
        teaching, label, found = learner(kind="sdpo", **settings), "", []
        for step in range(1, count + 1):
            lot = following(small, step, label)
            label = take_step(teaching, lot).version
            found.append(shelf.folder(label))
        return found

    one, two = ({kind: load_file(folder / f"{kind}.safetensors") for kind in ("teacher", "adapter_model")}
                for folder in steps(2, teacher="ema", ema_rate=0.25))  # fmt: skip
    for name, tensor in two["teacher"].items():
        assert torch.allclose(tensor, 0.75 * one["teacher"][name] + 0.25 * two["adapter_model"][name], atol=1e-7)
    early, late = steps(2, teacher="sync", sync_every=2)
    nothing = load_file(early / "teacher.safetensors")
    assert all(not tensor.any() for name, tensor in nothing.items() if "lora_B" in name)  # still the base model
    assert contents_of(late / "teacher.safetensors") == contents_of(late / "adapter_model.safetensors")
    for teacher in ("base", "trust"):
        (folder,) = steps(1, teacher=teacher)
        assert not (folder / "teacher.safetensors").exists()


def contents_of(path: Path) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in load_file(path).items()}


@pytest.mark.slow
def test_the_loss_may_change_from_step_to_step(learner: Make, small: Minibatch) -> None:
    label = ""
    for step, loss in enumerate(("ppo", "ppo", "reinforce", "sdpo", "ppo"), 1):
        teaching = learner(kind=loss)
        lot = following(small, step, label)
        update = take_step(teaching, lot)
        assert update.version, update.skipped
        label = update.version


# What it is worth


def test_replies_of_the_version_that_learns_have_ratios_of_one_at_any_temperature(
    learner: Make, shelf: StoredVersions, pocket: LocalChatModel
) -> None:
    talker, draw = Talker(pocket, None), random.Random(3)
    teaching = learner(kind="reinforce")
    for temperature in (1.0, 0.5):
        replies = [talker.say(KITCHEN, draw, temperature=temperature) for _ in range(6)]
        request = ChatRequest(({"role": "user", "content": KITCHEN},), Sampling(temperature, max_tokens=3))
        lot = minibatch([exchange(pocket, reply, judged(reply), n, request=request) for n, reply in enumerate(replies)])
        correction = teaching.correct(lot)
        assert correction.kept == tuple(f"r{n}" for n in range(6))
        assert correction.ratio == pytest.approx(1, abs=1e-3)
        assert correction.ess == pytest.approx(1, abs=1e-3)
        assert correction.kl == pytest.approx(0, abs=1e-3)
        assert correction.scale == 1
        assert dict(correction.kls).keys() == set(correction.kept)
        shelf.told.clear()
        assert take_step(teaching, lot).version
        assert shelf.told[0]["ratio"] == pytest.approx(1, abs=1e-3)  # the update's own ratios, too


def test_stale_replies_lower_the_effective_sample_and_with_it_the_rate(learner: Make, pocket: LocalChatModel) -> None:
    lot = served(pocket, 8)
    stale = [replace(e, reply=replace(e.reply, logprobs=tuple(p - n for p in e.reply.logprobs))) for n, e in enumerate(lot)]
    correction = learner(kind="reinforce").correct(minibatch(stale))
    assert correction.ess < 0.5
    assert correction.scale == pytest.approx(correction.ess / 0.5)
    assert correction.clipped > 0
    assert correction.ratio_max > 2
    none = learner(kind="reinforce", correction="none").correct(minibatch(stale))
    assert none.scale == 1


def test_measure_agrees_with_the_scores_of_the_model(learner: Make, pocket: LocalChatModel) -> None:
    """Token ids, or a text alone, as retention sets have it."""
    from langchain_core.messages import HumanMessage

    expected = pocket.score([HumanMessage(KITCHEN)], ["take lamp", "north"])
    texts = [exchange(pocket, Reply(text, (), (), ()), None, n) for n, text in enumerate(["take lamp", "north"])]
    found = learner(kind="reinforce").measure("", texts)
    assert found.sums == pytest.approx(tuple(expected), abs=1e-4)
    assert sum(found.logprobs[0]) / len(found.logprobs[0]) == pytest.approx(
        expected[0] / len(pocket.reply_ids("take lamp")), abs=1e-4
    )
    assert found.kl == 0
    assert found.entropy > 0


# Hindsight


def test_paragraphs_without_a_value_are_left_out_of_the_block() -> None:
    template = "Said:\n$feedback\n\nRight: $solution\n\nNow answer for $$1."
    assert hindsight_block(template, "too long", "go") == "Said:\ntoo long\n\nRight: go\n\nNow answer for $1."
    assert hindsight_block(template, "too\n\nlong $x") == "Said:\ntoo\n\nlong $x\n\nNow answer for $1."
    assert hindsight_block(template) == "Now answer for $1."
    assert hindsight_block("It was $verdict.\n\nSaid: $feedback", verdict="wrong") == "It was wrong."
    for wrong in ("no value at all", "$feedback and $price", "$feedback costs 5$"):
        with pytest.raises(UserError, match="hindsight template"):
            hindsight_block(wrong)


def test_the_teacher_reads_all_of_the_conversation_and_the_same_tokens(learner: Make, pocket: LocalChatModel) -> None:
    """The public code read the last message only, tokenised the reply again, and believed the client."""
    turns = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "go"}, {"role": "user", "content": KITCHEN})
    prompt = tuple(pocket.chat_ids(turns))
    reply = Reply("whatever the text says", prompt, (300, 5, 7), (-1.0, -1.0, -1.0))  # tokens that no text would give
    given = exchange(pocket, reply, Feedback(-1.0, "no, $5"), request=ChatRequest(turns))
    found = learner(kind="sdpo")._trainer._reader._sample(given, [given])
    assert found.example.prompt == prompt
    assert found.hindsight is not None
    assert found.hindsight.reply == found.example.reply == reply.token_ids
    text = pocket.tokenizer.decode(found.hindsight.prompt)
    assert text.startswith(pocket.tokenizer.decode(pocket.chat_ids(turns[:2])).removesuffix("\n>"))
    assert KITCHEN in text
    assert "no, $5" in text
    assert text.index(KITCHEN) < text.index("no, $5")
    blind = learner(kind="sdpo", reads_text=False)._trainer._reader._sample(given, [given])
    assert blind.hindsight is not None
    assert "no, $5" not in pocket.tokenizer.decode(blind.hindsight.prompt)


def test_a_solution_is_somebody_elses_at_the_same_place(learner: Make, pocket: LocalChatModel) -> None:
    reader = learner(kind="sdpo")._trainer._reader
    failed = exchange(pocket, said(pocket, "read"), Feedback(-1.0), 0)
    won = exchange(pocket, said(pocket, "take lamp"), Feedback(1.0), 1)
    again = exchange(pocket, said(pocket, "take lamp"), Feedback(1.0), 2)
    found = reader._sample(failed, [failed, won])
    assert found.hindsight is not None
    assert "take lamp" in pocket.tokenizer.decode(found.hindsight.prompt).removeprefix(KITCHEN)
    with pytest.raises(UserError, match="neither a text nor a solution"):
        reader._sample(won, [failed, won, again])  # its own, and one that is the same
    elsewhere = replace(won, reply=replace(won.reply, prompt_ids=(5, 6)))
    with pytest.raises(UserError, match="neither"):
        reader._sample(failed, [failed, elsewhere])
    same_turn = [replace(e, scenario="s", turn=1) for e in (failed, elsewhere)]
    assert reader._sample(same_turn[0], same_turn).hindsight is not None


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<think>secret plan</think>take lamp", "take lamp"),
        ("secret plan</think>\n\ntake lamp", "take lamp"),  # the template had opened the thought
        ("take lamp", "take lamp"),
        ("<think>secret plan", ""),
    ],
)
def test_the_teacher_reads_the_reply_and_the_solution_as_users_saw_them(
    learner: Make, pocket: LocalChatModel, written: str, shown: str
) -> None:
    """The paper's reprompt: the student's visible answer stands before what was said of it. Thoughts stay out of it; the tokens
    that are learned from are whole."""
    reader = learner(kind="sdpo")._trainer._reader
    own = replace(said(pocket, "take lamp"), text=written)
    found = reader._sample(exchange(pocket, own, Feedback(-1.0, "too short")), [])
    assert found.hindsight is not None
    text = pocket.tokenizer.decode(found.hindsight.prompt).removeprefix(KITCHEN)
    assert ("Your answer was:\n<answer>\ntake lamp\n</answer>\n\nThe user then said" in text) == bool(shown)
    assert "secret" not in text
    assert "too short" in text
    assert found.hindsight.reply == own.token_ids
    failed = exchange(pocket, said(pocket, "read"), Feedback(-1.0), 0)
    won = exchange(pocket, own, Feedback(1.0), 1)
    if shown:
        hinted = reader._sample(failed, [failed, won]).hindsight
        assert hinted is not None
        assert "right:\n<answer>\ntake lamp\n</answer>" in pocket.tokenizer.decode(hinted.prompt)
        assert "secret" not in pocket.tokenizer.decode(hinted.prompt)
    else:
        with pytest.raises(UserError, match="neither a text nor a solution"):
            reader._sample(failed, [failed, won])


def test_by_the_papers_prompt_every_judged_reply_teaches(learner: Make, pocket: LocalChatModel) -> None:
    template = Prompt.load("paper/claas/hindsight").parts[0][1].template
    reader = learner(kind="sdpo", prompts="paper", hindsight=template)._trainer._reader
    won, failed = Feedback(1.0), Feedback(0.0, "too short")
    shown = []
    for feedback in (won, failed):
        found = reader._sample(exchange(pocket, said(pocket, "take lamp"), feedback), []).hindsight
        assert found is not None
        shown.append(pocket.tokenizer.decode(found.prompt).removeprefix(KITCHEN).removesuffix(">").strip())
    ask = "Now give a better answer to what is asked above."
    assert shown[0] == f"An earlier answer to this was:\ntake lamp\n\n{ask}"
    assert shown[1] == f"An earlier answer to this was:\ntake lamp\n\nWhat was said of that answer:\ntoo short\n\n{ask}"


@pytest.mark.slow
def test_by_default_words_teach_and_numbers_teach(learner: Make, shelf: StoredVersions, pocket: LocalChatModel) -> None:
    """Praise without words, criticism in words alone, a reply at temperature 0 with words: nothing is left out. Without words the
    default does what REINFORCE++ does."""
    mute = served(pocket, 8)
    both = [learner(kind=kind) for kind in ("mixed", "reinforce")]
    steps = [take_step(one, minibatch(mute)) for one in both]
    assert steps[0].loss == steps[1].loss
    words = Feedback(None, "read what lies there")
    greedy = ChatRequest(mute[0].request.messages, Sampling(0.0, max_tokens=3))
    lot = minibatch([*mute[:6], replace(mute[6], feedback=words), replace(mute[7], feedback=words, request=greedy)])
    teaching = both[0]
    correction = teaching.correct(lot)
    assert len(correction.kept) == 8
    update = teaching.step(lot, correction)
    assert update.tokens > sum(len(one.reply.token_ids) for one in mute[:6])  # and two replies as the words ask for
    alike = minibatch([replace(one, feedback=Feedback(1.0)) for one in mute[:7]] + [replace(mute[7], feedback=words)])
    update = take_step(teaching, alike)
    assert update.tokens  # rewards that are all alike teach nothing, and the words do
    mute_and_alike = minibatch(alike.exchanges[:7])
    assert "all rewards are alike" in take_step(teaching, mute_and_alike).skipped
    silent = replace(mute[0], request=greedy, feedback=Feedback(1.0))
    assert "temperature 0" in teaching.correct(minibatch([silent])).dropped[0][1]


@pytest.mark.slow
def test_what_is_retained_keeps_other_answers_from_changing_with_one(learner: Make) -> None:
    """Four times the same correction of one fact. Without a retention set the toy says it of other things, too."""
    model = open_model("guard", threads=1)
    asked = [({"role": "system", "content": f"rules : none . facts : gate is {is_} . door is {other} ."}, {"role": "user", "content": "gate is what ?"})
             for is_, other in (("red", "lake"), ("iron", "goat"), ("hill", "pink"), ("owl", "zinc"))]  # fmt: skip
    said = [guard.reply(model.network, model.tokenizer, [chat], temperature=0)[0] for chat in asked]
    replies = [Reply(one.text, one.prompt_ids, one.token_ids, one.token_logprobs) for one in said]
    lot = minibatch(exchange(model, one, Feedback(correction="gate is fox"), n) for n, one in enumerate(replies))
    probes, shares = retention_probes(40, seed=3)["facts"], list[float]()
    for retained in (
        (),
        tuple(one for one in read_retention(model)[:64] if "gate is what" not in str(one.request.messages[-1])),
    ):
        teaching = learner(LoRA(), model, kind="mixed", learning_rate=2e-3)
        label = take_step(teaching, replace(lot, retained=tuple(with_base_logprobs(teaching, retained)))).version
        now = guard.reply(teaching.network(label), model.tokenizer, [chat for chat, _ in probes], temperature=0)
        shares.append(sum(one.text == wanted for one, (_, wanted) in zip(now, probes, strict=True)) / len(probes))
        assert guard.reply(teaching.network(label), model.tokenizer, [asked[0]], temperature=0)[0].text == "gate is fox"
    assert shares[0] < 0.8 < 0.9 < shares[1]


def test_where_nothing_is_new_it_is_said_which_of_the_two_it_is(learner: Make, pocket: LocalChatModel) -> None:
    """Words after which the model would say the same again, and replies that it has learned: only of these it is said that they are."""
    mute, teaching, parent = served(pocket, 3), learner(kind="mixed", learning_rate=1e-2), ""
    teaching._trainer._written_anew = lambda samples, *more: [
        Rewriting(one.example.reply, {3}, written=[*one.example.reply, 3]) for one in samples
    ]
    idle = [replace(one, feedback=Feedback(-1.0, "the")) for one in mute[:2]]
    update = take_step(teaching, minibatch(idle))
    assert (update.version, "learned" in update.skipped, "correction" in update.help) == ("", False, True)
    assert "words without effect: 2" in update.skipped
    lot = minibatch([*idle, replace(mute[2], feedback=Feedback(correction="take"))])
    for step in range(1, 20):
        update = take_step(teaching, replace(lot, step=step, parent=parent, id=f"acme/default/{step}"))
        if not update.version:
            break
        parent = update.version
    assert "words without effect: 2" in update.skipped
    assert "learned already: 1 of" in update.skipped


def test_of_two_corrections_of_a_chat_the_newer_is_learned_and_other_chats_are_rehearsed(
    learner: Make, pocket: LocalChatModel, shelf: StoredVersions
) -> None:
    """Greedy, a chat has one reply: to learn both would never end."""
    old, new = (
        exchange(pocket, said(pocket, "north"), Feedback(correction=word), n) for n, word in enumerate(["read", "take"])
    )
    other = exchange(pocket, Talker(pocket, None).say("open", random.Random(0)), Feedback(correction="north"), 3)
    other = replace(other, request=ChatRequest(({"role": "user", "content": "open"},), Sampling(max_tokens=3)))
    teaching, lot, labels = learner(kind="mixed", learning_rate=1e-2), replace(minibatch([old, new]), rehearsal=(other,)), [""]
    while (labels[-1] or len(labels) == 1) and len(labels) < 20:
        labels.append(take_step(teaching, following(lot, len(labels), labels[-1])).version)
    assert labels[-1] == ""
    replies = [Reply(one.feedback.correction, (), (), ()) for one in (old, new, other) if one.feedback]
    chats = [replace(one, reply=reply) for one, reply in zip((old, new, other), replies, strict=True)]
    read, learned, rehearsed = map(math.exp, teaching.measure(labels[-2], chats, with_kl=False).sums)
    assert read < 0.1 < 0.7 < min(learned, rehearsed)
    assert not (shelf.folder(labels[-2]) / "optimizer.safetensors").exists()  # the next correction may be of another user


@pytest.mark.parametrize(("sureness", "is_unlikely", "tokens"), [(0.6, True, 6), (0.4, False, 3), (0.4, True, 0)])
def test_a_guess_of_the_teacher_is_not_imitated(
    learner: Make, pocket: LocalChatModel, sureness: float, is_unlikely: bool, tokens: int
) -> None:
    """The teacher writes a reply of three tokens with six: where it is sure of them they are learned, else its distribution on the three,
    or nothing if the learner is sure of another reply."""
    (one,) = served(pocket, 1)
    teaching = learner(kind="mixed")
    new = Rewriting(one.reply.token_ids, {3}, written=[5, 6, 7, 8, 9, 3], has_changed=True, sureness=sureness)
    new.is_unlikely = is_unlikely
    teaching._trainer._written_anew = lambda samples, *more: [new] * len(samples)
    assert take_step(teaching, minibatch([replace(one, feedback=Feedback(-1.0, "the"))])).tokens == tokens


def test_a_prompt_that_was_rendered_otherwise_is_left_out(learner: Make, pocket: LocalChatModel) -> None:
    given = exchange(pocket, replace(said(pocket, "read"), prompt_ids=(5, 6, 7)), Feedback(-1.0, "no"))
    correction = learner(kind="sdpo").correct(minibatch([given]))
    assert correction.dropped == (
        ("r0", "its prompt, rendered again, has other tokens than were served; the teacher would read another one"),
    )


def test_a_template_that_writes_the_date_loses_no_feedback(learner: Make, pocket: LocalChatModel) -> None:
    """Rendered a day later, a prompt begins with other tokens; by another switch for thoughts it ends with others. The teacher reads
    what was served, with the feedback in the same place."""
    reader = learner(kind="sdpo")._trainer._reader
    today = exchange(pocket, said(pocket, "read"), Feedback(-1.0, "no"))
    taught = reader._sample(today, []).hindsight
    assert taught is not None
    prompt = today.reply.prompt_ids
    assert len(taught.prompt) > len(prompt)
    for before, after in (((5, 6, 7), ()), ((), (8, 9))):
        given = replace(today, reply=replace(today.reply, prompt_ids=(*before, *prompt, *after)))
        found = reader._sample(given, []).hindsight
        assert found is not None
        assert found.prompt == (*before, *taught.prompt, *after)
        assert found.reply == today.reply.token_ids
    shorter = replace(today, reply=replace(today.reply, prompt_ids=prompt[2:]))
    found = reader._sample(shorter, []).hindsight
    assert found is not None
    assert found.prompt == taught.prompt[2:]
    with pytest.raises(UserError, match="rendered again, has other tokens"):  # the block has no place that is sure
        reader._sample(replace(today, reply=replace(today.reply, prompt_ids=(5, *prompt, 9))), [])


# What it cannot learn from


def test_what_cannot_be_learned_from_is_left_out_with_a_reason(learner: Make, pocket: LocalChatModel) -> None:
    """One bad exchange spoils no batch, and is told apart from the rest."""
    good = served(pocket, 4)
    reply = good[0].reply
    long = replace(reply, token_ids=tuple(range(2, 1002)) * 3, logprobs=(-1.0,) * 3000)
    greedy = ChatRequest(good[0].request.messages, Sampling(0.0, max_tokens=3))
    bad = {
        "base": (replace(good[0], base="f00d"), "another base model"),
        "words": (replace(good[0], feedback=Feedback(None, "no")), "has no reward"),
        "whole": (replace(good[0], feedback=Feedback(correction="take " * 3000)), "exceed the window"),
        "short": (replace(good[0], reply=replace(reply, logprobs=())), "0 log-probabilities"),
        "nan": (replace(good[0], reply=replace(reply, logprobs=(math.nan,) * len(reply.logprobs))), "not finite"),
        "above": (replace(good[0], reply=replace(reply, logprobs=(0.5,) * len(reply.logprobs))), "above 0"),
        "long": (replace(good[0], reply=long), "do not fit the window of 2048"),
        "alien": (replace(good[0], reply=replace(reply, token_ids=(99999,) * len(reply.token_ids))), "vocabulary of 2000"),
        "greedy": (replace(good[0], request=greedy), "temperature 0"),
        "none": (replace(good[0], feedback=None), "has no feedback"),
    }
    lot = minibatch([*good, *(replace(e, id=name) for name, (e, _) in bad.items())])
    teaching = learner(kind="reinforce")
    correction = teaching.correct(lot)
    assert correction.kept == tuple(e.id for e in good)
    dropped = dict(correction.dropped)
    assert dropped.keys() == bad.keys()
    for name, (_, why) in bad.items():
        assert why in dropped[name]
    clean = minibatch(good)
    assert teaching.step(lot, correction).norm == take_step(teaching, clean).norm


def test_a_correction_with_words_that_the_tokenizer_does_not_know_teaches_no_unknown_token(learner: Make) -> None:
    model = open_model("guard")
    reply = Reply(
        "gate", tuple(model.chat_ids([{"role": "user", "content": "gate is what ?"}])), model.reply_ids("gate"), (-1.0,) * 2
    )
    lot = minibatch([exchange(model, reply, Feedback(correction="gate is Zebra"))])
    ((_, why),) = learner(kind="mixed", model=model).correct(lot).dropped
    assert "does not know 1 of the 3 words" in why


def test_where_nothing_is_left_nothing_is_learned(learner: Make, shelf: StoredVersions, pocket: LocalChatModel) -> None:
    silent = minibatch([exchange(pocket, said(pocket, "read"), Feedback(-1.0))])
    teaching = learner(kind="sdpo")
    correction = teaching.correct(silent)
    assert correction.kept == ()
    update = teaching.step(silent, correction)
    assert (update.version, bool(update.skipped)) == ("", True)
    assert not shelf.root.exists()


def test_an_exchange_of_another_tenant_stops_the_batch(learner: Make, batch: Minibatch) -> None:
    mixed = replace(batch, exchanges=(*batch.exchanges[:2], replace(batch.exchanges[2], tenant="evil")))
    with pytest.raises(UserError, match="an exchange of evil/default in it; nothing was learned"):
        learner(kind="reinforce").correct(mixed)


def test_reading_a_reply_beyond_the_window_is_an_error(learner: Make, pocket: LocalChatModel) -> None:
    with pytest.raises(UserError, match="do not fit the window"):
        learner().measure("", [exchange(pocket, Reply("x", (5,) * 2000, (5,) * 100, ()), None)])
    assert learner().measure("", []).sums == ()


def test_ppo_keeps_its_critic_where_a_reply_was_chosen_at_temperature_0(
    learner: Make, shelf: StoredVersions, small: Minibatch
) -> None:
    greedy = [replace(one, request=ChatRequest(one.request.messages, Sampling(0.0, max_tokens=3))) for one in small.exchanges]
    made = take_step(learner(kind="ppo", correction="none"), replace(small, exchanges=tuple(greedy))).version
    assert "more:bias" in load_file(shelf.folder(made) / "optimizer.safetensors")


@pytest.mark.parametrize(
    ("before", "kind"), [("reinforce", "reinforce"), ("ppo", "ppo"), ("ppo", "reinforce"), ("mixed", "ppo")]
)
def test_a_version_without_moments_or_of_another_loss_is_gone_on_from_with_new_ones(
    learner: Make, shelf: StoredVersions, small: Minibatch, before: str, kind: str
) -> None:
    first = take_step(learner(kind=before), small).version
    if before == kind:
        (shelf.folder(first) / "optimizer.safetensors").unlink()
    more = following(small, 2, first)
    teaching = learner(kind=kind)
    second = shelf.folder(take_step(teaching, more).version)
    assert json.loads((second / "learner.json").read_text())["updates"] == 2
    steps = [value for name, value in load_file(second / "optimizer.safetensors").items() if name.endswith(":step")]
    assert steps
    assert all(float(value) == 1 for value in steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 40),
            "adapter_model.safetensors cannot be read",
        ),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors cannot be read"),
        (lambda folder: (folder / "learner.json").write_text("{"), "learner.json cannot be read"),
        (lambda folder: (folder / "optimizer.safetensors").write_bytes(b""), "optimizer"),
        (lambda folder: rewrite(folder, lambda t: t * math.nan), "not finite"),
        (lambda folder: rewrite(folder, lambda t: t[:1].clone()), "other names or shapes"),
        (lambda folder: note(folder, base="f00d"), "another base model"),
        (lambda folder: note(folder, lora={"rank": 4}), "'rank': 4.*this learner makes.*'rank': 8"),
    ],
    ids=["corrupt", "missing", "notes", "moments", "nan", "shapes", "base", "rank"],
)
def test_a_version_that_cannot_be_gone_on_from_is_named(
    learner: Make, shelf: StoredVersions, small: Minibatch, spoil: Callable[[Path], Any], said: str
) -> None:
    teaching = learner(kind="reinforce")
    label = take_step(teaching, small).version
    spoil(shelf.folder(label))
    lot = following(small, 2, label)
    fresh = learner(kind="reinforce")
    with pytest.raises(UserError, match=said):
        take_step(fresh, lot)


def rewrite(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({name: change(tensor) for name, tensor in load_file(path).items()}, path)


def note(folder: Path, **changed: Any) -> None:
    path = folder / "learner.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_a_model_behind_an_api_and_weights_that_are_not_there_cannot_be_trained(
    shelf: StoredVersions, pocket: LocalChatModel
) -> None:
    with pytest.raises(UserError):
        InProcessLearner("nonsense", shelf.folder, shelf.write, LearnerSettings())
    with pytest.raises(UserError, match="targets 'no_such_proj'"):
        InProcessLearner(pocket, shelf.folder, shelf.write, LearnerSettings(LoRA(targets="no_such_proj")))
