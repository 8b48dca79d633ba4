"""The groups of channels that graphs compose their state from: `class State(Episode, Recalled, Choice)`.

A channel holds plain data and records, never a model, a store or a whole library. Steps are not kept here: `head` names the
last one, and the journal knows the rest.
"""

from __future__ import annotations

from operator import add
from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from ..memory.records import (
    Candidate,
    ChatRequest,
    Check,
    Comparison,
    Correction,
    Edit,
    Estimate,
    Feedback,
    Neighbour,
    Observation,
    Precedent,
    Probe,
    Reply,
    Rollout,
    Ruling,
    Shown,
    Strategy,
    Summary,
    Task,
    Update,
    Usage,
)


class EpisodeInput(TypedDict):
    """What an episode graph is asked to do; its input."""

    task: Task
    run: str
    """Name of the run: with `episode` and `step` it makes every id and every random draw."""
    episode: int
    """Number of the attempt within the run, from 0."""


class Episode(EpisodeInput):
    """Where the agent stands."""

    observation: Observation
    step: int
    """t: how many actions were taken."""
    head: str
    """Id of the last step in the journal."""
    score: float
    """Sum of the environment's rewards so far, in its units."""
    best: float
    """The highest score so far in this episode (a game may take points away again)."""
    earned: float | None
    """The return in the method's own eyes: the sum of the rewards that it is shown, which a judge may have given. None: some
    reward is missing."""
    usage: Annotated[Usage, add]
    """What models were asked in this episode so far."""


class Visits(TypedDict):
    """What the memory holds about states like the present one."""

    neighbours: list[Neighbour]


class Recalled(Visits):
    """The same, and how returns are distributed in the whole of it."""

    average: float
    """The mean return over everything in scope, in reward units: what to expect where nothing is known."""
    variance: float
    """The variance of those returns, in reward units squared."""


class Proposal(TypedDict):
    """What could be done."""

    candidates: list[Candidate]
    """With their logits in nats: as the policy proposed them, and after a logit update the updated ones."""


class Choice(Proposal):
    """The decision at this step."""

    action: str


class Advice(TypedDict):
    """What memory makes of the candidates."""

    value: float
    """V(s), in reward units: what the advantages are measured from."""
    estimates: list[Estimate]
    """One per candidate, in the same order."""


class UpdatedLogits(Proposal):
    """Candidates after a logit update."""

    prior: list[float]
    """z(s, a) before it, in nats, one per candidate."""


class Advised(Advice, UpdatedLogits):
    """A decision that memory had a part in."""


class Planned(Proposal):
    """A proposal that may be part of a longer answer."""

    plan: list[str]
    """Actions of a written answer that have not been proposed yet."""


class Composed(TypedDict):
    """What the prompts of an episode show of earlier attempts."""

    shown: list[Shown]
    """In the order of the prompt, which is that of time."""
    mode: str
    """The instruction: `explore`, `exploit`, `explore or exploit`, or empty for none."""


class Recollected(TypedDict):
    """What memory knows of states like the present one."""

    precedents: list[Precedent]
    """E_ret, the most similar first; empty: nothing is alike enough."""
    used: list[str]
    """Ids of all trajectories that this episode consulted so far."""


class Synthesis(TypedDict):
    """How a strategy was written, for whoever trains on it."""

    prompt: list[tuple[str, str]]
    """The messages that asked for it, as (role, text)."""
    reply: str
    """All that was answered, thoughts too."""


class Guided(TypedDict):
    """Advice on the present situation."""

    strategy: Strategy | None
    """z; None without one."""
    written: int
    """t at which a strategy was written last; -1: never."""
    synthesis: Synthesis | None
    """How the strategy of this step was written; None at other steps."""


class Considered(TypedDict):
    """A tentative decision, and whether memory is to be asked before it is carried out."""

    tentative: str | None
    """a'_t, the action drafted without asking; None where none was."""
    vote: bool
    """Whether the model itself asked for memory, in writing, when it drafted last."""
    reasons: list[str]
    """Why memory is asked at this step (nodes/retrieve/triggers.py); empty: it is not."""


class Noted(TypedDict):
    """What the agent says of the finished attempt."""

    note: str


class Judged(TypedDict):
    """What each step of the finished episode was worth."""

    rewards: list[float | None]
    """r_t, one per step; None where the judge failed."""
    unjudged: str
    """Why rewards are missing, or empty."""


class EpisodeResult(TypedDict):
    """What comes out of an episode graph."""

    task: Task
    episode: int
    step: int
    head: str
    score: float
    best: float
    earned: float | None
    unjudged: str
    """Why rewards are missing, or empty."""
    usage: Usage
    """What models were asked in this episode."""


class WithLibrary(TypedDict):
    """An episode played with a library of lessons in its prompts."""

    library: str
    """Name of the version (`memory.library.Versions`)."""


class GroupInput(WithLibrary):
    """What a group of rollouts is about: the work that a learning step hands out."""

    task: Task
    run: str
    """Name of the learning run."""
    step: int
    """The learning step, from 0."""


class Group(GroupInput):
    """The rollouts of one problem, and what is made of them (Training-Free GRPO). Lived through in one go: never checkpointed,
    for every model call in it is in the cache."""

    number: int
    """g, from 0: the rollout that a piece of work is about."""
    rollouts: Annotated[list[Rollout], add]
    """In the order in which they ended; sort by `number` before use."""
    rewards: list[float | None]
    """One per rollout, by number: what the comparison goes by, costs taken off. None: missing."""
    plain: list[float | None]
    """The same before costs: what is said of an attempt."""
    kind: str
    """See `memory.records.Comparison`."""
    summaries: Annotated[list[Summary], add]
    """In the order in which they ended; sort by `number` before use."""
    insights: list[str]
    votes: list[tuple[str, int]]
    edits: list[Edit]
    rulings: list[Ruling]
    failures: Annotated[list[str], add]
    usage: Annotated[Usage, add]


class Learning(TypedDict):
    """A learning run (Training-Free GRPO)."""

    run: str
    step: int
    library: str
    """Name of the version that rollouts are given now."""
    best: str
    """Name of the version that did best on the held-out problems; the product of the run, if `keep_best`."""
    best_score: float | None
    """Its mean reward there; None: never measured."""
    comparisons: Annotated[list[Comparison], add]
    """Of this step's groups, in the order in which they ended; sort by the batch before use."""
    candidate: str
    """Name of the version that this step proposes; empty: none."""
    probes: Annotated[list[Probe], add]
    """Of this step's accept test."""
    accepted: bool
    """Whether the last candidate took the library's place."""
    stalled: int
    """Steps since the library last got better."""
    stopped: str
    """Why the run ended before its last step; empty if it did not."""
    usage: Annotated[Usage, add]


class AdapterScope(TypedDict):
    """Whose adapter: what never mixes with anybody else's (CLaaS)."""

    tenant: NotRequired[str]
    """From the credential, never from a request; `default` if not given."""
    adapter: NotRequired[str]
    """Name of one of the tenant's adapters; `default` if not given."""


class ChatInput(AdapterScope):
    """A chat turn to be served; the input of CLaaS's serving graph."""

    id: str
    """Id of the response, unique among the tenant's: what feedback names."""
    request: ChatRequest
    family: NotRequired[str]
    """What kind of chat it is: what samples are stratified by."""
    scenario: NotRequired[str]
    turn: NotRequired[int]
    store: NotRequired[bool]
    """False: it is not kept, and nothing is learned from it."""


class ServedChat(ChatInput):
    """A chat turn that was answered, and what was said of it. Plain data: the tokens stand in the replay buffer as well."""

    reply: Reply
    """`reply.version` is the label of the version that made it."""
    step: int
    """P(i): the gradient steps behind that version."""
    feedback: Feedback
    key: str
    """Whatever the sender marks a feedback with, so that the same one sent twice counts once; empty: its content."""
    job: str
    """What the learning from this feedback is filed under."""
    state: str
    """What became of the exchange in the replay buffer: `pending`, `ready`, `held`, `not kept`."""
    repeated: bool
    """Whether the same feedback had come before."""


class GradientStepInput(AdapterScope):
    """A gradient step that is to be taken, if there is anything to learn from; the input of CLaaS's learning graph."""

    least: NotRequired[int]
    """Ready exchanges that it needs; the settings' B_min if not given."""


class GradientStepState(GradientStepInput):
    """A gradient step of one adapter."""

    batch: str
    """Id of the leased minibatch, which the replay buffer knows."""
    correction: Correction
    update: Update
    candidate: str
    """Label of the version that stands before the gate; empty: none."""
    checks: list[Check]
    """What the gate found."""
    outcome: str
    """What came of it: `too few`, `skipped`, `stepped`, `canary`, `live` or `dropped`; and empty while it goes on."""
    why: str
    """The reason, in words."""
