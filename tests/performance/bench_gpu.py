"""The local engine and a LoRA step on a GPU, beside plain transformers and the way of CLaaS's public code. Asserts nothing.

    python tests/performance/bench_gpu.py [--device cuda] [--dtype bfloat16] [--streams 1 8 64]

A random Llama of the shape of Llama 3.2 1B (16 layers x 2048, 8 heads of keys, vocabulary 24,000: 1.0 billion parameters), adapters of
rank 16 on all linear layers. Shown are the tokens a second of so many streams with an adapter, each of which asks again when it is
answered, and of transformers' `generate` on one batch of as many prompts without one; what fails while version after version goes
live under the most streams; and one step of distillation (bench_lora.py). Wall time, the card alone in use.
"""

import asyncio
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_lora import VOCABULARY, faster, opened
from bench_vllm import measure, plain_transformers
from random_llama import make_llama, make_tokenizer
from rows import make_parser, report

from learngraph.tools.local.engine import LocalEngine
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.training.lora import lora_parameters, write_adapter


def write_versions(folder: Path, count: int, **place: Any) -> list[Path]:
    """The folders of so many adapters of random weights of the network in `folder / "model"`."""
    network, wrapper = opened(folder / "model", **place)
    folders = [folder / f"v{i}" for i in range(count)]
    for number, one in enumerate(folders):
        torch.manual_seed(number)
        with torch.no_grad():
            for name, weight in lora_parameters(network).items():
                if "lora_B" in name:
                    weight.normal_(std=0.01)
        write_adapter(wrapper, one, None)
    return folders


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--swaps", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place: Any = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    card = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    with tempfile.TemporaryDirectory() as temporary:
        folder, began = Path(temporary), time.perf_counter()
        sizes = (2, 64, 128) if options.quick else (16, 2048, 8192)
        heads = None if options.quick else 8
        make_llama(folder / "model", VOCABULARY, *sizes, eos_token_id=1, num_key_value_heads=heads)
        make_tokenizer(folder / "model", VOCABULARY)
        folders = write_versions(folder, options.swaps + 1, **place)
        model = LocalChatModel(model=str(folder / "model"), device=options.device, dtype=options.dtype)
        count = model.network.num_parameters()
        made = time.perf_counter() - began
        print(f"{card}, torch {torch.__version__}, {options.dtype}, {count / 1e6:,.0f} M parameters, made in {made:.0f} s")
        for streams in options.streams:
            rates = plain_transformers(model.network, streams, options.rounds)
            report(f"tokens a second of {streams} streams: transformers' generate, no adapter", rates)

        async def ours() -> None:
            engine = LocalEngine(model, rank=16, max_loras=4)
            await measure("our engine", engine, folders, options)
            await engine.close()

        asyncio.run(ours())
        for batch in (4, 16):
            faster(folder / "model", options.rounds, batch, **place)


if __name__ == "__main__":
    main()
