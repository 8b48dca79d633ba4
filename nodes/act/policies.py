"""Policies: nodes that propose candidate actions with logits, which are log-probabilities in nats.

All policies normalise the logits over the candidates, so that their exponentials sum to 1 (but see `OptionsView`).

- `LocalPolicy` scores every admissible action exactly, as the whole reply of a local model.
- `logprobs_policy` reads the probabilities of the option letters from an API that reports them.
- `verbalized_policy` asks the model for options with confidences.
- `act_policy` lets the model think and write one action; `answer_policy` lets it write a whole answer, which may be several
  actions. The written action is the only candidate: such a model gives no logits.
- `UniformPolicy` gives every action the same probability: a control without a model.

Where the world admits a single action, there is nothing to choose, and no model is asked. If no reply can be used in all tries, the
step is lost (`NO_ACTION`), and the episode goes on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar, NotRequired, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from ...memory.errors import UserError
from ...memory.records import NO_ACTION, Candidate, Observation, Transition, Usage
from ...memory.storage.journal import Journal
from ..ask import Ask, BadReply, State, text
from ..prompt import Prompt
from ..read_reply import (
    CutOff,
    DoubtfulReply,
    Refusal,
    Unreadable,
    answer_text,
    is_cut_off,
    read_action,
    read_letter,
    read_options,
    read_vote,
    unlisted_action,
)
from ..reply_schemas import OPTIONS, reply_schema
from ..state import CandidateChannels, HeadChannel, ObservationChannel, PlanChannels, TaskChannel
from ..text import shorten
from .choose import log_softmax

__all__ = [
    "LocalPolicy",
    "OptionsView",
    "PromptView",
    "RecentStepsPrompt",
    "Scorer",
    "UniformPolicy",
    "act_policy",
    "answer_policy",
    "logprobs_policy",
    "steps_text",
    "verbalized_policy",
]

MIN_CONFIDENCE = 1e-3
"""The least probability of a stated confidence: 0 % does not mean 'never', and has no logarithm."""
STOP = ("\nObservation:",)
"""Texts that end a reply which is asked for as far as its action: there a model would go on to play the world itself."""


Admit = Callable[[Observation, str], str]
"""(what is observed, an action that is not listed) -> the action in the world's own form; empty if it does not admit it."""


class PolicyError(UserError, ValueError):
    """An error: the policy cannot work with this environment or model."""

    fails_again = True


class Scorer(Protocol):
    """A model that scores each option as its whole reply."""

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Sequence[float]:
        """Log-probabilities in nats, one per option."""


class ShownEpisode(TaskChannel, ObservationChannel, HeadChannel):
    """The channels that every prompt of an episode shows."""

    step: NotRequired[int]


class PromptView(Protocol):
    """A view of the state: the values `brief`, `instruction`, `steps` and `observation` of the policies' prompts.

    A method may give `request` too: what this attempt is for, which stands at the end of the prompt. A view that has
    `shown_channels`, a tuple of TypedDicts, says which channels it reads: they count as read by the policy (nodes/channels.py).
    """

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]: ...


@dataclass(frozen=True)
class OptionsView(PromptView):
    """A view, and how a model is asked to state options with confidences from it; other policies see the view alone."""

    view: PromptView
    prompt: str = "act/options"
    """The name of the prompt."""
    count: int = 3
    """The number of options that are asked for."""
    is_normalised: bool = True
    """True if the confidences are scaled so that they sum to 1; False: they stay as they are stated."""

    @property
    def shown_channels(self) -> tuple[type, ...] | None:
        """Those of the view."""
        return getattr(self.view, "shown_channels", None)

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        return self.view(state)


@dataclass(frozen=True)
class RecentStepsPrompt(PromptView):
    """A view of the task, the last steps of the episode and the present observation."""

    shown_channels: ClassVar[tuple[type, ...]] = (ShownEpisode,)

    journal: Journal
    max_steps: int | None = None
    """Greatest number of steps; None: all of them."""
    brief: str = ""
    """The method's part of the system message."""

    def __call__(self, state: Mapping[str, Any]) -> dict[str, str]:
        steps = () if self.max_steps == 0 else self.journal.history(state["head"], last=self.max_steps)
        return {
            "brief": self.brief,
            "instruction": state["task"].instruction,
            "steps": steps_text(steps),
            "observation": state["observation"].text,
        }


def steps_text(steps: Sequence[Transition]) -> str:
    """Steps as prompts show them: the state, `> action`, `= reward` (left out where it is missing)."""
    lines = []
    for step in steps:
        action = step.action.replace("\n", "\n  ")  # further lines are indented, so that none of them reads as a reward
        lines += [step.state, f"> {action}"]
        if step.reward is not None:
            lines.append(f"= {step.reward:g}")
    return "".join(line + "\n" for line in lines)


def candidates_from_logits(actions: Sequence[str], logits: Sequence[float]) -> list[Candidate]:
    """Candidates with these actions and their normalised logits."""
    return [Candidate(a, z) for a, z in zip(actions, log_softmax(logits), strict=True)]


class ListedActions(TaskChannel, ObservationChannel):
    """The actions to choose among, and their place in the episode."""

    step: int


class Proposal(CandidateChannels, total=False):
    """Candidates, or the reason why no reply could be used."""

    vote: bool
    lost: str
    usage: Usage


@dataclass(frozen=True)
class UniformPolicy:
    """Propose every admissible action with the same probability."""

    role: ClassVar[str] = "compute"

    def __call__(self, state: ListedActions) -> CandidateChannels:
        actions = admissible_actions(state, "uniform")
        return {"candidates": candidates_from_logits(actions, [0.0] * len(actions))}


class ScoredCandidates(CandidateChannels):
    """Candidates, and the cost of scoring them."""

    usage: Usage


@dataclass(frozen=True)
class LocalPolicy:
    """Score every admissible action with a local model."""

    role: ClassVar[str] = "model"

    model: Scorer
    view: PromptView
    prompt: Prompt
    """Needs the values of `PromptView` (`act/score`)."""

    def messages(self, state: State) -> list[BaseMessage]:
        """The prompt's messages."""
        return self.prompt.messages(**self.view(state))

    def __call__(self, state: ListedActions | State) -> ScoredCandidates:  # the whole state: the view may show any channel
        actions = admissible_actions(state, "local")
        if len(actions) == 1:
            return {"candidates": candidates_from_logits(actions, [0.0]), "usage": Usage()}
        scores = self.model.score(self.messages(state), actions)
        usage = Usage(1, getattr(scores, "prompt_tokens", 0))  # a scored action costs no output tokens
        return {"candidates": candidates_from_logits(actions, scores), "usage": usage}


def logprobs_policy(
    model: BaseChatModel, view: PromptView, prompts: Path | None = None
) -> Ask[ListedActions | State, Proposal]:
    """Ask for the letter of an option, and read the log-probabilities of all letters at that token.

    Options whose letters are not reported share the rest of the probability equally, but none gets more than the least likely
    reported letter.
    """
    prompt = Prompt.load("act/choose", prompts)

    def messages(state: ListedActions | State) -> list[BaseMessage]:
        actions = admissible_actions(state, "logprobs")
        if len(actions) > 20:
            raise PolicyError(
                f"the logprobs policy can tell 20 options apart (APIs report 20 log-probabilities), but there are "
                f"{len(actions)} admissible actions; use --policy verbalized"
            )
        options = "\n".join(f"{letter}. {action}" for letter, action in zip(ascii_uppercase, actions, strict=False))
        return prompt.messages(**{"request": "", **view(state)}, options=options)

    def read(reply: AIMessage, state: ListedActions | State) -> Proposal:
        actions = admissible_actions(state, "logprobs")
        content = (reply.response_metadata.get("logprobs") or {}).get("content") or []
        if not content:
            raise PolicyError(
                "asked for the log-probabilities of the reply's tokens, but the server sent none; "
                "use a model that reports them, or --policy verbalized"
            )
        letters = ascii_uppercase[: len(actions)]
        named = read_letter(answer_text(reply), actions)
        if named is None:
            said = shorten(answer_text(reply), 40)
            raise Unreadable(f"asked for one letter of {letters[0]}-{letters[-1]} and nothing else", f", got {said}")
        # The letters that a model weighs within its thoughts are no answer, so the search goes from the end.
        for token in reversed(content):
            if read_letter(token["token"], actions) != named:
                continue
            seen: dict[str, float] = {}
            for option in token.get("top_logprobs") or [token]:
                letter = read_letter(option["token"], actions)
                if letter:
                    seen[letter] = max(option["logprob"], seen.get(letter, -math.inf))
            return {"candidates": candidates_from_logits(actions, _complete({named: token["logprob"], **seen}, letters))}
        raise Unreadable(
            f"asked for one letter of {letters[0]}-{letters[-1]} as one token", f", got {shorten(text(reply), 40)}"
        )

    again = Prompt.load("ask/again", prompts)
    asked = model.bind(logprobs=True, top_logprobs=20)
    return Ask("act/choose", asked, messages, read, again, on_bad_reply=_lose_step, known=_only_action, view=view)


def _lose_step(bad: BadReply, state: Any) -> Proposal:
    """The channels of a step on which no reply could be used: the world receives nothing, and the step counts."""
    return {"candidates": [Candidate(NO_ACTION, 0.0)], "vote": False, "lost": str(bad), "usage": Usage(lost_steps=1)}


def _complete(seen: Mapping[str, float], options: Sequence[str]) -> list[float]:
    """Log-probabilities of all options: those that are known, and the rest in equal shares, none above the least that is known."""
    missing = [one for one in options if one not in seen]
    rest = max(1 - sum(map(math.exp, seen.values())), 1e-9) / max(len(missing), 1)
    floor = min(*seen.values(), math.log(rest), 0.0)
    return [seen.get(one, floor) for one in options]


def verbalized_policy(
    model: BaseChatModel, view: PromptView, prompts: Path | None = None, admit: Admit | None = None
) -> Ask[ObservationChannel | State, Proposal]:
    """Ask for actions with confidences, as an `OptionsView` says; a logit is the log of a confidence, with a floor.

    Confidence in actions that the world does not list is doubt, which the listed actions that were not named share (`_complete`). Where it
    is half of the whole or more, the model is asked once more, with the nearest action. `admit` is for worlds that take more actions than
    they list, such as any text in a field of a web page.
    """
    asked = view if isinstance(view, OptionsView) else OptionsView(view)
    prompt, listed = Prompt.load(asked.prompt, prompts), "act/suggested" if admit else "act/admissible"
    admissible = Prompt.load(listed, prompts)

    def messages(state: ObservationChannel | State) -> list[BaseMessage]:
        actions = state["observation"].actions
        count = min(asked.count, len(actions)) if actions and not admit else asked.count
        return prompt.messages(**{"request": "", **view(state)}, count=count, admissible=_admissible(admissible, actions))

    def read(reply: AIMessage, state: ObservationChannel | State) -> Proposal:
        here = state["observation"]
        known, unlisted = read_options(answer_text(reply), here.actions, partial(admit, here) if admit else lambda action: "")
        lost, top = sum(unlisted.values()), max(*known.values(), *unlisted.values(), 0.0)
        whole = sum(known.values()) + lost or 1.0 if asked.is_normalised else 100.0 if top > 1 else 1.0
        logits = {action: math.log(max(confidence / whole, MIN_CONFIDENCE)) for action, confidence in known.items()}
        proposed: Proposal = {"candidates": [Candidate(action, z) for action, z in logits.items()]}
        if asked.is_normalised:
            options = list(dict.fromkeys([*known, *(here.actions if lost else ())]))
            proposed = {"candidates": candidates_from_logits(options, _complete(logits, options))}
        if lost and lost >= sum(known.values()):
            likeliest = max(unlisted, key=lambda one: unlisted[one])
            raise DoubtfulReply(unlisted_action(likeliest, here.actions), proposed)
        return proposed

    again, form = Prompt.load("ask/again", prompts), reply_schema(options=OPTIONS)
    known = None if admit else _only_action
    return Ask(asked.prompt, model, messages, read, again, on_bad_reply=_lose_step, reply_schema=form, known=known, view=view)


def act_policy(
    model: BaseChatModel,
    view: PromptView,
    name: str = "act/write",
    prompts: Path | None = None,
    *,
    free_text: bool | Sequence[str] = False,
    vote_mark: str = "",
) -> Ask[ObservationChannel | State, Proposal]:
    """Ask for a thought and one action. The only candidate is the action after the first `Action:` of the reply (`read_action`).

    Args:
        model: the chat model.
        view: the values of the prompt.
        name: name of the prompt.
        prompts: a directory whose files override ours.
        free_text: whether the world accepts actions that it does not list (an environment's `free_text`). A world that lists
            some all the same has such an action asked for once more, with the nearest listed ones, and then takes what is
            written. Words such as `search` are accepted with any text in brackets behind them at once.
        vote_mark: a mark such as `Memory`: the reply's line `Memory: yes` or `no` is read into the channel `vote`. Any other
            word, or no such line, is a no and is counted (`Usage.malformed`). Empty: no vote.
    """
    prompt, admissible = Prompt.load(name, prompts), Prompt.load("act/admissible", prompts)
    some = Prompt.load("act/suggested", prompts)

    def messages(state: ObservationChannel | State) -> list[BaseMessage]:
        return prompt.messages(
            **{"request": "", **view(state)},
            admissible=_admissible(some if free_text else admissible, state["observation"].actions),
        )

    def read(reply: AIMessage, state: ObservationChannel | State) -> Proposal:
        answer, actions = answer_text(reply), state["observation"].actions
        action, is_listed = read_action(answer, actions, is_cut_off(reply))
        proposed: Proposal = {"candidates": [Candidate(action, 0.0)]}
        if vote_mark:
            vote = read_vote(answer, vote_mark)
            proposed |= {"vote": bool(vote), "usage": Usage(malformed=int(vote is None))}
        if is_listed or not actions or _takes_any_text(action, free_text):
            return proposed
        unlisted = unlisted_action(action, actions)
        if not free_text:
            raise unlisted
        raise DoubtfulReply(unlisted, proposed, ". If you mean it all the same, answer the same again")

    again = Prompt.load("ask/again", prompts)
    # A model that is told to think in tags may write the text of `STOP` there.
    stop = () if "<think>" in "".join(template.template for _, template in prompt.parts) else STOP
    known = None if free_text else _only_action
    return Ask(name, model, messages, read, again, on_bad_reply=_lose_step, stop=stop, known=known, view=view)


def _takes_any_text(action: str, free_text: bool | Sequence[str]) -> bool:
    """True if the action begins with one of the words that take any text in brackets."""
    return not isinstance(free_text, bool) and action.lower().startswith(tuple(f"{word}[" for word in free_text))


def answer_policy(
    model: BaseChatModel,
    view: PromptView,
    read_actions: Callable[[str], Sequence[str]],
    name: str = "act/answer",
    prompts: Path | None = None,
) -> Ask[State, PlanChannels]:
    """Ask for a whole answer, and play it action by action; the next answer is asked for when no action is left.

    `read_actions` splits an answer into actions (an environment's `read`). An answer that cannot be read is played as it is:
    the world rejects it, and the attempt's reward is missing. The model is not asked again, as that would be another attempt.
    It is asked again where there is no answer at all: after a refusal, and where the reply was cut off before one. If that
    stays so, an empty answer is played.
    """
    prompt = Prompt.load(name, prompts)

    def play(answer: str, actions: Sequence[str]) -> PlanChannels:
        first, *rest = [*actions] or [answer]
        return {"candidates": [Candidate(first, 0.0)], "plan": rest}

    def read(reply: AIMessage, state: State) -> PlanChannels:
        try:
            answer = answer_text(reply)
        except (Refusal, CutOff):
            raise
        except Unreadable:
            return play("", ())
        actions = read_actions(answer)
        if is_cut_off(reply) and not actions:
            raise CutOff("the reply was cut off before its answer; answer shorter")
        return play(answer, actions)

    def on_bad_reply(bad: BadReply, state: State) -> PlanChannels:
        return play("", ())

    again = Prompt.load("ask/again", prompts)

    def messages(state: State) -> list[BaseMessage]:
        return prompt.messages(**{"request": "", **view(state)})

    def next_of_plan(state: State) -> PlanChannels | None:
        plan = state.get("plan") or []
        return {"candidates": [Candidate(plan[0], 0.0)], "plan": plan[1:]} if plan else None

    return Ask(name, model, messages, read, again, on_bad_reply=on_bad_reply, known=next_of_plan, view=view)


def _only_action(state: ListedActions | ObservationChannel | State) -> Proposal | None:
    """The proposal where the world admits a single action: there is nothing to choose, and no model is asked."""
    actions = state["observation"].actions
    return {"candidates": [Candidate(actions[0], 0.0)], "vote": False} if len(actions) == 1 else None


def _admissible(prompt: Prompt, actions: Sequence[str]) -> str:
    return text(prompt.messages(actions="\n".join(f"- {a}" for a in actions))[0]) if actions else ""


def admissible_actions(state: State | ListedActions, policy: str) -> tuple[str, ...]:
    """The admissible actions, for a policy that needs them; `policy` names it in errors."""
    actions: tuple[str, ...] = state["observation"].actions
    if not actions:
        raise PolicyError(
            f"the {policy} policy chooses among admissible actions, but task {state['task'].id} lists none at step "
            f"{state['step']}; use --policy verbalized"
        )
    return actions
