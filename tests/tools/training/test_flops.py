"""The formula for floating-point operations agrees with torch's counter, which looks at every operation."""

from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage
from torch.utils.flop_counter import FlopCounterMode

from learngraph.memory.claas.settings import LoRA
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.training.flops import FlopMeter
from learngraph.tools.training.lora import attach_lora


@pytest.fixture
def counted_model(model: LocalChatModel) -> LocalChatModel:
    """A model whose attention is made of products: torch's counter does not know the fused one of CPUs."""
    model.network.set_attn_implementation("eager")
    return model


def counts(meter: FlopMeter, work: Any) -> tuple[float, float]:
    """(ours, torch's) of some work."""
    before = meter.flops
    with FlopCounterMode(display=False) as counter:
        work()
    return meter.flops - before, float(counter.get_total_flops())


@pytest.mark.parametrize("rank", [0, 4])
def test_passes_for_scores_cost_what_torch_counts(counted_model: LocalChatModel, rank: int) -> None:
    model = counted_model
    if rank:
        attach_lora(model.network, LoRA(rank))
    meter = FlopMeter(model.network)
    messages = [HumanMessage("go north and open the door of the kitchen")]
    ours, theirs = counts(meter, lambda: model.score(messages, ["take the lamp", "take the map", "look"]))
    assert ours == pytest.approx(theirs, rel=1e-6)
    again, counted = counts(meter, lambda: model.score(messages, ["take the lamp", "look"]))  # the prompt is cached
    assert again == pytest.approx(counted, rel=1e-6)
    assert again < ours / 2


@pytest.mark.parametrize(("rows", "tokens"), [(1, 12), (4, 48)])
def test_a_training_pass_costs_what_torch_counts_within_a_few_per_cent(
    counted_model: LocalChatModel, rows: int, tokens: int
) -> None:
    model = counted_model
    attach_lora(model.network, LoRA(4))
    meter = FlopMeter(model.network)
    ids = torch.randint(0, 300, (rows, tokens), generator=torch.Generator().manual_seed(0))

    def train() -> None:
        model.network(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    ours, theirs = counts(meter, train)
    assert ours == pytest.approx(theirs, rel=0.05)
    with torch.no_grad():
        forward, counted = counts(meter, lambda: model.network(input_ids=ids, use_cache=False))
    assert forward == pytest.approx(counted, rel=1e-6)
    assert 2 * forward < ours < 3 * forward  # frozen weights get no gradient of their own
