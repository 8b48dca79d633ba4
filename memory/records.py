"""The vocabulary: small immutable records that every other file speaks in.

One thing has one name here, though the papers use the same words for different things (a paper's "experience" may be a
`Trajectory`, an `Experience` or a `Lesson`). Standard library only, so that any file may import this one.

Sequences are tuples. LangGraph's checkpoints give tuples back as lists, so every record turns its sequences into tuples
again when it is made: a record that was checkpointed equals the one that was not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from .errors import UserError

__all__ = [
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


def _tuple(record: object, name: str, items: Iterable[Any]) -> None:
    object.__setattr__(record, name, tuple(items))


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done: one instance of an environment (a game with its map, a domain with its rules)."""

    id: str
    """Unique within the environment, e.g. `coin-test-3`."""
    instruction: str
    """What the agent is told to do, in words."""
    seed: int = 0
    """Which instance the environment builds. The same task always means the same rules and the same start."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the world shows after an action (or at the start, after none)."""

    text: str
    """What the agent reads."""
    actions: tuple[str, ...] = ()
    """The admissible actions, sorted and without repeats; empty if the environment lists none."""
    reward: float | None = 0.0
    """r_t of the action that led here, in the environment's units; 0 at the start. None: the action could not be read, so
    nothing can be said of its worth (which is not the same as worth nothing)."""
    over: bool = False
    """True when the episode has ended; then `actions` is empty."""

    def __post_init__(self) -> None:
        _tuple(self, "actions", self.actions)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed action. The papers write z(s, a) for its logit."""

    action: str
    logit: float
    """Log-probability in nats, <= 0 as a policy proposes it; any real number after a logit update."""
    source: str = "policy"
    """Who proposed it: `policy`, or `memory` for an action that only the memory knows (JitRL, Eq. 23)."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What the memory knows of one action in one remembered state that resembles the present one.

    The statistics are over the returns G of all visits to that (state, action): Welford's count, mean and M2.
    """

    id: str
    """Id of the newest experience behind these numbers."""
    similarity: float
    """Of the remembered state to the present one, in [0, 1]."""
    action: str
    count: int
    mean: float
    """Mean return, in reward units."""
    m2: float = 0.0
    """Sum of squared deviations from the mean, in reward units squared; the variance is m2 / (count - 1)."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step: (s_t, a_t, r_t)."""

    state: str
    """The abstract state in which the action was taken (JitRL's s = Abstract(observation))."""
    action: str
    reward: float | None
    """r_t; None where nobody could say (a failed judge): missing, which is not zero."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished attempt at a task: what the papers call rollout, experience (AdaMEM, ICRL) or exemplar."""

    id: str
    """`<run>/<episode>`: derived, never random, so that storing it twice stores it once."""
    task: Task
    transitions: tuple[Transition, ...]
    run: str = ""
    """The run it belongs to; with `episode` it says what a replayed run must not see yet."""
    episode: int = 0
    """Number of the attempt within the run, from 0."""
    score: float = 0.0
    """What the environment paid in all, in its own units; the judge's opinion is in the transitions."""
    domain: str = ""
    """What the task shares with other tasks (the environment's name): the scope of cross-task memory."""
    note: str = ""
    """What the agent wrote about the attempt afterwards: Reflexion's plan, Self-Refine's feedback. Empty without."""
    used: tuple[str, ...] = ()
    """Ids of the trajectories that the agent consulted on the way: what they were good for is derived from this."""

    def __post_init__(self) -> None:
        _tuple(self, "transitions", self.transitions)
        _tuple(self, "used", self.used)

    @property
    def value(self) -> float | None:
        """The return as the method sees it: the sum of its rewards r, undiscounted. None if one of them is missing."""
        rewards = [step.reward for step in self.transitions]
        return None if None in rewards else float(sum(r for r in rewards if r is not None))


@dataclass(frozen=True, slots=True)
class Shown:
    """How an earlier attempt stands in a prompt."""

    id: str
    """Of the trajectory."""
    whole: bool = True
    """With all its steps; False: as one line."""
    count: int = 1
    """How often just these actions were taken; the other attempts with them are not shown."""


@dataclass(frozen=True, slots=True)
class Precedent:
    """A remembered step that resembles the present one (AdaMEM's E_ret): where it stands, not a copy of it."""

    trajectory: str
    """Id of the trajectory."""
    step: int
    """t of the step within it, from 0."""
    similarity: float
    """Of its key to the present one: Jaccard in [0, 1], or cosine in [-1, 1]."""
    success: bool | None = None
    """How that trajectory ended; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Advice for the next actions, written on the spot (AdaMEM's short-term memory z); never stored in a library."""

    text: str
    sources: tuple[str, ...] = ()
    """The precedents it was written from, `<trajectory id>/<step>`; empty: from none, which is known to do harm."""
    step: int = 0
    """t at which it was written."""
    key: str = ""
    """phi(s_t), the key of the state it was written for."""
    author: str = "model"
    """Who wrote it: `model`, or `rule` (`RecallStrategy`)."""

    def __post_init__(self) -> None:
        _tuple(self, "sources", self.sources)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A reusable piece of advice kept in a library (ReasoningBank's item; in Training-Free GRPO, an "experience")."""

    id: str
    """Derived from where it was learned, never random."""
    text: str
    """The advice itself, one to three sentences."""
    title: str = ""
    description: str = ""
    """When it applies, in a sentence."""
    task: str = ""
    """Id of the task it was learned on."""
    instruction: str = ""
    """That task's text: what it is found by."""
    domain: str = ""
    run: str = ""
    episode: int = 0
    success: bool | None = None
    """Whether it was learned from a success; None where nobody knows."""
    sources: tuple[str, ...] = ()
    """Ids of the trajectories it was learned from."""
    problems: tuple[str, ...] = ()
    """Ids of the tasks whose groups of rollouts taught it (Training-Free GRPO)."""
    rewards: tuple[float, ...] = ()
    """Rewards of those rollouts, group after group."""
    step: int = 0
    """The learning step that changed it last."""
    helpful: int = 0
    """Votes for it: groups in which it helped, or which taught the same again."""
    harmful: int = 0
    """Votes against it."""
    shown: int = 0
    """Rollouts of learning steps whose prompts carried it."""

    def __post_init__(self) -> None:
        for name in ("sources", "problems", "rewards"):
            _tuple(self, name, getattr(self, name))

    @property
    def digest(self) -> str:
        """Of its text: two lessons that say the same have the same."""
        return blake2b(self.text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Edit:
    """A proposed change of a library (the papers' "operation")."""

    op: str
    """One of `OPS`."""
    lessons: tuple[str, ...] = ()
    """Ids of the lessons it is about: none for add; one for modify, delete and keep; two or more for merge."""
    text: str = ""
    """What is said from now on: of add, modify and merge."""
    why: str = ""
    """The proposer's reason, if it gave one."""
    problems: tuple[str, ...] = ()
    """Ids of the tasks whose groups of rollouts led to it."""
    rewards: tuple[float, ...] = ()
    """Rewards of those rollouts."""
    step: int = 0
    """The learning step it belongs to."""

    def __post_init__(self) -> None:
        for name in ("lessons", "problems", "rewards"):
            _tuple(self, name, getattr(self, name))


OPS = ("add", "modify", "merge", "delete", "keep")
"""What an edit may do. `keep` changes nothing but says that a lesson has proved itself: a vote for it."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of a proposed edit: a line of the ledger, in which no edit is missing."""

    edit: Edit
    accepted: bool
    reason: str = ""
    """Why not, or what was done in its place ("says what L3 says")."""
    lesson: str = ""
    """Id of the lesson that it made or changed."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt of a group at a problem, as those who compare attempts see it."""

    id: str
    """`<run>/<task id>/<number>`, where the run names the step, too."""
    task: Task
    number: int
    """g, from 0: which of the group."""
    reward: float | None
    """r in [0, 1] as the verifier says; None: it could not say, see `error`. A missing reward counts as 0 in results, and its
    rollout is in no comparison."""
    answer: str = ""
    """What it came to: the last action, or the written answer."""
    transcript: str = ""
    """What was done and seen, as prompts show it."""
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
    """Why there is no reward: the rollout failed, ran out of time, or could not be verified."""

    def __post_init__(self) -> None:
        _tuple(self, "shown", self.shown)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a rollout did and where it went right or wrong, in words."""

    number: int
    """g of its rollout."""
    text: str
    written: bool = True
    """False: nobody could summarise it, and the text is the transcript, cut to size."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the rollouts of a group came to (its semantic advantage): the output of a group."""

    task: str
    """Id of the problem."""
    rewards: tuple[float | None, ...] = ()
    """One per rollout, by number: what the comparison went by, costs taken off. None: missing."""
    truths: tuple[float | None, ...] = ()
    """The verifier's rewards, for the record alone: without ground truth no prompt has seen them."""
    kind: str = "mixed"
    """`mixed`: the rollouts differ and were compared; `hard`: all failed, and were compared with the reference; `alike`: nothing
    to learn; `disagreed`: no majority; `failed`: fewer than two rollouts came to an end; `stopped`: the budget was used up."""
    insights: tuple[str, ...] = ()
    """What the comparison teaches, in words."""
    edits: tuple[Edit, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    """Edits that were dropped on the way, and why."""
    votes: tuple[tuple[str, int], ...] = ()
    """(lesson id, +1 or -1): lessons that the comparison found to have helped or harmed."""
    shown: tuple[tuple[str, int], ...] = ()
    """(lesson id, of how many of its rollouts the prompts carried it)."""
    failures: tuple[str, ...] = ()
    """What failed: a rollout, a summary, a reply."""
    steps: int = 0
    """Actions taken by all its rollouts."""
    tool_calls: int = 0

    def __post_init__(self) -> None:
        for name in ("rewards", "truths", "insights", "edits", "rulings", "failures"):
            _tuple(self, name, getattr(self, name))
        object.__setattr__(self, "votes", tuple((id, vote) for id, vote in self.votes))
        object.__setattr__(self, "shown", tuple((id, times) for id, times in self.shown))


@dataclass(frozen=True, slots=True)
class Probe:
    """One rollout of the accept test: a held-out problem under one of the two libraries."""

    library: str
    """Name of the version."""
    task: str
    number: int
    reward: float
    """A missing reward counts as 0."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the memory makes of one candidate action in the present state."""

    action: str
    count: float
    """Visits behind it, in (weighted) numbers of experiences; 0 for an action nobody tried near here."""
    value: float
    """Q(s, a) in reward units."""
    advantage: float
    """Q(s, a) - V(s), in reward units."""
    shift: float
    """The normalised advantage, without unit: what beta is multiplied with."""
    explored: bool = False
    """True where the exploration draw gave an untried action its bonus (Eq. 6); written down so that it can be replayed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was asked of models so far; adds up."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    refreshes: int = 0
    """Strategies written (AdaMEM)."""
    malformed: int = 0
    """Decisions that could not be read, and counted as no."""
    studied: int = 0
    """Tokens of what was read once, before the first attempt (ReasoningBank's pool); not among the others."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.refreshes + other.refreshes,
            self.malformed + other.malformed,
            self.studied + other.studied,
        )

    @classmethod
    def from_reply(cls, reply: Any) -> Usage:
        """Count one reply (a LangChain `AIMessage`), by the usage metadata it carries."""
        counted = getattr(reply, "usage_metadata", None) or {}
        return cls(1, counted.get("input_tokens", 0), counted.get("output_tokens", 0))


@dataclass(frozen=True, slots=True)
class Experience:
    """Action a in state s was worth G: JitRL's triplet (s, a, G)."""

    id: str
    """`<trajectory id>/<step>`."""
    state: str
    action: str
    value: float
    """The discounted return G_t, in reward units (Eq. 3)."""
    run: str = ""
    episode: int = 0
    task: str = ""
    """Id of the task it was earned on."""
    domain: str = field(default="")
    """What the task shares with other tasks (an environment's name); the scope of cross-task memory."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply is drawn, token by token."""

    temperature: float = 1.0
    """0 takes the most probable token."""
    top_p: float = 1.0
    """Draws from the fewest most probable tokens whose probabilities reach this sum."""
    max_tokens: int = 256
    """Longest reply."""
    seed: int | None = None
    """The same request and seed, the same reply; None: another each time."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply, and are not part of it."""

    def __post_init__(self) -> None:
        _tuple(self, "stop", self.stop)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a chat API is asked for one reply."""

    messages: tuple[dict[str, Any], ...] = ()
    """In OpenAI's shape: `role`, `content`, and what belongs to tool calls."""
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that the model may call, in OpenAI's shape."""
    tool_choice: Any = None
    """`none`, `auto`, `required`, or a function by name, in OpenAI's shape."""
    response_format: dict[str, Any] | None = None
    top_logprobs: int | None = None
    """How many alternatives to report with each token; None: no log-probabilities at all."""
    raw: str | None = None
    """A text to go on with, without a chat template (`/v1/completions`); then `messages` is empty."""
    more: dict[str, Any] = field(default_factory=dict)
    """Options that only some engines know, under OpenAI's names (`presence_penalty`, `logit_bias`)."""

    def __post_init__(self) -> None:
        _tuple(self, "messages", self.messages)
        _tuple(self, "tools", self.tools)


@dataclass(frozen=True, slots=True)
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
    store: bool = True
    """Whether the exchange is kept. One that is not takes no feedback."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply as it grows."""

    text: str = ""
    logprobs: tuple[dict[str, Any], ...] = ()
    """Of the tokens in it, in OpenAI's shape (`token`, `logprob`, `bytes`, `top_logprobs`), if asked for."""

    def __post_init__(self) -> None:
        _tuple(self, "logprobs", self.logprobs)


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply, as the engine gives it."""

    text: str
    prompt_ids: tuple[int, ...]
    """Token ids of the prompt, through the chat template."""
    token_ids: tuple[int, ...]
    """As sampled, the end of turn included; never made from the text again."""
    logprobs: tuple[float, ...]
    """log mu(y_t) in nats, one per token: of the distribution it was drawn from, temperature and top-p applied."""
    finish: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    version: str = ""
    """Label of the adapter version that made it (`memory.adapters`); empty: the base model."""
    cached: int = 0
    """Tokens of the prompt that did not have to be computed."""

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "token_ids", "logprobs", "tool_calls"):
            _tuple(self, name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Feedback:
    """What somebody says of a served reply: a number, words, or both.

    Raises:
        UserError: neither; or a reward that is not a number from -1 to 1.
    """

    reward: float | None = None
    """r in [-1, 1]; None: words alone."""
    text: str = ""
    """What was wrong, and what would do."""
    source: str = "user"
    """Who says so: `user`, `verifier`, `judge`."""

    def __post_init__(self) -> None:
        if self.reward is None and not self.text.strip():
            raise UserError("feedback: says nothing; a reward from -1 to 1, success (true or false), or a text would do")
        if self.reward is not None and not -1 <= self.reward <= 1:  # nan is not, either
            raise UserError(f"feedback: a reward is a number from -1 to 1, got {self.reward}")


@dataclass(frozen=True, slots=True)
class FeedbackReceipt:
    """The answer to feedback: which job learns from it, and the state of the exchange."""

    job: str
    """Id of the job that learns from it; derived from tenant, exchange and revision."""
    exchange: str
    """Id of the exchange."""
    state: str
    """State of the exchange's record now: `ready`, `held`, or a later one if `is_repeat`."""
    is_repeat: bool
    """Whether the same feedback was there already; then nothing has changed."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One served chat turn (CLaaS's rollout): what was asked, what was said by which version, and what it was worth."""

    id: str
    """Id of the response: what feedback names."""
    tenant: str
    """Whose it is; from the credential, never from the request."""
    request: ChatRequest
    reply: Reply
    base: str
    """Fingerprint of the base model, its tokenizer and chat template."""
    adapter: str = "default"
    """Which of the tenant's adapters answered, and learns from it."""
    step: int = 0
    """P(i): gradient steps behind the version that made it. Its age is the steps taken since."""
    feedback: Feedback | None = None
    """None: none yet."""
    family: str = ""
    """What kind of chat it is (an application, a family of scenarios): what samples are stratified by."""
    scenario: str = ""
    """What it is a turn of, if it is."""
    turn: int = 0
    """Which turn, from 0."""
    created: float = 0.0
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Exchanges behind one gradient step, frozen when they are leased: the same again after a crash."""

    id: str
    """`<tenant>/<adapter>/<step>`: derived, never random."""
    tenant: str
    adapter: str
    step: int
    """k: the gradient step it is for, from 1; the steps taken before it are k - 1."""
    parent: str
    """Label of the version that learns from it; empty: none yet, the base model."""
    exchanges: tuple[Exchange, ...]
    seed: int
    """Of whatever is drawn in the step."""

    def __post_init__(self) -> None:
        _tuple(self, "exchanges", self.exchanges)

    @property
    def ages(self) -> tuple[int, ...]:
        """Gradient steps between the version that made each exchange and the one that learns from it."""
        return tuple(self.step - 1 - exchange.step for exchange in self.exchanges)


@dataclass(frozen=True, slots=True)
class Correction:
    """How far the learner has moved from what sampled a batch, and what of the batch can still be learned from."""

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
    """What the learning rate is multiplied with."""
    kls: tuple[tuple[str, float], ...] = ()
    """(id, mean of log mu - log pi_old over its reply, in nats): what adaptive eviction goes by."""

    def __post_init__(self) -> None:
        _tuple(self, "kept", self.kept)
        object.__setattr__(self, "dropped", tuple((id, why) for id, why in self.dropped))
        object.__setattr__(self, "kls", tuple((id, kl) for id, kl in self.kls))


@dataclass(frozen=True, slots=True)
class Update:
    """What a gradient step did."""

    version: str
    """Label of the version that it made; empty: none, see `skipped`."""
    skipped: str = ""
    """Why nothing was learned (all rewards alike, nothing left after the correction)."""
    loss: float = 0.0
    norm: float = 0.0
    """Length of the gradient, before it was shortened."""
    rate: float = 0.0
    """The learning rate that was used."""
    tokens: int = 0
    """Tokens learned from."""
    entropy: float = 0.0
    """Mean entropy of the learner before each of these tokens, in nats."""
    kl: float = 0.0
    """KL(pi || base) there after the step, in nats; 0 where nobody measured it."""
    seconds: float = 0.0
    """Wall time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A version read against fixed texts, token by token: what a gate goes by. Means over tokens, in nats."""

    logprobs: tuple[float, ...]
    """Mean log-probability of each text's reply tokens."""
    sums: tuple[float, ...]
    """Their sums: the log-probability of each reply."""
    entropy: float = 0.0
    """Of the next token."""
    kl: float = 0.0
    """KL(pi || base)."""

    def __post_init__(self) -> None:
        _tuple(self, "logprobs", self.logprobs)
        _tuple(self, "sums", self.sums)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a gate's result."""

    name: str
    """`held-out feedback`, `retention`, `entropy`, `kl`."""
    value: float | None
    """Of the candidate; None: could not be measured, and `passed` says whether that is let through."""
    limit: float
    """What it must not fall below (or rise above, for `kl`)."""
    passed: bool
    note: str = ""


RECORDS: tuple[type, ...] = (
    Task,
    Observation,
    Candidate,
    Neighbour,
    Estimate,
    Usage,
    Transition,
    Trajectory,
    Shown,
    Experience,
    Precedent,
    Strategy,
    Lesson,
    Edit,
    Ruling,
    Rollout,
    Summary,
    Comparison,
    Probe,
    Sampling,
    ChatRequest,
    Piece,
    Reply,
    Feedback,
    Exchange,
    Minibatch,
    Correction,
    Update,
    Measured,
    Check,
)
"""Every record that may stand in a graph's state; the checkpoint serializer's allow-list is made from this."""
