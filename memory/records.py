"""The vocabulary: small immutable records that all other files use.

One thing has one name here, though the papers use the same words for different things (a paper's "experience" may be a
`Trajectory`, an `Experience` or a `Lesson`). Standard library only, so that any file may import this one.

Sequences are tuples. LangGraph's checkpoints give tuples back as lists, so every record turns its sequences into tuples
again when it is made: a record read from a checkpoint equals the original.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, TypeVar, dataclass_transform

from .display import Table, make_table
from .errors import UserError

__all__ = [
    "NO_ACTION",
    "OPS",
    "RECORDS",
    "Candidate",
    "ChatCall",
    "ChatRequest",
    "Check",
    "Comparison",
    "Correction",
    "Edit",
    "Estimate",
    "Exchange",
    "ExchangeQuery",
    "Experience",
    "Feedback",
    "FeedbackReceipt",
    "Lesson",
    "Measured",
    "Minibatch",
    "Neighbour",
    "Observation",
    "Piece",
    "Precedent",
    "Probe",
    "Reply",
    "Rollout",
    "Ruling",
    "Sampling",
    "Shown",
    "Strategy",
    "Summary",
    "Task",
    "Trajectory",
    "Transition",
    "Update",
    "Usage",
]


T = TypeVar("T")
_RECORDS = list[type]()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """Class decorator of the records here: a frozen dataclass whose sequences become tuples when it is made, pairs in them too."""
    kept = {name: "tuple[tuple" in hint for name, hint in kind.__annotations__.items() if hint.startswith("tuple[")}
    checked = kind.__dict__.get("__post_init__")

    def settle(self: Any) -> None:
        for name, has_pairs in kept.items():
            items = getattr(self, name)
            object.__setattr__(self, name, tuple(map(tuple, items) if has_pairs else items))
        if checked is not None:
            checked(self)

    if kept:
        kind.__post_init__ = settle  # type: ignore[attr-defined]
    made = dataclass(frozen=True, slots=True)(kind)
    _RECORDS.append(made)
    return made


@record
class Task:
    """A task: one instance of an environment (a game with its map, a domain with its rules)."""

    id: str
    """Unique within the environment, e.g. `coin-test-3`."""
    instruction: str
    """The goal, in words, as the agent reads it."""
    seed: int = 0
    """Selects the instance that the environment builds. The same task always means the same rules and the same start."""


@record
class Observation:
    """The world's answer to an action, or its first sight at the start."""

    text: str
    """The text that the agent reads."""
    actions: tuple[str, ...] = ()
    """The admissible actions, sorted and without repeats; empty if the environment lists none."""
    reward: float | None = 0.0
    """r_t of the action that led here, in the environment's units; 0 at the start. None: unknown, since it could not be read."""
    over: bool = False
    """True when the episode has ended; then `actions` is empty."""
    key: str = ""
    """The state key that a node made of what led here (nodes/retrieve/context.py); empty: there is none."""


@record
class Candidate:
    """A proposed action. The papers write z(s, a) for its logit."""

    action: str
    logit: float
    """Log-probability in nats, <= 0 as a policy proposes it; any real number after a logit update."""
    source: str = "policy"
    """The proposer: `policy`, or `memory` for an action that only the memory knows (JitRL, Eq. 23)."""


@record
class Neighbour:
    """The statistics of an action in a remembered state that resembles the present state.

    The statistics are over the returns G of all visits to that (state, action): Welford's count, mean and M2.
    """

    id: str
    """Id of the newest experience behind these numbers."""
    similarity: float
    """Similarity of the remembered state to the present one, in [0, 1]."""
    action: str
    count: int
    mean: float
    """Mean return, in reward units."""
    m2: float = 0.0
    """Sum of squared deviations from the mean, in reward units squared; the variance is m2 / (count - 1)."""
    losses: int = 0
    """Number of those visits with which an episode was lost (`Trajectory.lost`)."""
    elsewhere: int = 0
    """Number of those visits whose task is another one than the present one."""


NO_ACTION = "(no action: the reply could not be used)"
"""The action of a lost step: the agent's replies could not be used, and the world received nothing. Prompts show it."""


@record
class Transition:
    """One step: (s_t, a_t, r_t)."""

    state: str
    """The abstract state in which the action was taken (JitRL's s = Abstract(observation))."""
    action: str
    reward: float | None
    """r_t; None where it is missing (a failed judge), which is not zero."""
    observation: str = ""
    """The text that the agent read in that state; empty where it is the state word for word, or was not recorded."""

    @property
    def observation_text(self) -> str:
        """The text that the agent read, or the state where no other text is known."""
        return self.observation or self.state

    @property
    def is_lost(self) -> bool:
        """True if the world received no action at this step. Nothing can be learned from it."""
        return self.action == NO_ACTION


@record
class Trajectory:
    """A finished attempt at a task; the papers call it rollout, experience (AdaMEM, ICRL) or exemplar."""

    id: str
    """`<run>/<episode>`: derived, never random, so that storing it twice stores it once."""
    task: Task
    transitions: tuple[Transition, ...]
    run: str = ""
    """The run it belongs to. A replayed run sees only attempts of its own earlier episodes."""
    episode: int = 0
    """Number of the attempt within the run, from 0."""
    score: float = 0.0
    """Sum of the environment's rewards, in its own units; the transitions hold the judge's rewards."""
    domain: str = ""
    """The environment's name, which its tasks share: the scope of cross-task memory."""
    note: str = ""
    """The agent's own note on the attempt: Reflexion's plan, Self-Refine's feedback. Empty without one."""
    used: tuple[str, ...] = ()
    """Ids of the trajectories that the agent consulted on the way."""
    last_observation: str = ""
    """The world's answer to the last action; empty where it was not recorded."""
    user: str = ""
    """The user whose conversation it was; empty: nobody's, or not known."""
    lost: bool = False
    """True if the world ended the attempt before its step limit, and the last step made no progress (`memory.returns.progress`)."""
    states: dict[str, list[str]] = field(default_factory=dict)
    """A method that compares states by another text than the steps have -> that text at each step."""

    def for_method(self, method: str) -> Trajectory:
        """The attempt with the states by which a method compares."""
        if (states := self.states.get(method)) is None:
            return self
        own = [replace(step, state=state) for step, state in zip(self.transitions, states, strict=True)]
        return replace(self, transitions=tuple(own), states={})

    def table(self) -> Table:
        """A table of the steps."""
        rows = ((n, step.state, step.action, step.reward) for n, step in enumerate(self.transitions))
        title = f"{self.id}: {self.task.instruction or self.task.id}, score {self.score:g}"
        return make_table(title, ("step", "state", "action", "reward"), rows, len(self.transitions))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    @property
    def value(self) -> float | None:
        """The return that the method learns from: the undiscounted sum of the rewards r. None if one of them is missing."""
        rewards = [step.reward for step in self.transitions]
        return None if None in rewards else float(sum(r for r in rewards if r is not None))


@record
class Shown:
    """The form in which a prompt shows an earlier attempt."""

    id: str
    """Id of the trajectory."""
    whole: bool = True
    """True: with all its steps; False: as one line."""
    count: int = 1
    """Number of attempts with exactly these actions; only one of them is shown."""


@record
class Precedent:
    """A reference to a remembered step that resembles the present one (an element of AdaMEM's E_ret)."""

    trajectory: str
    """Id of the trajectory."""
    step: int
    """t of the step within it, from 0."""
    similarity: float
    """Similarity of its key to the present one: Jaccard in [0, 1], or cosine in [-1, 1]."""
    success: bool | None = None
    """True if that trajectory succeeded; None if unknown."""


@record
class Strategy:
    """Advice for the next actions, written during the episode (AdaMEM's short-term memory z); never stored in a library."""

    text: str
    sources: tuple[str, ...] = ()
    """The precedents it was written from, `<trajectory id>/<step>`; empty: none (such strategies do harm, AdaMEM shows)."""
    step: int = 0
    """t at which it was written."""
    author: str = "model"
    """The writer: `model`, or `rule` (`RecallStrategy`)."""


@record
class Lesson:
    """A reusable piece of advice kept in a library (ReasoningBank's item; in Training-Free GRPO, an "experience")."""

    id: str
    """Derived from its source, never random."""
    text: str
    """The advice itself, one to three sentences."""
    title: str = ""
    description: str = ""
    """The situation in which it applies, in a sentence."""
    task: str = ""
    """Id of the task it was learned on."""
    instruction: str = ""
    """That task's text, by which the lesson is found."""
    domain: str = ""
    run: str = ""
    episode: int = 0
    success: bool | None = None
    """True if it was learned from a success; None if unknown."""
    sources: tuple[str, ...] = ()
    """Ids of the trajectories it was learned from."""
    problems: tuple[str, ...] = ()
    """Ids of the tasks whose groups of rollouts led to it (Training-Free GRPO)."""
    rewards: tuple[float, ...] = ()
    """Rewards of those rollouts, group after group."""
    step: int = 0
    """The learning step that changed it last."""
    helpful: int = 0
    """Votes for it: groups in which it helped, or which led to the same lesson again."""
    harmful: int = 0
    """Votes against it."""
    shown: int = 0
    """Rollouts of learning steps whose prompts carried it."""

    @property
    def digest(self) -> str:
        """A digest of its text: lessons with the same text have the same."""
        return blake2b(self.text.encode(), digest_size=8).hexdigest()


@record
class Edit:
    """A proposed change of a library (the papers' "operation")."""

    op: str
    """One of `OPS`."""
    lessons: tuple[str, ...] = ()
    """Ids of the lessons it changes: none for add; one for modify, delete and keep; two or more for merge."""
    text: str = ""
    """The new text of the lesson, for add, modify and merge."""
    why: str = ""
    """The proposer's reason, if it gave one."""
    problems: tuple[str, ...] = ()
    """Ids of the tasks whose groups of rollouts led to it."""
    rewards: tuple[float, ...] = ()
    """Rewards of those rollouts."""
    step: int = 0
    """The learning step it belongs to."""


OPS = ("add", "modify", "merge", "delete", "keep")
"""The operations of an edit. `keep` changes no text; it is a vote for a lesson that has proved itself."""


@record
class Ruling:
    """The decision on a proposed edit. The ledger has one for every edit."""

    edit: Edit
    accepted: bool
    reason: str = ""
    """The reason for a refusal, or the change made in its place ("says what L3 says")."""
    lesson: str = ""
    """Id of the lesson that the edit made or changed."""


@record
class Rollout:
    """One attempt of a group at a problem, in the form in which attempts are compared."""

    id: str
    """`<run>/<task id>/<number>`, where the run names the step, too."""
    task: Task
    number: int
    """g, from 0: its place in the group."""
    reward: float | None
    """r in [0, 1], from the verifier; None: missing, see `error`. A missing reward counts as 0 in results, and its
    rollout is in no comparison."""
    answer: str = ""
    """The result: the last action, or the written answer."""
    transcript: str = ""
    """Actions and observations, as prompts show them."""
    steps: int = 0
    """Actions taken."""
    tool_calls: int = 0
    usage: Usage = field(default_factory=lambda: Usage())
    seconds: float = 0.0
    """Wall time."""
    trajectory: Trajectory | None = None
    """Its steps, for worlds played step by step."""
    shown: tuple[str, ...] = ()
    """Ids of the lessons that its prompts carried."""
    error: str = ""
    """The reason for a missing reward: the rollout failed, ran out of time, or could not be verified."""


@record
class Summary:
    """An account of a rollout in words: its actions, and where it went right or wrong."""

    number: int
    """g of its rollout."""
    text: str
    written: bool = True
    """False: no summary could be had, and the text is the transcript, cut to size."""


@record
class Comparison:
    """The result of comparing the rollouts of a group: its semantic advantage, the output of a group."""

    task: str
    """Id of the problem."""
    rewards: tuple[float | None, ...] = ()
    """One per rollout, by number, after costs: the comparison goes by these. None: missing."""
    truths: tuple[float | None, ...] = ()
    """The verifier's rewards, for the record only. Where the method works without ground truth, no prompt shows them."""
    kind: str = "mixed"
    """`mixed`: the rollouts differ and were compared; `hard`: all failed, and were compared with the reference; `single`: one
    rollout, studied by itself; `unlabelled`: compared without rewards; `alike`: nothing to learn; `failed`: fewer than two rollouts finished; `stopped`: the budget is spent."""
    insights: tuple[str, ...] = ()
    """The conclusions of the comparison, in words."""
    edits: tuple[Edit, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    """Edits that were dropped on the way, with the reason."""
    votes: tuple[tuple[str, int], ...] = ()
    """(lesson id, +1 or -1): lessons that the comparison found to have helped or harmed."""
    shown: tuple[tuple[str, int], ...] = ()
    """(lesson id, number of the group's rollouts whose prompts carried it)."""
    failures: tuple[str, ...] = ()
    """Failures in words: of rollouts, summaries, replies."""
    steps: int = 0
    """Actions taken by all its rollouts."""
    tool_calls: int = 0


@record
class Probe:
    """One rollout of the accept test: a held-out problem under one of the two libraries."""

    library: str
    """Name of the version."""
    task: str
    number: int
    reward: float
    """A missing reward counts as 0."""
    error: str = ""


@record
class Estimate:
    """The value that the memory estimates for one candidate action in the present state."""

    action: str
    count: float
    """Visits behind it, as a (weighted) number of experiences; 0 for an action that was never tried near this state."""
    value: float
    """Q(s, a) in reward units."""
    advantage: float
    """Q(s, a) - V(s), in reward units."""
    shift: float
    """The normalised advantage, without unit; a logit moves by beta times this."""
    explored: bool = False
    """True where the exploration draw gave an untried action its bonus (JitRL, Eq. 6); recorded so that it can be replayed."""


@record
class Usage:
    """Calls and tokens of models; two usages add up."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    refreshes: int = 0
    """Strategies written (AdaMEM)."""
    malformed: int = 0
    """Decisions that could not be read and counted as no."""
    studied: int = 0
    """Tokens spent once, before the first attempt (reading ReasoningBank's pool); not among the others."""
    unreadable: int = 0
    """Replies that could not be used: asked for again, or given up."""
    lost_steps: int = 0
    """Steps that were lost because no reply could be used."""
    refused: int = 0
    """Unusable replies in which the model refused."""
    filtered: int = 0
    """Unusable replies that a content filter of the server stopped."""
    cut_off: int = 0
    """Unusable replies that ended at the limit of tokens."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def tokens(self) -> int:
        """The tokens read and written."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def from_reply(cls, reply: Any) -> Usage:
        """The usage of one reply (a LangChain `AIMessage`), from its usage metadata."""
        counted = getattr(reply, "usage_metadata", None) or {}
        return cls(1, counted.get("input_tokens", 0), counted.get("output_tokens", 0))


@record
class Experience:
    """The return of one action in one state: JitRL's triplet (s, a, G)."""

    id: str
    """`<trajectory id>/<step>`."""
    state: str
    action: str
    value: float
    """The discounted return G_t, in reward units (Eq. 3)."""
    run: str = ""
    episode: int = 0
    task: str = ""
    """Id of the task on which it was earned."""
    domain: str = field(default="")
    """The environment's name, which its tasks share: the scope of cross-task memory."""
    lost: bool = False
    """True if this step lost the episode (`Trajectory.lost`)."""


@record
class Sampling:
    """Sampling parameters of a reply."""

    temperature: float = 1.0
    """Temperature of the softmax over tokens; 0 takes the most probable token."""
    top_p: float = 1.0
    """Nucleus sampling: draws from the fewest most probable tokens whose probabilities reach this sum."""
    max_tokens: int = 256
    """Length of the longest reply, in tokens."""
    seed: int | None = None
    """The same request and seed give the same reply; None: another reply each time."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply and are not part of it."""


@record
class ChatRequest:
    """A request to a chat API for one reply."""

    messages: tuple[dict[str, Any], ...] = ()
    """Messages in OpenAI's shape: `role`, `content`, and the keys of tool calls."""
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that the model may call, in OpenAI's shape."""
    tool_choice: Any = None
    """`none`, `auto`, `required`, or a function by name, in OpenAI's shape."""
    response_format: dict[str, Any] | None = None
    top_logprobs: int | None = None
    """Number of alternatives to report with each token; None: no log-probabilities at all."""
    raw: str | None = None
    """A text to continue, without a chat template (`/v1/completions`); then `messages` is empty."""
    more: dict[str, Any] = field(default_factory=dict)
    """Options that only some engines know, under OpenAI's names (`presence_penalty`, `logit_bias`)."""


@record
class ChatCall:
    """One call of a served model: what is asked, by whom, and how the exchange is kept."""

    id: str
    """Id of the response, by which feedback names it."""
    tenant: str
    request: ChatRequest
    adapter: str = "default"
    """The tenant's adapter that answers."""
    family: str = ""
    """Kind of the exchange, for stratified sampling and the gate's comparisons."""
    scenario: str = ""
    turn: int = 0
    """Number of the turn in its conversation, from 0."""
    user: str = ""
    """The end user, as the tenant names him; empty: not named."""
    store: bool = True
    """Keep the exchange. One that is not kept takes no feedback."""


@record
class Piece:
    """A part of a reply that is being generated."""

    text: str = ""
    logprobs: tuple[dict[str, Any], ...] = ()
    """Of its tokens, in OpenAI's shape (`token`, `logprob`, `bytes`, `top_logprobs`), if asked for."""
    num_tokens: int = 1
    """Tokens since the piece before."""


@record
class Reply:
    """A finished reply of the engine."""

    text: str
    prompt_ids: tuple[int, ...]
    """Token ids of the prompt, through the chat template."""
    token_ids: tuple[int, ...]
    """As sampled, with the end of turn; never encoded anew from the text."""
    logprobs: tuple[float, ...]
    """log mu(y_t) in nats, one per token, under the distribution it was drawn from (after temperature and top-p)."""
    finish: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    version: str = ""
    """Label of the adapter version that made it (`memory.claas.adapters`); empty: the base model."""
    cached: int = 0
    """Tokens of the prompt that were in the prefix cache."""
    thoughts: str = ""
    """What the model thought before it replied. Its tokens are in `token_ids`, its text is not in `text`."""
    flaw: str = ""
    """Reason why nothing can be learned from it; empty: there is none."""
    billed: tuple[int, ...] = ()
    """Tokens of the prompt and of the reply, as another's service bills them that shows no token ids; empty: the ids are all there."""

    @property
    def lengths(self) -> tuple[int, int]:
        """Numbers of tokens of the prompt and of the reply."""
        asked, said = self.billed or (len(self.prompt_ids), len(self.token_ids))
        return asked, said


@record
class Feedback:
    """Feedback on a served reply: a number, words, the reply as it should have been, or several of these.

    Raises:
        UserError: it has none, or the reward is not a number from -1 to 1.
    """

    reward: float | None = None
    """r in [-1, 1]; None: words only."""
    text: str = ""
    """A criticism or correction, in words."""
    source: str = "user"
    """The sender: `user`, `verifier`, `judge`."""
    correction: str = ""
    """The reply as it should have been, whole; empty: not given."""

    @property
    def is_mixed(self) -> bool:
        """True for a reward above 0 with words: praise, or a correction that contradicts it. The learner finds out which."""
        return self.reward is not None and self.reward > 0 and bool(self.text.strip())

    def __post_init__(self) -> None:
        if self.reward is None and not self.text.strip() and not self.correction.strip():
            raise UserError(
                "feedback: says nothing; give a reward from -1 to 1, success (true or false), a text, or a correction"
            )
        if self.reward is not None and not -1 <= self.reward <= 1:  # nan is not, either
            raise UserError(f"feedback: a reward is a number from -1 to 1, got {self.reward}")


@record
class FeedbackReceipt:
    """The answer to feedback: which job learns from it, and the state of the exchange."""

    job: str
    """Id of the job that learns from it; derived from tenant, exchange and revision."""
    exchange: str
    """Id of the exchange."""
    state: str
    """State of the exchange's record now: `ready`, `held`, or a later one if `is_repeat`."""
    is_repeat: bool
    """True if the same feedback was there already; then nothing has changed."""


@record
class Exchange:
    """One served chat turn (CLaaS's rollout): the request, the reply with its version, and the feedback."""

    id: str
    """Id of the response; feedback names it."""
    tenant: str
    """The owner; from the credential, never from the request."""
    request: ChatRequest
    reply: Reply
    base: str
    """Fingerprint of the base model, its tokenizer and chat template."""
    adapter: str = "default"
    """The tenant's adapter that answered, and learns from it."""
    step: int = 0
    """P(i): gradient steps behind the version that made it. Its age is the number of steps since then."""
    feedback: Feedback | None = None
    """None: none yet."""
    family: str = ""
    """The kind of chat (an application, a family of scenarios); samples are stratified by it."""
    scenario: str = ""
    """The scenario that it is a turn of, if any."""
    turn: int = 0
    """Number of the turn, from 0."""
    created: float = 0.0
    """Unix time in seconds."""
    user: str = ""
    """The tenant's end user who chatted; empty: not named."""


@record
class ExchangeQuery:
    """A question for a tenant's exchanges, newest first."""

    tenant: str
    adapter: str | None = None
    """Only those of this adapter."""
    state: str | None = None
    """Only those in this state of the replay buffer."""
    limit: int = 50
    """Exchanges at most."""
    before: str | None = None
    """Id of the exchange after which the list goes on."""
    learned_by: str | None = None
    """A version; only those that its own step learned from."""
    user: str | None = None
    """Only those of this end user."""
    is_rated: bool = False
    """Only those with feedback."""


@record
class Minibatch:
    """The exchanges of one gradient step, fixed when they are leased: a step repeated after a crash has the same ones."""

    id: str
    """`<tenant>/<adapter>/<step>`: derived, never random."""
    tenant: str
    adapter: str
    step: int
    """k: the gradient step it is for, from 1; the steps taken before it are k - 1."""
    parent: str
    """Label of the version that learns from it; empty: the base model."""
    exchanges: tuple[Exchange, ...]
    seed: int
    """Seed of all random draws in the step."""
    witnesses: tuple[Exchange, ...] = ()
    """The adapter's newest exchanges with a reward, by which the step weighs what its rewards say; none: rewards count as they are."""
    rehearsal: tuple[Exchange, ...] = ()
    """Newest replies that were liked without a word, which the step must not lose, and newest corrected ones, which it must not unlearn."""
    retained: tuple[Exchange, ...] = ()
    """Chats of the retention set with the base model's log-probabilities of their replies, which must stay as likely, but for their first
    and last tokens."""

    @property
    def ages(self) -> tuple[int, ...]:
        """Gradient steps between the version that made each exchange and the version that learns."""
        return tuple(self.step - 1 - exchange.step for exchange in self.exchanges)


@record
class Correction:
    """The off-policy correction of a batch: the learner's distance from the sampling policy, and the remaining exchanges."""

    kept: tuple[str, ...]
    """Ids of the exchanges to learn from."""
    dropped: tuple[tuple[str, str], ...] = ()
    """(id, why not)."""
    ess: float = 1.0
    """(sum w)^2 / (N sum w^2) over the kept sequences' untruncated ratios, in (0, 1]: the effective share of the sample."""
    ratio: float = 1.0
    """Mean of pi_old / mu over tokens."""
    ratio_max: float = 1.0
    clipped: float = 0.0
    """Share of tokens whose weight was truncated."""
    kl: float = 0.0
    """Mean of log mu - log pi_old over the tokens, in nats: KL(mu || pi_old), estimated."""
    scale: float = 1.0
    """Factor on the learning rate."""
    evidence: float | None = None
    """Standard errors by which like replies have like rewards; None: it was not measured, and all rewards teach as they were given."""
    advantages: tuple[tuple[str, float], ...] = ()
    """(id, advantage of the reward as those of like replies confirm it) of the replies whose rewards teach, where evidence was measured."""
    max_kl: float = math.inf
    """Largest KL(pi || base) per token that the step may end with on these exchanges, in nats."""
    min_entropy_share: float = 0.0
    """Share of the base model's entropy on these exchanges that the step must leave."""
    kls: tuple[tuple[str, float], ...] = ()
    """(id, mean of log mu - log pi_old over its reply, in nats); adaptive eviction goes by this."""


LEARNED_ALREADY = "learned already"
"""The beginning of an update's `skipped` where all replies that should have been are learned."""


@record
class Update:
    """The result of a gradient step."""

    version: str
    """Label of the version that it made; empty: none, see `skipped`."""
    skipped: str = ""
    """The reason why nothing was learned (all rewards alike, nothing left after the correction)."""
    help: str = ""
    """What would teach more, where the exchanges ask for nothing that is not learned: they were not used up. Empty: they were."""
    loss: float = 0.0
    norm: float = 0.0
    """Norm of the gradient before clipping."""
    rate: float = 0.0
    """The learning rate that was used."""
    tokens: int = 0
    """Tokens learned from."""
    entropy: float = 0.0
    """Mean entropy of the learner before each of these tokens, in nats."""
    kl: float = 0.0
    """Mean KL(pi || base) at these tokens after the step, in nats."""
    shrink: float = 1.0
    """Factor by which the adapter was scaled down after the step, to stay within the correction's limits; 1: it was within them."""
    seconds: float = 0.0
    """Wall time."""


@record
class Measured:
    """Measurements of a version on fixed texts, for the gate, in nats."""

    logprobs: tuple[tuple[float, ...], ...]
    """Log-probability of each reply token of each text."""
    entropy: float = 0.0
    """Mean entropy of the next token."""
    kl: float = 0.0
    """Mean KL(pi || base) per token; 0: not measured."""
    firsts: tuple[int, ...] = ()
    """The likeliest first token of each reply."""
    base_entropy: float = 0.0
    """Mean entropy of the base model's next token; 0: KL was not measured."""

    @property
    def sums(self) -> tuple[float, ...]:
        """Log-probability of each whole reply."""
        return tuple(map(math.fsum, self.logprobs))


@record
class Check:
    """One line of a gate's result."""

    name: str
    """`lineage`, `retention`, `entropy`, `kl`, `corrected replies lost`, `shared words lost`, `own words lost`."""
    value: float | None
    """Of the candidate; None: not measured."""
    limit: float
    """The greatest value that passes (for `lineage` and `entropy`, the least)."""
    passed: bool
    note: str = ""


RECORDS: tuple[type, ...] = tuple(_RECORDS)
"""Every record of this file; the checkpoint serializer's allow-list is made from this."""
