"""What scoring candidate actions costs, as ratios within one run (targets 13 to 16).

    python tests/performance/bench_scoring.py [--device cuda]

A random Llama of 8 layers x 384, vocabulary 24,000 (23 million parameters), float32, one thread; the unit is one forward
over the prompt that returns its last logits only. CPU time of the process on a CPU, wall time elsewhere; medians of
interleaved rounds. Two kinds of options, six tokens each with the end of turn: "distinct" ones share nothing (five tokens
an option must be fed), "actions" are a verb and four words, with 5 verbs and 8 objects, as games list them, which the trie
feeds once. The forwards of target 15 return all logits, as a plain call does. The limit of targets 13 and 14 is measured: the
network alone, as transformers runs it, over as many tokens with as many logits; its arithmetic is the note. That of target 15 is
arithmetic: multiplications over multiplications. Nothing here is asserted.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from langchain_core.messages import HumanMessage
from random_llama import make_llama, make_tokenizer
from rows import make_parser, ratios, report
from transformers.cache_utils import DynamicCache

from learngraph.tools.local.model import LocalChatModel, ModelUsage

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }} >{% else %} {{ m['content'] }}{{ '\n' }}"
    "{% endif %}{% endfor %}"
)


def text(rng: random.Random, n: int, top: int) -> str:
    return " ".join(f"w{rng.randrange(200, top)}" for _ in range(n))


def options(rng: random.Random, n: int, kind: str, top: int) -> list[str]:
    if kind == "distinct":
        return [f"w{i} {text(rng, 4, top)}" for i in range(n)]
    objects = [text(rng, 4, top) for _ in range(8)]
    return [f"w{verb} {object_}" for verb in range(5) for object_ in objects][:: max(1, 40 // n)][:n]


def rounds(clock: Callable[[], float], repeat: int, *works: Callable[[int], object]) -> list[list[float]]:
    """Seconds of each of the works in each round, run by turns; they get the number of the round."""
    spent: list[list[float]] = [[] for _ in works]
    for i in range(repeat + 1):
        for taken, work in zip(spent, works, strict=True):
            start = clock()
            work(i)
            if i:  # the first round warms up
                taken.append(clock() - start)
    return spent


def work(model: LocalChatModel, prompt: int, fed: int) -> tuple[float, float]:
    """Multiplications, in units of one forward: for `fed` more tokens with logits, and for the logits of a whole prompt.

    Attention is counted over what a token may see.
    """
    config = model.network.config
    body = sum(weight.numel() for weight in model.network.model.layers.parameters())
    head = config.vocab_size * config.hidden_size
    attention = 2 * config.hidden_size * config.num_hidden_layers  # per token seen
    unit = prompt * body + attention * prompt * prompt / 2 + head
    return (fed * (body + head) + attention * fed * (prompt + 3)) / unit, prompt * head / unit


def scoring(model: LocalChatModel, clock: Callable[[], float], prompt: int, repeat: int, top: int) -> None:
    device = model.network.device
    rng = random.Random(0)

    def forward(ids: list[int], keep: int = 1) -> None:
        with torch.inference_mode():
            model.network(torch.tensor([ids], device=device), logits_to_keep=keep, use_cache=False).logits[0, -1, 0].item()

    def cached(ids: list[int]) -> DynamicCache:
        with torch.inference_mode():
            kept = DynamicCache(config=model.network.config)
            model.network(torch.tensor([ids], device=device), logits_to_keep=1, past_key_values=kept)
            return kept

    def follow(kept: DynamicCache, ids: list[int]) -> None:
        with torch.inference_mode():
            model.network(torch.tensor([ids], device=device), past_key_values=kept).logits[0, -1, 0].item()
            kept.crop(-len(ids))

    prompts = [[HumanMessage(text(rng, prompt - 1, top))] for _ in range(repeat + 1)]
    for kind in ("distinct", "actions"):
        for n, cold_target, warm_target in ((10, 1.15, 0.12), (30, 1.25, 0.2)):
            chosen = options(rng, n, kind, top)
            model.clear_cache()
            model.usage = ModelUsage()
            model.score(prompts[0], chosen)
            fed = model.usage.reply_tokens
            model.clear_cache()
            more, kept = [200] * fed, cached(model.prompt_ids(prompts[0]))
            one, cold, warm, bare_cold, bare_warm = rounds(
                clock,
                repeat,
                lambda i: forward(model.prompt_ids(prompts[i])),
                lambda i, chosen=chosen: model.score(prompts[i], chosen),
                lambda i, chosen=chosen: model.score(prompts[i], chosen),
                lambda i, more=more: forward(model.prompt_ids(prompts[i]) + more, len(more)),
                lambda i, more=more, kept=kept: follow(kept, more),
            )
            what = f"score {n} {kind} under {{}} prompt of {prompt:,} tokens, over one forward pass"
            least, logits = work(model, prompt, fed)
            for how, number, took, bare, target, products in (
                ("a new", {"number": 13}, cold, bare_cold, cold_target, 1 + least),
                ("a known", {"number": 14}, warm, bare_warm, warm_target, least),
            ):
                limit, note = statistics.median(ratios(bare, one)), f"{fed} tokens fed; {products:.3g} in multiplications"
                goal = max(target, 1.1 * limit)
                report(what.format(how), ratios(took, one), at_most=goal, limit=limit, note=note, **number)
            if n == 30:
                whole = [model.prompt_ids(prompts[0]) + list(model.reply_ids(option)) for option in chosen]
                start = clock()
                for ids in whole:
                    forward(ids, keep=0)
                took, limit = clock() - start, n * (1 + logits) / (1 + least)
                name = f"score {n} {kind} in one pass, speed-up over {n} passes"
                report(name, [took / once for once in cold], "x", number=15, at_least=25, limit=limit)


def episode(model: LocalChatModel, top: int, steps: int = 40) -> None:
    rng = random.Random(1)
    chosen = options(rng, 12, "actions", top)
    model.clear_cache()
    model.usage = ModelUsage()
    before: list[int] = []
    history, new = "", 0
    for _ in range(steps):
        history += f" {text(rng, 20, top)} > {rng.choice(chosen)}"
        messages = [HumanMessage(history)]
        model.score(messages, chosen)
        ids = model.prompt_ids(messages)
        new += len(ids) - next((i for i, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), len(before))
        before = ids
    usage = model.usage
    name = f"prompt tokens computed over new ones, an episode of {steps} steps"
    report(name, usage.prefilled_tokens / new, number=16, at_most=1.05, limit=1)
    print(f"     of {usage.prompt_tokens} prompt tokens {usage.prefilled_tokens} computed, {usage.forward_passes} forwards")


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    with tempfile.TemporaryDirectory() as large:
        make_llama(Path(large), 24_000, 8, 384, 1024, eos_token_id=1)
        make_tokenizer(Path(large), 24_000, TEMPLATE)
        model = LocalChatModel(model=large, device=arguments.device, threads=1)
        print(f"torch {torch.__version__}, {arguments.device}, {torch.get_num_threads()} thread")
        scoring(model, clock, 200 if arguments.quick else 1000, arguments.rounds, 24_000)
        episode(model, 24_000)


if __name__ == "__main__":
    main()
