"""LoRA on a network in memory: its changes, one update of them, and the files between two updates.

An update is `step` (supervised: the surprise of replies, or any loss over logits) or `learn` (from served replies and what was
said of them: the losses of tools/training/losses.py). tools/training/sft.py trains on chats with `step`, tools/training/learner.py from a replay buffer with
`learn`; both keep what `write_adapter` and `write_optimizer` write.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...memory.errors import UserError
from .losses import LossInputs, Objective, blend, entropy, kl_to, objective_loss, token_logprobs

__all__ = [
    "Example",
    "LoRA",
    "Objective",
    "OptimizerStepResult",
    "ReplyLogprobs",
    "TrainingSample",
    "attach_lora",
    "cross_entropy",
    "learn",
    "lora_parameters",
    "make_critic",
    "make_optimizer",
    "pack_by_length",
    "read_optimizer",
    "reply_logits",
    "reply_logprobs",
    "set_lora_parameters",
    "step",
    "write_adapter",
    "write_optimizer",
]


@dataclass(frozen=True)
class LoRA:
    """How to train. "Paper" is AdaMEM (arXiv 2606.05684); what it does not give is ours, or what trainers usually take."""

    rank: int = 32
    """r: a weight W becomes W + alpha / r B A, with A of shape (r, inputs) and B of shape (outputs, r). Paper: 32."""
    alpha: float = 64.0
    """The scale of the changes. Not given: twice the rank."""
    targets: str = "all-linear"
    """Which weights: all linear layers but the last, or names joined by commas (`q_proj,v_proj`). Not given."""
    epochs: int = 1
    """Times that each example is seen. Paper: 1."""
    batch: int = 64
    """Examples behind one update. Paper: 64."""
    micro: int = 4
    """Examples that share a pass; as many passes as a batch needs add up. Changes memory and speed, not the result. On a CPU 1 and
    4 are about as fast, 16 takes half as long again: short examples are filled up. Paper: 4 (and 16 passes)."""
    rate: float = 1e-4
    """Peak learning rate of AdamW. Missing in the paper; its code's README says 1e-4."""
    warmup: float = 0.1
    """Share of the updates in which the rate grows to its peak; then it falls as a cosine. Paper: 0.1."""
    decay: float = 0.0
    """Weight decay of the changes. Not given."""
    clip: float = 1.0
    """Longest gradient: longer ones are shortened to it. Not given."""
    seed: int = 0
    """Of the first changes and of the order of the examples. The same seed, machine and number of threads: the same weights."""

    def __post_init__(self) -> None:
        for name in ("rank", "epochs", "batch", "micro"):
            if getattr(self, name) < 1:
                raise UserError(f"LoRA: {name} is at least 1, got {getattr(self, name)}")
        for name in ("alpha", "rate", "clip"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(f"LoRA: {name} is a number above 0, got {getattr(self, name)}")
        if not 0 <= self.warmup <= 1 or not 0 <= self.decay < math.inf:
            raise UserError(f"LoRA: warmup is from 0 to 1 and decay 0 or more, got {self.warmup} and {self.decay}")


@dataclass(frozen=True, slots=True)
class Example:
    """A chat as tokens."""

    prompt: tuple[int, ...]
    """Up to where the reply begins; at least one."""
    reply: tuple[int, ...]
    """From there to the end of the turn, inclusive."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply)


@dataclass(frozen=True, slots=True)
class OptimizerStepResult:
    """What an update did."""

    loss: float
    """Before it, in nats per token of the replies."""
    grad_norm: float
    """Length of the gradient, before it was shortened."""
    tokens: int
    """Tokens of the replies."""


# One step


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """L = -E[ log pi(z | s) ]: the mean of -log softmax(logits)[target], in nats.

    Args:
        logits: (tokens, vocabulary), what stands before each token of the replies. Prompts have no row here.
        targets: (tokens,), these tokens.

    Returns:
        () in float32.
    """
    return -token_logprobs(logits, targets).mean()


def reply_logits(network: Any, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """What the network says of each token of the replies, from one pass: logits (tokens, vocabulary), and the tokens (tokens,).

    The tokens stand example after example, in order. Shorter examples are filled up at their ends, which no token before them
    sees, so that no mask is needed. The last layer is computed only where a reply is, if the network lets us choose.
    """
    with _fast_lora_layers(network):
        logits, _ = _forward_pass(network, examples)
    targets = torch.tensor([token for example in examples for token in example.reply], device=network.device)  # (tokens,)
    return logits[0] if len(logits) == 1 else torch.cat(logits), targets


def _forward_pass(network: Any, examples: Sequence[Example], hidden: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Logits (T_i, V) before the tokens of each reply, and with `hidden` the last hidden states there (T_i, hidden)."""
    fed = [example.prompt + example.reply[:-1] for example in examples]  # nothing follows the last token
    longest = max(map(len, fed))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in fed], device=network.device)  # (examples, longest)
    spans = [(len(example.prompt) - 1, len(example) - 1) for example in examples]  # what stands before a reply's tokens
    columns = sorted({column for start, end in spans for column in range(start, end)})  # (columns,)
    more: dict[str, Any] = {"output_hidden_states": True} if hidden else {}
    if _has_logits_to_keep(network):
        whole = len(columns) == longest - columns[0]  # they reach to the end: a slice, which copies nothing
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


def _has_logits_to_keep(network: Any) -> bool:
    return "logits_to_keep" in inspect.signature(network.forward).parameters


def step(
    network: Any,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Example],
    *,
    micro_batch_size: int = 4,
    max_grad_norm: float = 1.0,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> OptimizerStepResult:
    """One update: the loss of a batch, its gradient, AdamW.

    The gradient is that of the mean over all the batch's tokens, however it is cut into passes: each pass counts by its share of
    the tokens. Examples of similar length share a pass.

    Args:
        network: a causal model whose trainable parameters are the optimizer's.
        optimizer: steps on the gradient; its rate is set by the caller.
        batch: at least one example.
        micro: examples that share a pass.
        clip: the longest gradient.
        loss: the mean of something over tokens, from logits (tokens, vocabulary) and the tokens (tokens,).

    Raises:
        UserError: the gradient is not finite; nothing was changed.
    """
    tokens = sum(len(example.reply) for example in batch)
    ordered = sorted(batch, key=len)
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=network.device)
    for start in range(0, len(ordered), micro_batch_size):
        part = ordered[start : start + micro_batch_size]
        logits, targets = reply_logits(network, part)
        share = loss(logits, targets) * (len(targets) / tokens)  # ()
        share.backward()  # type: ignore[no-untyped-call]
        total += share.detach()
    norm = _optimizer_step(optimizer, max_grad_norm, float(total))
    return OptimizerStepResult(float(total), norm, tokens)


def attach_lora(network: Any, settings: LoRA) -> Any:
    """Put changes that are still nothing into the network, in place: from now on they alone are trained. Returns PEFT's wrapper."""
    try:
        import peft
    except ImportError as error:
        raise UserError("LoRA needs a package that is not here: pip install 'learngraph[lora]'") from error

    names = [name.strip() for name in settings.targets.split(",") if name.strip()]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # a factor; PEFT only ever divides it
        target_modules=names if names != ["all-linear"] else "all-linear",
    )
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers for what has another name now
            torch.manual_seed(settings.seed)
            return peft.get_peft_model(network, config)
    except ValueError as error:
        raise UserError(f"LoRA: targets {settings.targets!r}: {str(error).splitlines()[0]}") from error


def make_optimizer(network: Any, settings: LoRA | Objective, critic: torch.nn.Module | None = None) -> torch.optim.Optimizer:
    """AdamW over what is trainable, by name; a critic has its own rate."""
    trained = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained, "weight_decay": settings.decay, "lr": settings.rate}]
    if critic is not None:
        own = [(f"critic.{name}", weight) for name, weight in critic.named_parameters()]
        groups.append({"params": own, "weight_decay": 0.0, "lr": getattr(settings, "value_rate", settings.rate)})
    return torch.optim.AdamW(groups, lr=settings.rate, fused=True)


def make_critic(network: Any) -> torch.nn.Linear:
    """V: the last hidden state before a token -> what the reply will be worth. At first 0 everywhere; (T, hidden) -> (T, 1).

    Hidden states are read without a gradient: the critic's errors do not move the changes.
    """
    head = torch.nn.Linear(network.config.get_text_config().hidden_size, 1, device=network.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


# Changed layers, with less around their products than in PEFT: no scaling and no sum in a tensor of its own


class _LoRALinear(torch.autograd.Function):
    """y = x W^T + b + s (x A^T) B^T, and its gradients to x, A and B; W is frozen. (tokens, inputs) -> (tokens, outputs)."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = x @ a.T  # (tokens, r)
        context.save_for_backward(x, weight, a, b, low)
        context.scale = scale
        return torch.nn.functional.linear(x, weight, bias).addmm_(low, b.T, alpha=scale)  # (tokens, outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x, weight, a, b, low = context.saved_tensors
        back = (slope @ b).mul_(context.scale)  # (tokens, r)
        to_x = (slope @ weight).addmm_(back, a) if context.needs_input_grad[0] else None  # (tokens, inputs)
        to_b = (low.T @ slope).mul_(context.scale).T  # (outputs, r); the product of slope^T and low takes twice as long
        return to_x, None, None, back.T @ x, to_b, None


@contextmanager
def _fast_lora_layers(network: Any) -> Iterator[None]:
    """Within, layers that PEFT has changed in the plain way (float32, one adapter, nothing dropped or merged) take `_Changed`.

    Entered once for all passes of a call: to look for these layers takes as long as a small pass.
    """
    changed = []
    for layer in network.modules():
        if not (hasattr(layer, "lora_A") and type(getattr(layer, "base_layer", None)) is torch.nn.Linear and len(layer.lora_A)):
            continue
        names = [name for name in layer.active_adapters if name in layer.lora_A]
        if len(names) != 1 or layer.lora_variant or layer.merged or "forward" in vars(layer):
            continue
        name, base = names[0], layer.base_layer
        a, b, dropped = layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name]
        frozen = not base.weight.requires_grad and a.bias is None and b.bias is None and isinstance(dropped, torch.nn.Identity)
        if frozen and {base.weight.dtype, a.weight.dtype, b.weight.dtype} == {torch.float32}:
            layer.forward = partial(_lora_forward, layer, layer.forward, base, a, b, layer.scaling[name])
            changed.append(layer)
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


def _lora_forward(
    layer: Any, usual: Callable[..., Tensor], base: Any, a: Any, b: Any, scale: float, x: Tensor, **more: Any
) -> Tensor:
    """A changed layer, (..., inputs) -> (..., outputs); as PEFT has it where the changes are switched off or more is asked for."""
    if layer.disable_adapters or more or x.dtype != torch.float32 or layer.lora_A[layer.active_adapters[0]] is not a:
        return usual(x, **more)
    y: Tensor = _LoRALinear.apply(x.reshape(-1, x.shape[-1]), base.weight, base.bias, a.weight, b.weight, scale)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


# Passes through the network


def pack_by_length(sizes: Sequence[int], max_tokens: int, overhead_tokens: float = 0.0) -> list[list[int]]:
    """Which examples share a pass: numbers of them, shortest first; shorter ones are filled up to the longest of their pass.

    The cheapest division, where a pass costs its tokens, those filled up included, and `fixed` more. No pass has more than `cap`
    tokens, but for one example alone.
    """
    order = sorted(range(len(sizes)), key=lambda n: (sizes[n], n))
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the first n: what they cost, and where their last pass begins
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
    """How many tokens take as long as what a pass takes however few it has. On a CPU about 3e8 / weights: an estimate from models of
    1 and 23 million (13 tokens there); elsewhere passes are filled as far as they may be."""
    weights = sum(weight.numel() for weight in network.parameters())
    return 3e8 / weights if network.device.type == "cpu" else 1e9


@dataclass(frozen=True)
class ReplyLogprobs:
    """What a network says of a reply of T tokens, in float32 on the CPU."""

    logprobs: Tensor
    """(T,), log pi(y_t) in nats."""
    entropy: Tensor
    """(T,), in nats."""
    kl: Tensor | None = None
    """(T,), KL(pi || base) in nats, if asked for."""
    values: Tensor | None = None
    """(T,), the critic's, if there is one."""


def reply_logprobs(
    network: Any,
    examples: Sequence[Example],
    *,
    base: Callable[[], AbstractContextManager[Any]] | None = None,
    critic: torch.nn.Module | None = None,
    temperatures: Sequence[float] = (),
    max_tokens: int = 2048,
) -> list[ReplyLogprobs]:
    """Read replies without learning from them: log pi_old before an update, or what a gate goes by.

    Args:
        network: as it is to read.
        examples: with at least one token of reply each.
        base: `with base():` makes the network the base model; then KL(pi || base) is measured, by a second pass.
        critic: reads the hidden states.
        temperatures: that each reply was sampled at; log-probabilities are of softmax(logits / temperature), all else at 1.
        cap: tokens that share a pass, those that fill up included.
    """
    found: dict[int, ReplyLogprobs] = {}
    with _fast_lora_layers(network), torch.inference_mode():
        for pack in pack_by_length([len(example) for example in examples], max_tokens, _pass_overhead_tokens(network)):
            part = [examples[n] for n in pack]
            logits, states = _forward_pass(network, part, critic is not None)
            plain: Sequence[Tensor | None] = [None] * len(part)
            if base is not None:
                with base():
                    plain = _forward_pass(network, part)[0]
            for n, example, own, other in zip(pack, part, logits, plain, strict=True):
                targets = torch.tensor(example.reply, device=own.device)  # (T,)
                warm = own / temperatures[n] if temperatures else own  # (T, V)
                logprobs = token_logprobs(warm, targets).cpu()  # (T,)
                kl = kl_to(other, own).cpu() if other is not None else None  # (T,)
                values = critic(states[pack.index(n)])[:, 0].cpu() if critic is not None else None  # (T,)
                found[n] = ReplyLogprobs(logprobs, entropy(own).cpu(), kl, values)
    return [found[n] for n in range(len(examples))]


# One update from feedback


@dataclass(frozen=True)
class TrainingSample:
    """A served reply of T tokens, to learn from."""

    example: Example
    behaviour_logprobs: Tensor | None = None
    """(T,), log mu(y_t), as recorded when it was sampled; None: the learner has just sampled it."""
    old_logprobs: Tensor | None = None
    """(T,), log pi_old(y_t), by `read`; None: as this update's own pass says."""
    advantage: Tensor | None = None
    """(T,), by `judge`: for `reinforce` and `ppo`."""
    hindsight: Example | None = None
    """For `sdpo` and `hint`: the prompt with the feedback, and the same reply; None: nothing was said."""
    returns: Tensor | None = None
    """(T,), by `judge`: for the critic."""
    temperature: float = 1.0
    """That it was sampled at: log mu, log pi_old and log pi are of softmax(logits / temperature)."""


def learn(
    network: Any,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[TrainingSample],
    objective: Objective,
    *,
    scale: float = 1.0,
    teacher: Callable[[], AbstractContextManager[Any]] | None = None,
    base: Callable[[], AbstractContextManager[Any]] | None = None,
    critic: torch.nn.Module | None = None,
    max_tokens: int = 2048,
) -> tuple[OptimizerStepResult, dict[str, float]]:
    """One update of an objective: losses pack by pack, one gradient, AdamW.

    The gradient is that of the mean over all tokens learned from, however they are packed; only one pack's graph is held at a
    time. Passes of the teacher and of the base model are made where the objective needs them, and only there.

    Args:
        network: a causal model whose trainable parameters are the optimizer's.
        updates: steps on the gradient.
        samples: what to learn from; for `sdpo` those without a hindsight are left out.
        scale: what every group's rate is multiplied with in this update: warm-up, and what the correction says.
        teacher, base: `with teacher():` makes the network the teacher, `with base():` the base model.
        critic: for `ppo`.
        cap: tokens that share a pass, those that fill up included.

    Returns:
        What the update did, and the statistics of `loss` over all tokens.

    Raises:
        UserError: the gradient is not finite, nothing was changed; nothing to learn from; what the objective needs is missing.
    """
    if objective.loss == "sdpo":
        samples = [sample for sample in samples if sample.hindsight is not None]
    tokens = sum(len(sample.example.reply) for sample in samples)
    if not tokens:
        raise UserError("nothing to learn from: no reply has feedback that this loss can use")
    if (objective.needs_base and base is None) or (objective.needs_teacher and teacher is None):
        raise UserError(f"the objective {objective.loss} with the teacher {objective.teacher!r} needs base and teacher passes")
    optimizer.zero_grad(set_to_none=True)
    total, largest, sums = 0.0, 0.0, dict[str, float]()
    with _fast_lora_layers(network):
        for pack in pack_by_length([len(sample.example) for sample in samples], max_tokens, _pass_overhead_tokens(network)):
            part = [samples[n] for n in pack]
            taught = _hindsight_logits(network, part, objective, teacher, base)
            plain: Sequence[Tensor | None] = [None] * len(part)
            if objective.kl > 0 and base is not None:
                with torch.no_grad(), base():
                    plain = _forward_pass(network, [sample.example for sample in part])[0]
            logits, states = _forward_pass(network, [sample.example for sample in part], critic is not None)
            batch = []
            for n, sample in enumerate(part):
                values = critic(states[n])[:, 0] if critic is not None and sample.returns is not None else None  # (T,)
                targets = torch.tensor(sample.example.reply, device=logits[n].device)  # (T,)
                batch.append(
                    LossInputs(
                        *(
                            logits[n],
                            targets,
                            sample.behaviour_logprobs,
                            sample.old_logprobs,
                            sample.advantage,
                            taught[n],
                            plain[n],
                        ),
                        *(values, sample.returns, sample.temperature),
                    )
                )
            share, said = objective_loss(batch, objective, tokens)  # ()
            share.backward()  # type: ignore[no-untyped-call]
            total += float(share.detach())
            largest = max(largest, said.pop("ratio_max"))
            for name, value in said.items():
                sums[name] = sums.get(name, 0.0) + value * said["tokens"]
            del share, batch, logits, taught, plain
    norm = _optimizer_step(optimizer, objective.max_norm, total, scale)
    counted = {name: value / tokens for name, value in sums.items() if name != "tokens"}
    return OptimizerStepResult(total, norm, tokens), counted | {"ratio_max": largest}


def _hindsight_logits(
    network: Any,
    samples: Sequence[TrainingSample],
    objective: Objective,
    teacher: Callable[[], AbstractContextManager[Any]] | None,
    base: Callable[[], AbstractContextManager[Any]] | None,
) -> list[Tensor | None]:
    """log q or logits of q, (T, V), before each token of each reply, on its hindsight prompt; without a gradient. None: no prompt."""
    told = [n for n, sample in enumerate(samples) if sample.hindsight is not None]
    if not (told and objective.needs_hindsight):
        return [None] * len(samples)
    said = _teacher_logits(network, [samples[n].hindsight or samples[n].example for n in told], objective, teacher, base)
    taught: list[Tensor | None] = [None] * len(samples)
    for n, logits in zip(told, said, strict=True):
        taught[n] = logits
    return taught


def _teacher_logits(
    network: Any,
    prompts: Sequence[Example],
    objective: Objective,
    teacher: Callable[[], AbstractContextManager[Any]] | None,
    base: Callable[[], AbstractContextManager[Any]] | None,
) -> list[Tensor]:
    """log q or logits of q, (T, V), of each."""
    with torch.no_grad():
        if objective.teacher in ("ema", "sync") and teacher is not None:
            with teacher():
                return _forward_pass(network, prompts)[0]
        with base() if base is not None else nullcontext():
            reference = _forward_pass(network, prompts)[0]
        if objective.teacher == "base":
            return reference
        current = _forward_pass(network, prompts)[0]
        return [blend(one, two, objective.trust) for one, two in zip(reference, current, strict=True)]


def _optimizer_step(optimizer: torch.optim.Optimizer, max_grad_norm: float, loss: float, scale: float = 1.0) -> float:
    """Shorten each group's gradient to `clip`, step at `scale` times its rate, and return how long the first group's was."""
    norms = [
        float(torch.nn.utils.clip_grad_norm_(group["params"], max_grad_norm)) for group in optimizer.param_groups
    ]  # the critic's: apart
    if not all(map(math.isfinite, norms)):
        optimizer.zero_grad(set_to_none=True)
        raise UserError(f"the gradient is {max(norms)} at a loss of {loss:g}; a smaller rate or dtype float32 would do")
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
    """The trainable weights by name, the live tensors themselves."""
    return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}


def set_lora_parameters(network: Any, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the trainable weights of the same names, in place.

    Raises:
        UserError: names or shapes differ; nothing was copied.
    """
    live = lora_parameters(network)
    if live.keys() != tensors.keys():
        differ = sorted(live.keys() ^ tensors.keys())
        raise UserError(f"these weights are of another adapter: {len(differ)} names differ, {differ[0]} for one")
    for name, tensor in tensors.items():
        if live[name].shape != tensor.shape:
            expected = tuple(live[name].shape)
            raise UserError(
                f"these weights are of another adapter: {name} has shape {tuple(tensor.shape)}, expected {expected}"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            live[name].copy_(tensor)


def write_adapter(wrapper: Any, folder: Path, base: str | None, name: str = "default") -> None:
    """As PEFT's `save_pretrained`, but without the model card and without paths of this machine; names in order.

    `base`: the model's name on the hub; None for a folder. `name`: which of the wrapper's adapters.
    """
    import peft
    from safetensors.torch import save_file

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


def write_optimizer(optimizer: torch.optim.Optimizer, path: Path, extra_tensors: Mapping[str, Tensor] | None = None) -> None:
    """AdamW's moments and step counts by the names of the weights, as safetensors; no rate, no decay: those are asked for anew.

    `more`: tensors to keep with them (the critic's weights).
    """
    from safetensors.torch import save_file

    tensors = {f"more:{name}": tensor.detach().cpu().contiguous() for name, tensor in (extra_tensors or {}).items()}
    for group in optimizer.param_groups:
        for name, weight in zip(group["param_names"], group["params"], strict=True):
            for key in MOMENTS:
                if key in optimizer.state.get(weight, {}):
                    tensors[f"{name}:{key}"] = optimizer.state[weight][key].detach().cpu().contiguous()
    save_file(dict(sorted(tensors.items())), path, metadata={"format": "pt"})


def read_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> dict[str, Tensor]:
    """Go on with the moments of `write_optimizer`, and return its `more`. Rates and decay stay those that `updates` was made with.

    (The public code loads them too, so that a requested rate holds for the first update of an adapter only: defect 11a.)

    Raises:
        UserError: the file cannot be read, or is of other weights; nothing was loaded.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

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
