"""From served exchanges to training examples: tokens as they were served, and the teacher's prompt with hindsight.

The teacher of SDPO reads the same conversation as the learner, with the feedback in its last user message. Tokens of prompt and reply
are those that were served; they are never made from text again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any

import torch

from ...memory.claas.settings import Objective
from ...memory.conversations.thoughts import split_thoughts
from ...memory.errors import UserError, WindowError
from ...memory.records import ChatRequest, Exchange, Minibatch
from ..local.model import LocalChatModel
from .lora import Example, TrainingSample

__all__ = ["ExampleReader"]


def hindsight_block(template: str, feedback: str = "", solution: str = "", reply: str = "", verdict: str = "") -> str:
    """The text that the teacher reads after the conversation: the template with its values.

    Paragraphs (separated by an empty line) that name an empty value are left out.

    Args:
        template: text with `$feedback`, and perhaps the other names.
        feedback: what was said of the reply.
        solution: a rewarded reply to the same prompt, without thoughts.
        reply: the reply itself, without thoughts.
        verdict: `right` or `wrong`, where the teacher reads no text.

    Raises:
        UserError: the template names an unknown value, or has no `$feedback`.
    """
    values = {"feedback": feedback.strip(), "solution": solution.strip(), "reply": reply.strip(), "verdict": verdict}
    parts = [Template(part) for part in template.strip().split("\n\n") if part.strip()]
    named = {name for part in parts for name in part.get_identifiers()}
    if not all(part.is_valid() for part in parts) or not {"feedback"} <= named <= set(values):
        raise UserError(
            f"the hindsight template names {sorted(named)}; it needs $feedback, may have $solution, $reply and $verdict, and '$$' is a '$'"
        )
    shown = [part for part in parts if all(values[name] for name in part.get_identifiers())]
    return "\n\n".join(part.substitute(values) for part in shown)


@dataclass(frozen=True)
class ExampleReader:
    """Makes training samples of exchanges, and says why others cannot be used."""

    model: LocalChatModel
    base: str
    """Fingerprint of the base model."""
    objective: Objective
    template: str
    """The hindsight template, see `hindsight_block`."""
    vocabulary: int
    """Number of token ids that the model has embeddings for."""
    _prompts: dict[tuple[str, tuple[int, ...], str], tuple[int, ...]] = field(default_factory=dict, repr=False)
    """(exchange id, prompt as served, hindsight block) -> the teacher's prompt: the newest 256."""

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a reply."""
        return self.model.template.chat_frame().stop_ids

    def samples(self, batch: Minibatch) -> tuple[list[TrainingSample], dict[str, str]]:
        """The replies that the loss can use, and for the other exchanges (by id) why it cannot use them.

        Raises:
            UserError: the minibatch has an exchange of another tenant or adapter.
        """
        found: list[TrainingSample] = []
        dropped: dict[str, str] = {}
        for exchange in batch.exchanges:
            if (exchange.tenant, exchange.adapter) != (batch.tenant, batch.adapter):
                raise UserError(
                    f"minibatch {batch.id} has an exchange of {exchange.tenant}/{exchange.adapter} in it; nothing was learned"
                )
            try:
                found.append(self._sample(exchange, batch.exchanges))
            except UserError as error:
                dropped[exchange.id] = str(error)
        return found, dropped

    def _sample(self, exchange: Exchange, others: Sequence[Exchange]) -> TrainingSample:
        """One exchange as a sample; `others` may hold a solution for the teacher. A UserError says why it cannot be learned from."""
        reply, feedback, objective = exchange.reply, exchange.feedback, self.objective
        if exchange.base != self.base:
            raise UserError(f"made by another base model ({exchange.base or 'unknown'}, not {self.base})")
        if feedback is None:
            raise UserError("has no feedback")
        if not reply.token_ids or len(reply.logprobs) != len(reply.token_ids):
            raise UserError(
                f"has {len(reply.token_ids)} tokens and {len(reply.logprobs)} log-probabilities; each token needs one"
            )
        if not all(-math.inf < value <= 1e-3 for value in reply.logprobs):  # false for NaN, too
            raise UserError("has log-probabilities that are not finite, or above 0")
        example = self.example(exchange)
        if feedback.correction.strip() and objective.kind in ("mixed", "reinforce"):
            return self._corrected(exchange, feedback.correction.strip())
        drawn = exchange.request.sampling.temperature > 0
        problem = ""
        if not objective.uses_rewards:
            problem = "has neither a text nor a solution to learn from"
        elif feedback.reward is None:
            problem = f"has no reward, only a text; {objective.kind} needs one"
        elif not drawn and objective.correction.kind != "none":
            problem = "was not drawn but chosen (temperature 0): it has no importance weight"
        needs_teacher = objective.uses_words and (objective.kind != "mixed" or feedback.text.strip() != "")
        try:
            hindsight = self._hindsight(exchange, others, example) if needs_teacher else None
        except UserError:
            if problem:
                raise
            hindsight = None  # the reward teaches all the same
        if problem and (hindsight is None or not objective.uses_words):
            raise UserError(problem)
        return TrainingSample(
            example,
            torch.tensor(reply.logprobs, dtype=torch.float32) if drawn else None,
            hindsight=hindsight,
            reward=None if problem else feedback.reward,
            id=exchange.id,
        )

    def _corrected(self, exchange: Exchange, correction: str) -> TrainingSample:
        """The reply that should have been, to be imitated. Raises `UserError`: it does not fit the window, or has unknown words."""
        known, words = self.model.tokenizer, correction.split()
        unknown = sum(known.unk_token_id in self.model.get_token_ids(word) and word != known.unk_token for word in words)
        if unknown:
            raise UserError(f"the tokenizer of the model does not know {unknown} of the {len(words)} words of the correction")
        example = Example(
            exchange.reply.prompt_ids, self.model.reply_ids(correction), exchange.request.sampling.temperature or 1.0
        )
        if len(example) > self.model.window:
            raise WindowError(
                f"prompt and correction of {len(example)} tokens exceed the window of {self.model.window}", len(example)
            )
        return TrainingSample(example, advantage=torch.ones(len(example.reply)), id=exchange.id)

    def example(self, exchange: Exchange) -> Example:
        """Prompt and reply as tokens: as served, or where there are no token ids, by the chat template.

        Raises:
            WindowError: they do not fit the model's window.
            UserError: there is no reply, or token ids are out of range.
        """
        reply, request = exchange.reply, exchange.request
        temperature = request.sampling.temperature or 1.0  # of a reply that was not drawn: those of the model itself
        if reply.token_ids:
            example = Example(reply.prompt_ids, reply.token_ids, temperature)
        elif reply.text.strip():
            example = Example(_prompt_ids(self.model, request), self.model.reply_ids(reply.text), temperature)
        else:
            raise UserError(f"exchange {exchange.id} has no reply to read")
        if len(example) > self.model.window:
            raise WindowError(
                f"prompt and reply of {len(example)} tokens do not fit the window of {self.model.window}", len(example)
            )
        if not example.prompt or not all(0 <= token < self.vocabulary for token in example.prompt + example.reply):
            raise UserError(f"has no prompt, or token ids that a vocabulary of {self.vocabulary} does not have")
        return example

    def _hindsight(self, exchange: Exchange, others: Sequence[Exchange], example: Example) -> Example | None:
        """The teacher's example: the whole conversation with the hindsight block, and the same reply tokens. None: nothing to read.

        A UserError says that it does not fit the window, or that the prompt has other tokens now where the block would stand.
        """
        text, solution, verdict = "", "", ""
        reward = exchange.feedback.reward if exchange.feedback else None
        if self.objective.teacher.reads_text:
            text = exchange.feedback.text if exchange.feedback else ""
            solution = (exchange.feedback.correction if exchange.feedback else "") or _find_solution(exchange, others)
        elif reward is not None:
            verdict = "right" if reward > 0 else "wrong"
        if not (text.strip() or solution or verdict or (self.objective.teacher.prompts == "paper" and reward is not None)):
            return None
        block = hindsight_block(self.template, text, solution, _visible_reply(exchange), verdict)
        key = (exchange.id, example.prompt, block)
        if (prompt := self._prompts.get(key)) is None:  # a witness is read at each of many steps
            rendered = _prompt_ids(self.model, exchange.request)
            prompt = _add_block(example.prompt, rendered, _prompt_ids(self.model, _append_hindsight(exchange.request, block)))
            self._prompts[key] = prompt
            if len(self._prompts) > 256:
                del self._prompts[next(iter(self._prompts))]
        size = len(prompt) + len(example.reply)
        if size > self.model.window:
            raise WindowError(
                f"prompt, hindsight and reply of {size} tokens do not fit the window of {self.model.window}", size
            )
        return Example(prompt, example.reply)


def _add_block(served: tuple[int, ...], rendered: tuple[int, ...], with_block: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that were served, with those that the block adds to the prompt as it is rendered now.

    A template may write the date, or another service's switch for thoughts: then a prompt is not rendered twice in the same way. The
    teacher reads what was served all the same, as long as the place of the block is found from one end of it.
    """
    start = _shared_length(rendered, with_block)
    end = min(_shared_length(rendered[::-1], with_block[::-1]), len(rendered) - start, len(with_block) - start)
    block = with_block[start : len(with_block) - end]
    if _shared_length(served, rendered) >= len(rendered) - end:
        return served[:start] + block + served[len(rendered) - end :]
    if _shared_length(served[::-1], rendered[::-1]) >= len(rendered) - start:
        return served[: len(served) - (len(rendered) - start)] + block + served[len(served) - end :]
    raise UserError("its prompt, rendered again, has other tokens than were served; the teacher would read another one")


def _shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens at which two sequences begin alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _append_hindsight(request: ChatRequest, block: str) -> ChatRequest:
    """The same conversation, with the block at the end of the last user message."""
    if request.raw is not None:
        return replace(request, raw=f"{block}\n\n{request.raw}")
    messages = [dict(message) for message in request.messages]
    last = next((message for message in reversed(messages) if message.get("role") == "user"), None)
    if last is None:
        messages.append({"role": "user", "content": block})
    else:
        last["content"] = f"{_message_text(last.get('content'))}\n\n{block}"
    return replace(request, messages=tuple(messages))


def _message_text(content: Any) -> str:
    """A message's text; OpenAI's API also allows a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content)
    return str(content or "")


def _prompt_ids(model: LocalChatModel, request: ChatRequest) -> tuple[int, ...]:
    """The tokens of a request's prompt, as an engine makes them."""
    if request.raw is not None:
        return tuple(model.get_token_ids(request.raw))
    return tuple(model.chat_ids(request.messages, () if request.tool_choice == "none" else request.tools))


def _find_solution(exchange: Exchange, others: Sequence[Exchange]) -> str:
    """A rewarded reply at the same place: of another exchange with the same prompt, or at the same turn of the same scenario."""
    for other in others:
        same = other.reply.prompt_ids == exchange.reply.prompt_ids or (
            exchange.scenario != "" and (other.scenario, other.turn) == (exchange.scenario, exchange.turn)
        )
        good = other.feedback is not None and (other.feedback.reward or 0.0) > 0
        if same and good and other.id != exchange.id:
            shown = _visible_reply(other)
            if shown and shown != _visible_reply(exchange):
                return shown
    return ""


def _visible_reply(exchange: Exchange) -> str:
    """The reply as its user saw it, without thoughts; may be empty."""
    return split_thoughts(exchange.reply.text)[0].strip()
