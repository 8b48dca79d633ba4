"""LoRA on a network in memory: attach adapters, take one update of them, write and read their files.

An update is `learn`: from served replies and feedback, by the losses of tools/training/losses.py. tools/training/learner.py learns with
it from a replay buffer. (Supervised updates are TRL's: tools/training/sft.py and trl_trainers.py.)
"""

import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...memory.claas.settings import LoRA, Objective
from ...memory.errors import UserError
from .losses import LossInputs, blend, entropy, kl_to, objective_loss, token_logprobs

__all__ = ["Example", "OptimizerStepResult", "ReplyLogprobs", "TrainingSample", "learn"]


@dataclass(frozen=True, slots=True)
class Example:
    """A chat as token ids."""

    prompt: tuple[int, ...]
    """Tokens before the reply; at least one."""
    reply: tuple[int, ...]
    """Tokens of the reply, the end of turn included."""
    temperature: float = 1.0
    """Temperature that the reply was sampled at: its log-probabilities are those of softmax(logits / temperature)."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply)


@dataclass(frozen=True, slots=True)
class OptimizerStepResult:
    """Numbers of one update."""

    statistics: dict[str, float]
    """Those of `objective_loss`, over all tokens."""

    loss: float
    """Loss before the update, in nats per token of the replies."""
    grad_norm: float
    """Length of the gradient before clipping."""
    tokens: int
    """Number of tokens of the replies."""


def _forward_pass(network: Any, examples: Sequence[Example], hidden: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Logits (T_i, V) before the tokens of each reply, and with `hidden` the last hidden states there (T_i, hidden)."""
    fed = [example.prompt + example.reply[:-1] for example in examples]  # nothing follows the last token
    longest = max(map(len, fed))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in fed], device=network.device)  # (examples, longest)
    spans = [(len(example.prompt) - 1, len(example) - 1) for example in examples]  # positions before a reply's tokens
    columns = sorted({column for start, end in spans for column in range(start, end)})  # (columns,)
    more: dict[str, Any] = {"output_hidden_states": True} if hidden else {}
    if "logits_to_keep" in inspect.signature(network.forward).parameters:
        whole = len(columns) == longest - columns[0]  # a slice at the end, which copies nothing
        more["logits_to_keep"] = len(columns) if whole else torch.tensor(columns, device=network.device)
        places = {column: n for n, column in enumerate(columns)}
    else:
        places = {column: column for column in columns}
    out = network(input_ids=ids, use_cache=False, **more)
    # out.logits: (examples, columns or longest, vocabulary)
    logits = [out.logits[n, places[start] : places[start] + end - start] for n, (start, end) in enumerate(spans)]
    if not hidden:
        return logits, []
    last = out.hidden_states[-1].detach().float()  # (examples, longest, hidden)
    return logits, [last[n, start:end] for n, (start, end) in enumerate(spans)]


def attach_lora(network: Any, settings: LoRA, seed: int = 0) -> Any:
    """Attach LoRA adapters to a network, in place; only these are trainable then. Returns PEFT's wrapper.

    A new adapter changes nothing: B = 0. The seed draws A.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError("LoRA needs a package that is not installed: pip install 'learngraph[train]'") from error

    names = [name.strip() for name in settings.targets.split(",") if name.strip()]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.scale,  # type: ignore[arg-type]  # typed int; PEFT only divides it
        target_modules=names if names != ["all-linear"] else "all-linear",
    )
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT uses a deprecated name of transformers
            torch.manual_seed(seed)
            return peft.get_peft_model(network, config)
    except ValueError as error:
        raise UserError(f"lora: targets {settings.targets!r}: {str(error).splitlines()[0]}") from error


def shorten_passes(network: Any) -> None:
    """Let the LoRA layers of `attach_lora` over plain linear ones in float32 compute x W^T + b + s (x A^T) B^T by passes of our own.

    PEFT's make more small operations, which take as long as the products of a small model. Without a gradient, from in * out / (in + out)
    tokens on, it is x (W + s B A)^T + b, which is less work; one layer's sum at a time is in memory.
    """
    for layer in network.modules():
        base = layer.get_base_layer() if hasattr(layer, "lora_A") else None
        if type(base) is torch.nn.Linear and base.weight.dtype == torch.float32:
            layer.forward = partial(_forward_lora, layer, base)


def _forward_lora(layer: Any, base: torch.nn.Linear, x: Tensor) -> Tensor:
    """One layer's outputs; (..., in) -> (..., out)."""
    if layer.disable_adapters:
        return torch.nn.functional.linear(x, base.weight, base.bias)
    a, b, scale = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.scaling["default"]
    rows = x.flatten(0, -2)  # (tokens, in)
    if not torch.is_grad_enabled() and len(rows) * sum(base.weight.shape) >= base.weight.numel():
        return torch.nn.functional.linear(x, torch.addmm(base.weight, b, a, alpha=scale), base.bias)
    plain = torch.nn.functional.linear(rows, base.weight, base.bias)  # (tokens, out)
    return torch.addmm(plain, rows @ a.T, b.T, alpha=scale).view(*x.shape[:-1], base.out_features)


def make_optimizer(
    network: Any,
    learning_rate: float,
    weight_decay: float = 0.0,
    critic: torch.nn.Module | None = None,
    critic_learning_rate: float | None = None,
) -> torch.optim.Optimizer:
    """AdamW over the trainable weights, by name. A critic has a group of its own, without weight decay."""
    trained = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained, "weight_decay": weight_decay, "lr": learning_rate}]
    if critic is not None:
        own = [(f"critic.{name}", weight) for name, weight in critic.named_parameters()]
        groups.append({"params": own, "weight_decay": 0.0, "lr": critic_learning_rate or learning_rate})
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


def make_critic(network: Any) -> torch.nn.Linear:
    """PPO's critic V: the last hidden state before a token -> the reply's expected reward. It starts as 0; (T, hidden) -> (T, 1).

    It reads hidden states without a gradient: its errors do not train the adapter.
    """
    head = torch.nn.Linear(network.config.get_text_config().hidden_size, 1, device=network.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


# Memory of a pass


def activation_bytes(network: Any, tokens: int) -> int:
    """An estimate of the memory that a pass of this many tokens keeps for its backward pass, without its logits: of each layer, for a
    token, 14 vectors as wide as the hidden states and 5 as wide as the feed-forward layer. (A Llama with LoRA on all linear layers, in
    float32; other architectures differ.)"""
    config = network.config.get_text_config(decoder=True)
    hidden, inner = int(config.hidden_size), int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    size = int(next(network.parameters()).element_size())
    return tokens * int(config.num_hidden_layers) * (14 * hidden + 5 * inner) * size


@contextmanager
def _checkpointed_layers(network: Any) -> Iterator[None]:
    """Within the context, the network's layers keep their inputs only, and are computed again in the backward pass, which must be made
    within it, too. (Transformers' own switch needs the training mode, and with it dropout.)"""
    count = network.config.get_text_config(decoder=True).num_hidden_layers
    lists = (each for each in network.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == count)
    layers = list(next(lists, []))
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


# Passes through the network


def pack_by_length(sizes: Sequence[int], max_tokens: int, overhead_tokens: float = 0.0) -> list[list[int]]:
    """The cheapest division of examples into passes: indices of each pass, shortest examples first.

    A pass costs its tokens, padding to its longest example included, and `overhead_tokens` more. No pass has more than `max_tokens`
    tokens, unless it is a single example.
    """
    order = sorted(range(len(sizes)), key=lambda n: (sizes[n], n))
    best: list[tuple[float, int]] = [(0.0, 0)]  # for the first n examples: their cost, and the start of their last pass
    for end in range(1, len(order) + 1):
        longest = sizes[order[end - 1]]
        starts = [at for at in range(end) if at == end - 1 or (end - at) * longest <= max_tokens]
        best.append(min((best[at][0] + (end - at) * longest + overhead_tokens, at) for at in starts))
    found, end = [], len(order)
    while end:
        found.append(order[best[end][1] : end])
        end = best[end][1]
    return found[::-1]


def _pass_overhead_tokens(network: Any) -> float:
    """The fixed cost of a pass, in tokens: on a CPU 10 to 60 (models of 1 and 21 million weights); elsewhere passes are filled up."""
    return 40.0 if network.device.type == "cpu" else 1e9


@dataclass(frozen=True)
class ReplyLogprobs:
    """Log-probabilities and entropies of a network on a reply of T tokens, in float32 on the CPU."""

    logprobs: Tensor
    """(T,), log pi(y_t) in nats."""
    entropy: Tensor
    """(T,), in nats."""
    first: int = -1
    """The likeliest first token."""
    kl: Tensor | None = None
    """(T,), KL(pi || base) in nats; None: not asked for."""
    values: Tensor | None = None
    """(T,), the critic's values; None: no critic."""
    base_entropy: Tensor | None = None
    """(T,), of the base model in nats; None: not asked for."""
    score: Tensor | None = None
    """(hidden,), sum_t of w(y_t) - sum_v pi(v) w(v), w the output embeddings: the gradient of log pi(y) by a bias on the last hidden
    state; None: not asked for."""


def _read_packs(
    network: Any, examples: Sequence[Example], max_tokens: int = 2048, hidden: bool = False
) -> Iterator[tuple[int, Tensor, Any]]:
    """Index, logits (T, V) and with `hidden` the last hidden states (T, hidden) of each reply, pack by pack."""
    for pack in pack_by_length([len(example) for example in examples], max_tokens, _pass_overhead_tokens(network)):
        logits, states = _forward_pass(network, [examples[n] for n in pack], hidden)
        yield from ((n, logits[place], states[place] if hidden else None) for place, n in enumerate(pack))


def reply_logits(network: Any, examples: Sequence[Example]) -> list[Tensor]:
    """Logits of replies, (T, V) each and held all at once, without a gradient."""
    with torch.inference_mode():
        found = {n: logits.clone() for n, logits, _ in _read_packs(network, examples)}  # without the padding
    return [found[n] for n in range(len(examples))]


def reply_logprobs(
    network: Any,
    examples: Sequence[Example],
    *,
    base: Sequence[Tensor] | None = None,
    critic: torch.nn.Module | None = None,
    with_scores: bool = False,
    max_tokens: int = 2048,
) -> list[ReplyLogprobs]:
    """Log-probabilities of replies without a gradient: log pi_old before an update, or the numbers of a gate.

    They are those at the replies' temperatures; entropies and KL are those at 1.

    Args:
        network: the network, with the weights to evaluate.
        examples: each has at least one token of reply.
        base: the base model's logits of each reply (`reply_logits`), to measure KL(pi || base) and its entropy.
        critic: gives values from the hidden states.
        with_scores: what each reply says, as a vector: see `ReplyLogprobs.score`.
        max_tokens: tokens that share a pass, padding included.
    """
    found: dict[int, ReplyLogprobs] = {}
    with torch.inference_mode():
        for n, own, states in _read_packs(network, examples, max_tokens, critic is not None):
            example = examples[n]
            targets = torch.tensor(example.reply, device=own.device)  # (T,)
            logprobs = token_logprobs(own / example.temperature, targets).cpu()  # (T,)
            values = critic(states)[:, 0].cpu() if critic is not None else None  # (T,)
            found[n] = ReplyLogprobs(logprobs, entropy(own).cpu(), int(own[0].argmax()), values=values)
            if with_scores:
                words = network.get_output_embeddings().weight  # (V, hidden)
                expected = own.to(words).softmax(-1) @ words  # (T, hidden)
                found[n] = replace(found[n], score=(words[targets] - expected).sum(0).float().cpu())
            if base is not None:
                found[n] = replace(found[n], kl=kl_to(base[n], own).cpu(), base_entropy=entropy(base[n]).cpu())
    return [found[n] for n in range(len(examples))]


# One update from feedback


@dataclass(frozen=True)
class TrainingSample:
    """A served reply of T tokens, to learn from."""

    example: Example
    """Prompt and reply as they were served."""
    behaviour_logprobs: Tensor | None = None
    """(T,), log mu(y_t), recorded at sampling; None: the learner has just sampled it, or it was not drawn (temperature 0)."""
    old_logprobs: Tensor | None = None
    """(T,), log pi_old(y_t), by `reply_logprobs`; None: those of this update's own pass."""
    advantage: Tensor | None = None
    """(T,), by `compute_advantages`: for `reinforce` and `ppo`."""
    hindsight: Example | None = None
    """For `sdpo`: the prompt with the feedback, and the same reply; None: there is no feedback to read."""
    returns: Tensor | None = None
    """(T,), by `compute_advantages`: targets of the critic."""
    reward: float | None = None
    """r of the feedback; None: there is none that can be learned from."""
    id: str = field(default="", kw_only=True)
    """Of the exchange."""

    @property
    def is_wanted(self) -> bool:
        """True if it is not the reply that was served, but the one that should have been, to be imitated."""
        return self.advantage is not None and self.behaviour_logprobs is None and self.hindsight is None


Switch = Callable[[], AbstractContextManager[Any]]
"""`with switch():` gives the network other weights: the teacher's, or the base model's."""


def learn(
    network: Any,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[TrainingSample],
    objective: Objective,
    *,
    scale: float = 1.0,
    teacher: Switch | None = None,
    base: Switch | None = None,
    critic: torch.nn.Module | None = None,
    max_tokens: int = 2048,
) -> OptimizerStepResult:
    """One update of an objective: losses pack by pack, one gradient, AdamW.

    The gradient is that of the mean over all tokens learned from, however they are packed; one pack's graph is held at a time.
    Passes of the teacher and of the base model are made only where the objective needs them.

    Args:
        network: a causal model whose trainable parameters are the optimizer's.
        optimizer: steps on the gradient.
        samples: replies to learn from; for `sdpo` those without a hindsight are left out.
        objective: the loss and its settings.
        scale: factor of every group's learning rate in this update: warm-up times the correction's scale.
        teacher: makes the network the teacher.
        base: makes the network the base model.
        critic: for `ppo`.
        max_tokens: tokens that share a pass, padding included.

    Raises:
        UserError: the gradient is not finite (nothing was changed); nothing to learn from; an input is missing.
    """
    if objective.uses_words:
        rewarded = objective.uses_rewards
        samples = [one for one in samples if one.hindsight is not None or (rewarded and one.advantage is not None)]
    tokens = sum(len(sample.example.reply) for sample in samples)
    if not tokens:
        raise UserError("nothing to learn from: no reply has feedback that this loss can use")
    if (objective.needs_base and base is None) or (objective.needs_teacher and teacher is None):
        raise UserError(
            f"the objective {objective.kind} with the teacher {objective.teacher.kind!r} needs base and teacher passes"
        )
    optimizer.zero_grad(set_to_none=True)
    total, ratio_max, sums = 0.0, 0.0, dict[str, float]()
    for pack in pack_by_length([len(sample.example) for sample in samples], max_tokens, _pass_overhead_tokens(network)):
        part = [samples[n] for n in pack]
        size = len(part) * max(len(sample.example) for sample in part)  # padding included
        is_large = activation_bytes(network, size) > objective.activation_gib * 2**30
        with _checkpointed_layers(network) if is_large else nullcontext():
            batch = _loss_inputs(network, part, objective, teacher=teacher, base=base, critic=critic)
            share, statistics = objective_loss(batch, objective, tokens)  # ()
            share.backward()  # type: ignore[no-untyped-call]
        total += float(share.detach())
        ratio_max = max(ratio_max, statistics.pop("ratio_max"))
        for name, value in statistics.items():
            sums[name] = sums.get(name, 0.0) + value * statistics["tokens"]
        del share, batch
    norm = _optimizer_step(optimizer, objective.max_grad_norm, total, scale)
    means = {name: value / tokens for name, value in sums.items() if name != "tokens"}
    return OptimizerStepResult(means | {"ratio_max": ratio_max}, total, norm, tokens)


def _loss_inputs(
    network: Any,
    samples: Sequence[TrainingSample],
    objective: Objective,
    *,
    teacher: Switch | None,
    base: Switch | None,
    critic: torch.nn.Module | None,
) -> list[LossInputs]:
    """The passes of one pack: teacher and base model without a gradient, then the learner with one."""
    examples = [sample.example for sample in samples]
    prompts = [sample.hindsight for sample in samples if sample.hindsight is not None and objective.uses_words]
    taught = iter(_teacher_logits(network, prompts, objective, teacher, base) if prompts else ())
    plain: Sequence[Tensor | None] = [None] * len(samples)
    if objective.kl_weight > 0 and base is not None:
        with torch.no_grad(), base():
            plain = _forward_pass(network, examples)[0]
    logits, states = _forward_pass(network, examples, critic is not None)
    return [
        LossInputs(
            logits=logits[n],
            tokens=torch.tensor(sample.example.reply, device=logits[n].device),  # (T,)
            behaviour_logprobs=sample.behaviour_logprobs,
            old_logprobs=sample.old_logprobs,
            advantage=sample.advantage,
            teacher_logits=next(taught) if prompts and sample.hindsight is not None else None,
            base_logits=plain[n],
            values=critic(states[n])[:, 0] if critic is not None and sample.returns is not None else None,  # (T,)
            returns=sample.returns,
            temperature=sample.example.temperature,
        )
        for n, sample in enumerate(samples)
    ]


def _teacher_logits(
    network: Any, prompts: Sequence[Example], objective: Objective, teacher: Switch | None, base: Switch | None
) -> list[Tensor]:
    """The teacher's logits (or log-probabilities), (T, V), before the tokens of each reply on its hindsight prompt; no gradient."""
    with torch.no_grad():
        if objective.teacher.kind in ("ema", "sync") and teacher is not None:
            with teacher():
                return _forward_pass(network, prompts)[0]
        with base() if base is not None else nullcontext():
            reference = _forward_pass(network, prompts)[0]
        if objective.teacher.kind == "base":
            return reference
        current = _forward_pass(network, prompts)[0]
        return [blend(one, two, objective.teacher.learner_share) for one, two in zip(reference, current, strict=True)]


LEARNED = 0.9
"""Probability of each token of a reply to imitate from which on it is learned."""
CUT = 0.4
"""Taken off the probability of an end of turn that leaves out the rest of the old reply, which so needs .9: after a word put in front, it
would soon leave out every reply."""


@dataclass
class Rewriting:
    """A reply that is written anew, token by token: as it was said, but for what the words change, and for one slip.

    Behind a change, the old reply goes on where the learner or the teacher takes it up again: at the same token (something was inserted)
    or at the next (something was replaced, or is left out). Until then the teacher writes.
    """

    said: Sequence[int]
    """The old reply."""
    ends: Set[int]
    """Tokens that end a turn."""
    slip: int = -1
    """Place of the slip in the old reply (`find_slip`); -1: there is none."""
    written: list[int] = field(default_factory=list)
    place: int = 0
    """The next token of the old reply."""
    is_apart: bool = False
    """Something was changed, and the old reply not taken up again since."""
    has_changed: bool = False
    sureness: float = 1.0
    """Least probability that the teacher gave a token that it put in, less `CUT` for an end of turn that leaves out the rest of the reply."""
    is_unlikely: bool = False
    """The learner is sure (`LEARNED`) of another token somewhere in the old reply, and will hardly say it again."""

    @property
    def is_over(self) -> bool:
        """True if the turn has ended."""
        return bool(self.written) and self.written[-1] in self.ends

    def add(self, likeliest: int, moved: float, learned: int, probability: float = 1.0) -> None:
        """Write one more token.

        Args:
            likeliest: the teacher's likeliest next token.
            moved: 1/2 sum_v |q(v) - q0(v)|, the share of the teacher's mind that the words change here.
            learned: the learner's likeliest next token.
            probability: the teacher's, of its likeliest next token.
        """
        rest = self.said[self.place : self.place + 2]
        has_slipped = not self.is_apart and self.place == self.slip and likeliest != rest[0]
        if has_slipped:
            self.is_apart = self.has_changed = True
        takers = (likeliest,) if has_slipped else (learned, likeliest)
        if self.is_apart and (taken := next((token for token in takers if token in rest), None)) is not None:
            self.place, self.is_apart = self.place + rest.index(taken), False
            rest = self.said[self.place : self.place + 2]
        if self.is_apart or not rest or (moved >= 0.5 and likeliest != rest[0]):
            self.is_apart = self.has_changed = True
            is_cut = likeliest in self.ends and bool(rest) and rest[0] not in self.ends
            self.sureness = min(self.sureness, probability - CUT * is_cut)
            self.written.append(likeliest)
        else:
            self.written.append(rest[0])
            self.place += 1

    def go_on(self, draft: Sequence[int], teacher: Tensor, wordless: Tensor, learner: Tensor, most: int) -> None:
        """Write on, up to `most` tokens, while what is written is the beginning of a draft of T tokens; (T, V): log q, log q0 and log pi."""
        moved = ((teacher.exp() - wordless.exp()).abs().sum(-1) / 2).tolist()  # (T,)
        (highest, places), learned = teacher.max(-1), learner.argmax(-1).tolist()  # (T,)
        likeliest, probabilities = places.tolist(), highest.exp().tolist()  # (T,)
        at = len(self.written)
        while at < min(len(draft), most) and not self.is_over and (at == 0 or self.written[-1] == draft[at - 1]):
            self.add(likeliest[at], moved[at], learned[at], probabilities[at])
            at += 1


def find_slip(said: Tensor, teacher: Tensor, wordless: Tensor, learner: Tensor, is_blamed: bool) -> int:
    """Place of the token that the reply should not have had by what the teacher knows without the words, too; -1: there is none.

    The teacher knows nothing of what was learned before, and would put other tokens in its place, too. So it is the place where the
    learner clings least to what was said, of those where the teacher's likeliest token is another and the words change little. The
    learner itself must prefer the teacher's token, unless a thumb down is explained by nothing else.

    Args:
        said: (T,), the reply.
        teacher, wordless, learner: (T, V), log-probabilities q, q0 and pi before each of its tokens.
        is_blamed: the feedback has a reward below 0.
    """
    moved = (teacher.exp() - wordless.exp()).abs().sum(-1) / 2 >= 0.5  # (T,)
    better = teacher.argmax(-1)  # (T,)
    gain = (learner.gather(1, better[:, None]) - learner.gather(1, said[:, None]))[:, 0]  # (T,)
    gain = gain.masked_fill(moved | (better == said), -math.inf)
    place = int(gain.argmax())
    least = -math.inf if is_blamed and not bool((moved & (better != said)).any()) else 0.0
    return place if float(gain[place]) > least else -1


def rewrite_replies(
    network: Any,
    samples: Sequence[TrainingSample],
    objective: Objective,
    ends: Set[int],
    teacher: Switch | None,
    base: Switch | None,
    blamed: Set[str] = frozenset(),
) -> list[Rewriting]:
    """Each reply as it should have been by the words of its feedback, up to `objective.teacher.rewrites` tokens; see `Rewriting`.

    The teacher knows one feedback at a time: what the words leave alone, it would say as the base model does. So what the reply has
    of other wishes stays as it was said.

    Args:
        samples: with a hindsight each.
        ends: tokens that end a turn.
        blamed: ids of those with a reward below 0.
    """

    def read(chats: Sequence[tuple[TrainingSample, Sequence[int]]]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """log q, log q0 and log pi before the tokens of each of these replies, (T, V) each."""
        told = [Example(h.prompt, tuple(reply)) for sample, reply in chats if (h := sample.hindsight) is not None]
        plain = [Example(sample.example.prompt, tuple(reply)) for sample, reply in chats]
        taught = [one.float().log_softmax(-1) for one in _teacher_logits(network, [*told, *plain], objective, teacher, base)]
        own = [one.float().log_softmax(-1) for one in _forward_pass(network, plain)[0]]
        return zip(taught[: len(told)], taught[len(told) :], own, strict=True)

    found, most = [Rewriting(sample.example.reply, ends) for sample in samples], objective.teacher.rewrites
    rows = list(zip(samples, found, strict=True))
    with torch.no_grad():
        while begun := [(one, new) for one, new in rows if not new.is_over and len(new.written) < most]:
            # With the rest of the old reply: up to the next change, that is as it will be written. 0 stands for the token to come.
            drafts = [(one, (*new.written, *new.said[new.place :], 0)) for one, new in begun]
            for (one, new), (_, draft), logps in zip(begun, drafts, read(drafts), strict=True):
                if not new.written:
                    said, (q, plain, own) = torch.tensor(new.said, device=logps[0].device), (each[:-1] for each in logps)
                    new.slip = find_slip(said, q, plain, own, one.id in blamed)
                    new.is_unlikely = bool(((own.argmax(-1) != said) & (own.amax(-1) >= math.log(LEARNED))).any())
                new.go_on(draft, *logps, most)
    return found


def _optimizer_step(optimizer: torch.optim.Optimizer, max_grad_norm: float, loss: float, scale: float = 1.0) -> float:
    """Clip each group's gradient to `max_grad_norm`, step at `scale` times its learning rate; returns the first group's norm before.

    Groups are clipped apart: the critic's gradient does not shorten the adapter's.
    """
    norms = [float(torch.nn.utils.clip_grad_norm_(group["params"], max_grad_norm)) for group in optimizer.param_groups]
    if not all(map(math.isfinite, norms)):
        optimizer.zero_grad(set_to_none=True)
        raise UserError(f"the gradient is {max(norms)} at a loss of {loss:g}; try a smaller learning rate or dtype float32")
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * scale
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    return norms[0]


# Between updates


def lora_parameters(network: Any) -> dict[str, Tensor]:
    """The trainable weights by name: the network's own tensors, no copies."""
    return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}


def copy_tensors(live: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the weights of the same names, in place."""
    with torch.no_grad():
        torch._foreach_copy_(list(live.values()), [tensors[name] for name in live])


def write_adapter(wrapper: Any, folder: Path, base: str | None, name: str = "default") -> None:
    """Write an adapter in PEFT's format, like `save_pretrained` but without a model card and paths of this machine; names sorted.

    Args:
        wrapper: PEFT's model.
        folder: made if it does not exist.
        base: the base model's name on the hub; None if it is a folder.
        name: which of the wrapper's adapters.
    """
    import peft

    folder.mkdir(exist_ok=True)
    config = wrapper.peft_config[name].to_dict()
    targets = config["target_modules"]  # names, or a pattern
    config |= {"base_model_name_or_path": base, "target_modules": targets if isinstance(targets, str) else sorted(targets)}
    text = json.dumps(config | {"inference_mode": True}, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    state = peft.get_peft_model_state_dict(wrapper, adapter_name=name, save_embedding_layers=False)
    tensors = {key: state[key].detach().cpu().contiguous() for key in sorted(state)}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's state of a weight."""


def write_optimizer(optimizer: torch.optim.Optimizer, path: Path, extra_tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write AdamW's moments and step counts by the names of the weights, as safetensors.

    Learning rate and weight decay are not written: they are settings of the next run. `extra_tensors` are kept with the moments (the
    critic's weights).
    """
    tensors = {f"more:{name}": tensor.detach().cpu().contiguous() for name, tensor in (extra_tensors or {}).items()}
    for group in optimizer.param_groups:
        for name, weight in zip(group["param_names"], group["params"], strict=True):
            for key in MOMENTS:
                if key in optimizer.state.get(weight, {}):
                    tensors[f"{name}:{key}"] = optimizer.state[weight][key].detach().cpu().contiguous()
    save_file(dict(sorted(tensors.items())), path, metadata={"format": "pt"})


def read_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> dict[str, Tensor]:
    """Load the moments of `write_optimizer` into an optimizer, and return its `extra_tensors`.

    Learning rate and weight decay stay those of `optimizer`. (CLaaS's public code loads them, too, so that a requested learning rate
    holds for the first update of an adapter only.)

    Raises:
        UserError: the file cannot be read, or is of other weights; nothing was loaded.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the optimizer's state {path.name}: {error}") from error
    more = {name.removeprefix("more:"): tensors.pop(name) for name in sorted(tensors) if name.startswith("more:")}
    state: dict[Tensor, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        for name, weight in zip(group["param_names"], group["params"], strict=True):
            found = {key: tensors.pop(f"{name}:{key}") for key in MOMENTS if f"{name}:{key}" in tensors}
            if found and (len(found) < len(MOMENTS) or any(found[key].shape != weight.shape for key in MOMENTS[:2])):
                raise UserError(f"{path.name} is of another adapter: {name} has other shapes there")
            if found:
                state[weight] = {key: found[key].to(weight.device) for key in MOMENTS}
    if tensors:
        raise UserError(f"{path.name} is of another adapter: it has {sorted(tensors)[0]}, which is not trained here")
    optimizer.state.update(state)
    return more
