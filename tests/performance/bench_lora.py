"""The cost of a LoRA update, as ratios within one run.

    python tests/performance/bench_lora.py [--rounds 5] [--batch 4]

A random Llama of 8 layers x 384, vocabulary 24,000 (24 million parameters), float32, one thread, LoRA of rank 16 on all linear layers.

Supervised: 16 examples of 24 to 302 tokens (1,915), half of each a reply: forward, backward and AdamW, over the time that the
multiplications alone would take at the machine's own rate for a product of (512, 384) and (384, 1024), measured in the same rounds.
Counted are products that no update can do without: forward, gradients to the inputs of all layers but the first, gradients of the
changes, attention up to the diagonal, logits where a reply is. "one by one": the sum over the 16 examples of each one's
shortest pass, plus the shortest AdamW: on a machine with other work the better estimate of what the code costs.

Distillation: one step of distillation (SDPO, teacher = base model with the feedback) against the way of CLaaS's public code:
for every step the base model, the adapter and the optimizer are read
from disk, every sample has a student, a base and a teacher pass under gradient checkpointing with logits at every token, all graphs
are held until one backward, and all is written again. Both have the same loss. "resident": the same without reading the base model.
CPU time of the process, variants by turns. Nothing here is asserted.
"""

import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from random_llama import make_llama
from rows import cpu, elapsed, make_parser, ratios, report

from learngraph.memory.claas.settings import LoRA, Objective, StalenessCorrection, TeacherSettings
from learngraph.tools.training import lora, losses
from learngraph.tools.training.lora import Example, TrainingSample

LAYERS, HIDDEN, FFN, VOCABULARY, RANK = 8, 384, 1024, 24_000, 16
SETTINGS = LoRA(rank=RANK, alpha=2 * RANK)


def opened(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    return network, lora.attach_lora(network, SETTINGS)


def examples(rng: random.Random, count: int, total: int) -> list[Example]:
    sizes = [24, 302, *(rng.randint(24, 220) for _ in range(count - 2))]
    at = 2
    while sum(sizes) != total:
        change = 1 if sum(sizes) < total else -1
        if 24 <= sizes[at] + change <= 300:
            sizes[at] += change
        at = 2 + (at - 1) % (count - 2)
    words = [[rng.randrange(VOCABULARY) for _ in range(size)] for size in sizes]
    return [Example(tuple(w[: len(w) - len(w) // 2]), tuple(w[len(w) - len(w) // 2 :])) for w in words]


def needed(example: Example) -> float:
    """Multiplications and additions of one example's forward and backward pass."""
    fed, kept = len(example) - 1, len(example.reply)
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN
    change = RANK * (4 * 2 * HIDDEN + 3 * (HIDDEN + FFN))
    attention = 2 * 2 * HIDDEN * fed * (fed + 1) / 2
    first = 3 * (HIDDEN * HIDDEN + RANK * HIDDEN)  # q, k and v of the first layer: nobody asks for their inputs' gradient
    forward = 2 * fed * LAYERS * (layer + change) + LAYERS * attention + 2 * kept * VOCABULARY * HIDDEN
    backward = 2 * fed * (LAYERS * (layer + 2 * change) - first) + 2 * LAYERS * attention + 2 * kept * VOCABULARY * HIDDEN
    return forward + backward


def product() -> float:
    """The shortest of some products: operations a second."""
    a, b = torch.randn(512, HIDDEN), torch.randn(FFN, HIDDEN)
    return 2 * 512 * HIDDEN * FFN / min(cpu(lambda: a @ b.T) for _ in range(100))


def limit(folder: Path, rounds: int) -> None:
    """Target 17."""
    network, _ = opened(folder)
    lora.shorten_passes(network)
    updates = lora.make_optimizer(network, 1e-9)
    batch = examples(random.Random(0), 16, 1915)
    least = sum(map(needed, batch))
    objective = Objective("reinforce", learning_rate=1e-9, correction=StalenessCorrection("none"))
    samples = [TrainingSample(e, advantage=torch.ones(len(e.reply))) for e in batch]

    def update() -> None:
        updates.step()
        updates.zero_grad()

    def pass_of(example: Example) -> None:
        (logits,), _ = lora._forward_pass(network, [example])
        (-losses.token_logprobs(logits, torch.tensor(example.reply)).mean()).backward()  # type: ignore[no-untyped-call]

    took, parts = list[float](), [float("inf")] * len(batch)
    step, rates = float("inf"), list[float]()
    for _ in range(rounds):
        rates.append(product())
        took.append(cpu(lambda: lora.learn(network, updates, samples, objective)))
        parts = [
            min(before, cpu(lambda example=example: pass_of(example))) for before, example in zip(parts, batch, strict=True)
        ]
        step = min(step, cpu(update))
        rates[-1] = max(rates[-1], product())
    name = f"LoRA step of 16 replies, {network.num_parameters() / 1e6:.0f} M parameters, over its arithmetic"
    note = f"{least / 1e9:.0f} GFLOP at {max(rates) / 1e9:.0f} GFLOP/s"
    passes = (sum(parts) + step) * max(rates) / least
    report(f"{name}: the passes of its examples alone, the shortest of each", passes, limit=1)
    of = [once * rate / least for once, rate in zip(took, rates, strict=True)]
    report(f"{name}: CLaaS's learner", of, number=17, at_most=max(1.5, 1.1 * passes), limit=passes, note=note)


# Target 18


def distilled(logits: torch.Tensor, taught: torch.Tensor, tokens: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
    """The loss both sides have, token by token: the divergence, weighed by min(pi / mu, 2)."""
    logp = logits.detach().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return losses.truncated_weights(logp - mu, 2.0) * losses.sdpo(logits, taught, 0.5, 100)


def reference(
    folder: Path,
    state: Path,
    samples: list[TrainingSample],
    kept: tuple[Any, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[float, float]:
    """One step the reference's way: (loss, length of the gradient)."""
    network, wrapper = kept or opened(folder, device, dtype)
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    network.enable_input_require_grads()
    network.train()
    network.zero_grad(set_to_none=True)
    updates = torch.optim.AdamW([w for w in network.parameters() if w.requires_grad], lr=1e-9, weight_decay=0.0)
    if (state / "optimizer.pt").exists():
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        set_peft_model_state_dict(wrapper, load_file(state / "adapter_model.safetensors"))
        updates.load_state_dict(torch.load(state / "optimizer.pt", weights_only=True))

    def said(example: Example) -> torch.Tensor:
        ids = torch.tensor([example.prompt + example.reply], device=device)
        out: torch.Tensor = network(input_ids=ids, use_cache=False).logits[0, len(example.prompt) - 1 : -1]
        return out

    total = torch.zeros((), device=device)
    for sample in samples:
        tokens = torch.tensor(sample.example.reply, device=device)
        logits = said(sample.example)
        assert sample.behaviour_logprobs is not None
        assert sample.hindsight is not None
        with torch.no_grad(), wrapper.disable_adapter():
            base, taught = said(sample.example), said(sample.hindsight)
        logp = logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        plain = base.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        pull = (
            0.0 * (torch.expm1(plain - logp) + logp - plain).mean()
        )  # its weight is 0 by default; the pass is made all the same
        total = total + (distilled(logits, taught, tokens, sample.behaviour_logprobs.to(device)).mean() + pull) / len(samples)
    total.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_([w for w in network.parameters() if w.requires_grad], 1.0)
    updates.step()
    lora.write_adapter(wrapper, state, None)
    torch.save(updates.state_dict(), state / "optimizer.pt")
    network.gradient_checkpointing_disable()
    network.disable_input_require_grads()
    network.eval()
    return float(total.detach()), float(norm)


def ours(network: Any, wrapper: Any, state: Path, samples: list[TrainingSample]) -> tuple[float, float]:
    """One step as tools/training/learner.py makes it, with the files that it reads and writes."""
    objective = Objective(
        "sdpo", learning_rate=1e-9, correction=StalenessCorrection("truncated"), teacher=TeacherSettings("base")
    )
    updates = lora.make_optimizer(network, objective.learning_rate)
    if (state / "optimizer.safetensors").exists():
        lora.read_optimizer(updates, state / "optimizer.safetensors")
    done = lora.learn(network, updates, samples, objective, base=wrapper.disable_adapter)
    lora.write_adapter(wrapper, state, None)
    lora.write_optimizer(updates, state / "optimizer.safetensors")
    return done.loss, done.grad_norm


def faster(folder: Path, rounds: int, batch: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
    """Target 18 on the CPU; elsewhere the same rows, without a target."""
    rng = random.Random(1)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(count))

    samples = []
    for _ in range(batch):
        prompt, reply = words(rng.randint(40, 200)), words(60)
        samples.append(
            TrainingSample(Example(prompt, reply), torch.full((60,), -10.0), hindsight=Example(prompt + words(40), reply))
        )
    resident, (network, wrapper) = opened(folder, device, dtype), opened(folder, device, dtype)
    lora.shorten_passes(network)
    states = [Path(tempfile.mkdtemp(prefix=name, dir=folder)) for name in ("reference", "resident", "ours")]
    ways: list[Callable[[], tuple[float, float]]] = [
        lambda: reference(folder, states[0], samples, None, device, dtype),
        lambda: reference(folder, states[1], samples, resident, device, dtype),
        lambda: ours(network, wrapper, states[2], samples),
    ]
    took, said = [list[float]() for _ in ways], [(0.0, 0.0)] * len(ways)
    for _ in range(rounds):
        for n, way in enumerate(ways):
            took[n].append(elapsed(lambda n=n, way=way: said.__setitem__(n, way()), device))
    note = "loss and length of the gradient: " + "; ".join(f"{loss:.6g}, {norm:.6g}" for loss, norm in said)
    name = f"SDPO step of {batch} replies, speed-up over the published code's way"
    target = {"number": 18, "at_least": 1.7} if device == "cpu" else {}
    report(name, ratios(took[0], took[-1]), "x", note=note, **target)
    report("the same without reading the base model at each step", ratios(took[1], took[-1]), "x")


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        # Weights so large that a prompt matters to what follows.
        make_llama(Path(name), VOCABULARY, LAYERS, HIDDEN, FFN, initializer_range=0.06)
        rounds = 1 if arguments.quick else arguments.rounds
        limit(Path(name), rounds)
        faster(Path(name), rounds, arguments.batch)


if __name__ == "__main__":
    main()
