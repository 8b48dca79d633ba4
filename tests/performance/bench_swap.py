"""The cost of swapping an adapter version under load, and of adapters as such.

    python tests/performance/bench_swap.py [--streams 8] [--swaps 20]

A random Llama of 8 layers x 384, vocabulary 24,000 (23 million parameters), float32, one thread; adapters of rank 16 on all
linear layers (0.93 million parameters, 3.6 MB). Streams run without end, each beginning again on the newest version when it is
done; meanwhile version after version is loaded: read, checked, prepared beside the network's thread, then put in place. Shown:

    pause       what a swap takes of the network's thread between two passes: mean, longest (target 1 ms)
    gaps        between a client's tokens, in quiet times and while a version is being loaded (wall, so noisy on a busy machine)
    load        from the call until requests can have it, under this load
    failed      requests that failed (target 0)
    adapter     CPU of a pass with one adapter, and with two by turns, over one without (target 1.15)

Nothing here is asserted.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import peft
import torch
import transformers
from random_llama import make_llama, make_tokenizer
from rows import make_parser, medians, ratios, report

from learngraph.memory.records import ChatRequest, Reply, Sampling
from learngraph.tools.local.adapters import Adapter, read_adapter
from learngraph.tools.local.engine import LocalEngine
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.local.passes import KVCache, SequenceInput


def make_adapter(model: Path | str, folder: Path, seed: int, std: float = 0.01) -> None:
    """Save an adapter of random weights, whose B has this standard deviation."""
    network = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(model),
        peft.LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"),
    )
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=std)
    network.save_pretrained(folder)


def make_versions(folder: Path, count: int, quick: bool = False) -> tuple[LocalChatModel, list[Path]]:
    """The network of this page in `folder / "model"` (`quick`: a tiny one), and the folders of `count` adapters of it."""
    sizes = (500, 2, 64, 128) if quick else (24_000, 8, 384, 1024)
    make_llama(folder / "model", *sizes, eos_token_id=1)
    make_tokenizer(folder / "model", sizes[0])
    folders = [folder / f"v{i}" for i in range(count)]
    for i, one in enumerate(folders):
        make_adapter(folder / "model", one, i)
    return LocalChatModel(model=str(folder / "model"), threads=1), folders


def request(seed: int, length: int, words: int = 40) -> ChatRequest:
    text = " ".join(f"w{(seed * 31 + i * 7) % 900 + 100}" for i in range(words))
    return ChatRequest(raw=text, sampling=Sampling(seed=seed, max_tokens=length))


class Load:
    """Streams that never end, and what their clients see."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.version = ""
        self.gaps: list[tuple[float, float]] = []
        self.replies: list[Reply] = []
        self.failed = 0
        self.stop = False

    async def one(self, seed: int, length: int) -> None:
        while not self.stop:
            version, last = self.version, None
            try:
                async for part in self.engine.stream(request(seed, length), version):
                    now = time.perf_counter()
                    if isinstance(part, Reply):
                        self.replies.append(part)
                        if part.version != version:
                            self.failed += 1
                    elif last is not None:
                        self.gaps.append((now, now - last))
                    last = now
            except Exception as error:
                print("failed:", error)
                self.failed += 1
            seed += 1000


async def swaps(model: LocalChatModel, folders: list[Path], streams: int, length: int) -> None:
    engine = LocalEngine(model, rank=16, max_loras=4)
    pauses, apply_swaps = list[float](), engine._apply_swaps

    def timed_swaps() -> None:  # between two passes: as long as it takes, no reply goes on
        start, before = time.perf_counter(), engine.counts.swaps
        apply_swaps()
        if engine.counts.swaps > before:
            pauses.append(time.perf_counter() - start)

    engine._apply_swaps = timed_swaps  # type: ignore[method-assign]
    load = Load(engine)
    tasks = [asyncio.create_task(load.one(i, length + i)) for i in range(streams)]
    while len(load.replies) < streams:
        await asyncio.sleep(0.1)
    spans = []
    for i, folder in enumerate(folders):
        start = time.perf_counter()
        await engine.load(f"v{i}", folder)
        spans.append((start, time.perf_counter()))
        load.version = f"v{i}"
        await asyncio.sleep(0.5)
    load.stop = True
    await asyncio.gather(*tasks)
    await engine.close()

    def during(at: float, gap: float) -> bool:
        return any(at >= start and at - gap <= end for start, end in spans)

    quiet = sorted(gap for at, gap in load.gaps if not during(at, gap))
    busy = sorted(gap for at, gap in load.gaps if during(at, gap))
    versions = len({reply.version for reply in load.replies})
    of = f"a new adapter under {streams} streams"
    report(
        f"{of}: longest pause of the answering thread, of {len(pauses)}",
        max(pauses) * 1e3,
        "ms",
        number=19,
        at_most=1,
        limit=0.15,
    )
    report(f"{of}: median pause", statistics.median(pauses) * 1e3, "ms")
    failed = f"of {len(load.replies)}, on {versions} versions"
    report(f"{of}: requests that failed", load.failed, number=19, at_most=0, note=failed)
    loads = [1e3 * (end - start) for start, end in spans]
    report(f"{of}: time until requests can have it", medians(loads, 3), "ms")
    for name, gaps in (("in quiet times", quiet), ("while it is loaded", busy)):
        if gaps:
            note = f"95th percentile {gaps[int(0.95 * len(gaps))] * 1e3:.1f} ms, longest {gaps[-1] * 1e3:.1f}, of {len(gaps)}"
            report(f"{of}: time between a client's tokens, {name}", statistics.median(gaps) * 1e3, "ms", note=note)


async def shares(model: LocalChatModel, folders: list[Path], repeat: int) -> None:
    engine = LocalEngine(model, rank=16)

    def measure() -> None:
        passes = engine._passes
        one, two = (read_adapter(folder, engine._switch, engine.base) for folder in folders[:2])
        mixes: list[list[Adapter | None]] = [[None], [one], [one, two]]
        for name, rows, new in (("prompt of 200 tokens", 1, 200), ("1 next token", 1, 1), ("32 next tokens", 32, 1)):
            pasts = [KVCache() for _ in range(rows)]
            if new == 1:
                passes([SequenceInput(past, list(range(30))) for past in pasts])
            spent: list[list[float]] = [[], [], []]
            for _ in range(repeat):
                for taken, mix in zip(spent, mixes, strict=True):
                    for past in pasts:
                        past.size = 30 if new == 1 else 0
                    parts = [SequenceInput(past, list(range(new)), mix[i % len(mix)]) for i, past in enumerate(pasts)]
                    start = time.process_time()
                    passes(parts)
                    taken.append(time.process_time() - start)
            base, first, both = (medians(taken, 5) for taken in spent)
            note = f"{statistics.median(base) * 1e3:.1f} ms without"
            report(f"CPU of a pass, {name}: with an adapter, over without", ratios(first, base), at_most=1.15, note=note)
            report(f"CPU of a pass, {name}: with two by turns, over without", ratios(both, base), at_most=1.15)

    await engine.run(measure)
    await engine.close()


def main() -> None:
    parser = make_parser(__doc__, rounds=30)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--swaps", type=int, default=20)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        model, folders = make_versions(Path(temporary), 4 if options.quick else options.swaps, options.quick)
        size = (folders[0] / "adapter_model.safetensors").stat().st_size
        print(f"model of {model.network.num_parameters() / 1e6:.1f} M parameters, adapters of {size / 2**20:.2f} MB")
        asyncio.run(swaps(model, folders, options.streams, 16 if options.quick else 32))
        asyncio.run(shares(model, folders, options.rounds))


if __name__ == "__main__":
    main()
