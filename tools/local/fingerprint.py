"""A digest that tells base models apart: an adapter fits one of them only."""

import hashlib
import json

import torch

from .model import LocalChatModel
from .template import PLAIN_TEMPLATE

__all__ = ["fingerprint"]

FINGERPRINT_TEXT = "Hello, WORLD! naïve café 12 345.67\n\tdef f(x): return {'a': [1]} # ünï ✓ 漢字 <|im_end|> </s>"
"""A text that different tokenizers cut differently."""


def fingerprint(model: LocalChatModel) -> str:
    """A digest of a model's weights, tokenizer and chat template, as 32 hexadecimal digits.

    An adapter fits one base model only; the digest identifies it. It is the same on every machine and however the checkpoint is
    cut into files; layers that PEFT has added do not count. Weights count as the values that are computed with: a bfloat16
    checkpoint opened in float32 is the same base, a float32 checkpoint rounded to bfloat16 is another. It reads all weights
    once (about a second per gigabyte), and again only after `LocalChatModel.clear_cache`.
    """
    found = model._fingerprint
    if found is not None and found[0] == model._prefixes.weights_version:
        return found[1]
    digest = hashlib.sha256()
    weights = {
        name.replace(".base_layer.", ".").removeprefix("base_model.model."): weight
        for name, weight in model.network.state_dict().items()
        if ".lora_" not in name
    }
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        for part in weight.detach().reshape(-1).split(1 << 22):  # not a second copy of all of a large layer
            digest.update(part.to("cpu", torch.float32).numpy().tobytes())
    tokenizer = model.tokenizer
    words = {
        "vocabulary": sorted(tokenizer.get_vocab().items()),
        "special": sorted(tokenizer.all_special_ids),
        "sample": model.template.encode(FINGERPRINT_TEXT),
        "template": tokenizer.chat_template or PLAIN_TEMPLATE,
    }
    digest.update(json.dumps(words, sort_keys=True).encode())
    model._fingerprint = (model._prefixes.weights_version, digest.hexdigest()[:32])
    return model._fingerprint[1]
