"""Groups of channels. A graph composes its state from them: `class MyState(EpisodeChannels, PromptChannels, ChoiceChannels)`.

A channel holds plain data and records, never a model, a store or a whole library. The steps of an episode are not in the state:
the journal holds them, and `head` names the last one.
"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import Annotated, Any, NotRequired

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

__all__ = [
    "AdviceChannels",
    "AttemptInput",
    "AttemptState",
    "CandidateChannels",
    "ChatInput",
    "ChatState",
    "ChoiceChannels",
    "DraftChannels",
    "EpisodeChannels",
    "EpisodeInput",
    "EpisodeResult",
    "GradientStepInput",
    "GradientStepState",
    "GroupChannels",
    "GroupInput",
    "LearningChannels",
    "LibraryChannels",
    "LogitUpdateChannels",
    "NeighbourChannels",
    "NoteChannels",
    "PlanChannels",
    "PrecedentChannels",
    "PromptChannels",
    "RecallChannels",
    "RewardChannels",
    "StrategyChannels",
]


class TaskChannel(TypedDict):
    """The task of an episode."""

    task: Task


class EpisodeNumber(TypedDict):
    """The number of an attempt within the run, from 0."""

    episode: int


class EpisodePlace(TypedDict):
    """The place of an attempt within a run."""

    run: str
    """Name of the run. With `episode` and `step` it makes every id and seeds every random draw."""
    episode: int
    """Number of the attempt within the run, from 0."""


class EpisodeInput(TaskChannel, EpisodePlace):
    """The input of an episode graph: a task, and the place of the attempt within a run."""


class AttemptInput(EpisodeInput):
    """The input of an attempt whose method looks ahead to the next one."""

    episodes: NotRequired[int]
    """The number of attempts that the run plays; not given: more may come."""


class StepPlace(EpisodePlace):
    """The place of a step within a run: it seeds the random draws of the step."""

    step: int
    """t: the number of actions taken."""


class ObservationChannel(TypedDict):
    """The present observation."""

    observation: Observation


class HeadChannel(TypedDict):
    """The steps of an episode, by the last of them."""

    head: str
    """Id of the last step in the journal."""


class Situation(TaskChannel, StepPlace, ObservationChannel):
    """The present observation, and its place in an episode of a task."""


class StepResult(ObservationChannel, HeadChannel):
    """The channels that a step of an episode changes: the last observation, the steps taken, the score."""

    step: int
    """t: the number of actions taken."""
    score: float
    """Sum of the environment's rewards so far, in its units."""
    best: float
    """The highest score so far in this episode, in the environment's units (a game may take points away again)."""
    lost: str
    """Reason why no reply could be used for the action of this step; empty if one could."""
    earned: float | None
    """The return that the method learns from: the sum of the rewards of its judge, if it has one, else of the environment's.
    None: a reward is missing."""


class EpisodeChannels(EpisodeInput, StepPlace, StepResult):
    """The running episode."""

    usage: Annotated[Usage, add]
    """Calls and tokens of models in this episode so far."""


class NeighbourChannels(TypedDict):
    """The remembered states like the present one, with what their actions earned."""

    neighbours: list[Neighbour]
    hits: list[int]
    """The number of visits behind them, and of those the visits from other tasks (JitRL's Table 6)."""


class RecallChannels(NeighbourChannels):
    """The neighbours, the mean and variance of all returns in scope, and what the running episode repeats."""

    average: float
    """The mean return over everything in scope, in reward units: the expectation where nothing is known."""
    variance: float
    """The variance of those returns, in reward units squared."""
    repeats: dict[str, int]
    """Action -> how often the running episode has taken it in this very state since its last progress."""


class CandidateChannels(TypedDict):
    """The actions to choose from."""

    candidates: list[Candidate]
    """With logits in nats: those of the policy, and after a logit update the updated ones."""


class ChoiceChannels(CandidateChannels):
    """The actions to choose from, and the chosen one."""

    action: str


class AdviceChannels(TypedDict):
    """The value that memory estimates for the state and for each candidate."""

    value: float
    """V(s), in reward units: the baseline of the advantages."""
    estimates: list[Estimate]
    """One per candidate, in the same order."""


class LogitUpdateChannels(CandidateChannels):
    """Candidates after a logit update, and their logits before it."""

    prior: list[float]
    """z(s, a) before the update, in nats, one per candidate."""


class PlanChannels(CandidateChannels):
    """Candidates, and the rest of the written answer that they are part of."""

    plan: list[str]
    """Actions of a written answer that have not been proposed yet."""


class ShownChannel(TypedDict):
    """The earlier attempts that stand in the prompts of an episode."""

    shown: list[Shown]
    """In the order of the prompt, which is that of time."""


class PromptChannels(ShownChannel):
    """The earlier attempts and the instruction that stand in the prompts of an episode."""

    mode: str
    """The instruction: `explore`, `exploit`, `explore or exploit`, or empty for none."""


class PrecedentsChannel(TypedDict):
    """The remembered steps like the present one."""

    precedents: list[Precedent]
    """E_ret, the most similar first; empty: nothing is similar enough."""


class PrecedentChannels(PrecedentsChannel):
    """The remembered steps like the present one, and the trajectories consulted so far."""

    nearest_similarity: float | None
    """The greatest similarity that a step in memory has, also where that is not enough; 0 without any, None if not searched."""
    used: list[str]
    """Ids of all trajectories that this episode consulted so far."""


class Synthesis(TypedDict):
    """The exchange with a model that made a strategy, kept as training data."""

    prompt: list[tuple[str, str]]
    """The messages that asked for the strategy, as (role, text)."""
    reply: str
    """The whole reply, thoughts included."""


class StrategyChannel(TypedDict):
    """The strategy in force."""

    strategy: Strategy | None
    """z; None without one."""


class StrategyChannels(StrategyChannel):
    """The strategy in force, and how it was written."""

    written: int
    """t at which a strategy was written last; -1: never."""
    synthesis: Synthesis | None
    """Record of the strategy's synthesis at this step; None at other steps."""
    declined: NotRequired[list[str]]
    """Ids of the trajectories in which the strategist has found nothing of use for this episode."""


class ReasonsChannel(TypedDict):
    """The reasons to ask memory before a drafted action is taken."""

    reasons: list[str]
    """The triggers that fired at this step (nodes/retrieve/triggers.py); empty: memory is not asked."""


class DraftChannels(ReasonsChannel):
    """A drafted action, and the reasons to ask memory before it is taken."""

    tentative: str | None
    """a'_t, the action drafted without asking memory; None without a draft."""
    vote: bool
    """True if the model's last draft asked for memory."""


class NoteChannels(TypedDict):
    """The agent's own note on the finished attempt."""

    note: str


class StepRewards(TypedDict):
    """The rewards of the steps of the finished episode."""

    rewards: list[float | None]
    """r_t, one per step; None where the judge failed."""


class RewardChannels(StepRewards):
    """The rewards that a judge gave to the steps of the finished episode."""

    unjudged: str
    """Reason why rewards are missing; empty if none is."""


class AttemptState(AttemptInput, EpisodeChannels, PromptChannels, PlanChannels, ChoiceChannels, RewardChannels, NoteChannels):
    """The channels of an attempt; a method with channels of its own adds them."""


class EpisodeResult(TypedDict):
    """The output of an episode graph; its channels are those of `EpisodeChannels` and `RewardChannels`."""

    task: Task
    episode: int
    step: int
    head: str
    score: float
    best: float
    earned: float | None
    unjudged: str
    """Reason why rewards are missing; empty if none is."""
    usage: Usage
    """Calls and tokens of models in this episode."""


class LibraryChannels(TypedDict):
    """The library of lessons that an episode's prompts show."""

    library: str
    """Name of the version (`memory.lessons.versions.LibraryVersions`)."""


class GroupInput(LibraryChannels):
    """The input of a group of rollouts: the problem, the library and the learning step."""

    task: Task
    run: str
    """Name of the learning run."""
    step: int
    """The learning step, from 0."""
    rejected: NotRequired[Sequence[str]]
    """Descriptions of the last candidates that the accept test rejected, with the reasons."""
    lesson_rewards: NotRequired[Mapping[str, Sequence[float]]]
    """Id of a lesson -> sum and number of the rewards of rollouts that were shown it; under an empty id those of all rollouts."""


class GroupChannels(GroupInput):
    """The rollouts of one problem, and the comparison of them (Training-Free GRPO).

    A group runs without checkpoints: the cache holds every model call in it, so an interrupted group is cheap to repeat.
    """

    number: int
    """g, from 0: the rollout that a fanned-out task is about."""
    rollouts: Annotated[list[Rollout], add]
    """In the order in which they ended; sort by `number` before use."""
    rewards: list[float | None]
    """One per rollout, by number. None: missing."""
    kind: str
    """See `memory.records.Comparison`."""
    summaries: Annotated[list[Summary], add]
    """In the order in which they ended; sort by `number` before use."""
    insights: list[str]
    """The conclusions of the comparison, in words."""
    votes: list[tuple[str, int]]
    """(lesson id, +1 or -1)."""
    edits: list[Edit]
    """Proposed changes of the library."""
    rulings: list[Ruling]
    """Edits that were dropped, with the reason."""
    failures: Annotated[list[str], add]
    """Rollouts, summaries and replies that failed, in words."""
    usage: Annotated[Usage, add]
    """Calls and tokens of models in this group."""


class RunLibrary(LibraryChannels):
    """The library of a learning run, and the best version so far."""

    best: str
    """Name of the version that did best on the held-out problems; the product of the run."""
    best_score: float | None
    """Its mean reward there; None: never measured."""


class StepResults(TypedDict):
    """The results of a learning step, which begin empty."""

    before: str
    """Name of the version that this step began with."""
    began: float
    """Time at which this step began, in seconds since 1970."""
    comparisons: Annotated[list[Comparison], add]
    """Of this step's groups, in the order in which they ended; sort by the batch before use."""
    candidate: str
    """Name of the version that this step proposes; empty: none."""
    probes: Annotated[list[Probe], add]
    """Of this step's accept test."""
    trial: dict[str, Any] | None
    """This step's `AcceptTestResult` as a JSON object; None if nothing was tested."""
    accepted: bool
    """True if the last candidate replaced the library."""
    why: str
    """Reason for accepting or rejecting the candidate, or for having none."""
    stops: Annotated[list[str], add]
    """Messages of `BudgetSpent`; empty as long as the budget lasts."""
    failures: Annotated[list[str], add]
    """Failures of this step outside of its groups."""
    came: int
    """Number of groups of this epoch so far that had a result."""


class LearningProgress(RunLibrary, StepResults):
    """A learning run: its library, and the candidate that may replace it (Training-Free GRPO)."""

    step: int
    """The learning step, from 0."""
    incumbent_probes: list[Probe]
    """The current library's rollouts of earlier accept tests since it was accepted, without those that failed."""
    rejected: list[str]
    """Descriptions of the last candidates that the accept test rejected; the next proposals are shown them."""
    lesson_rewards: dict[str, list[float]]
    """See `GroupInput`."""
    stalled: int
    """Steps since the library last improved."""
    stopped: str
    """Reason why the run ended before its last step; empty if it did not."""
    usage: Annotated[Usage, add]
    """Calls and tokens of models in this run."""


class LearningChannels(LearningProgress):
    """The channels of a learning run."""

    run: str


class AdapterScope(TypedDict):
    """The owner and name of an adapter (CLaaS): data of different scopes never mix."""

    tenant: NotRequired[str]
    """From the credential, never from a request; `default` if not given."""
    adapter: NotRequired[str]
    """Name of one of the tenant's adapters; `default` if not given."""


class ChatInput(AdapterScope):
    """The input of CLaaS's serving graph: a chat turn to be answered."""

    id: str
    """Id of the response, unique within the tenant: feedback names it."""
    request: ChatRequest
    family: NotRequired[str]
    """The kind of chat; samples are stratified by it."""
    scenario: NotRequired[str]
    """The scenario that the chat is a turn of, if any."""
    turn: NotRequired[int]
    """Number of the turn within the scenario, from 0."""
    user: NotRequired[str]
    """The end user who chats; none of them teaches more than a share."""
    store: NotRequired[bool]
    """False: the exchange is not stored, and nothing is learned from it."""


class AnswerChannels(TypedDict):
    """The reply to a chat turn."""

    reply: Reply
    """`reply.version` is the label of the version that made it."""
    step: int
    """P(i): the gradient steps behind that version."""


class FeedbackChannels(TypedDict):
    """The feedback on a reply."""

    feedback: Feedback
    key: str
    """The sender's mark of this feedback: the same mark counts once. Empty: the content is the mark."""


class ExchangeStateChannel(TypedDict):
    """The place of an exchange in learning."""

    state: str
    """State of the exchange in the replay buffer: `pending`, `ready`, `held`, `not kept`."""


class ReceiptChannels(ExchangeStateChannel):
    """The receipt for a feedback."""

    job: str
    """Id of the learning job that this feedback belongs to."""
    repeated: bool
    """True if the same feedback had arrived before."""


class ChatState(ChatInput, AnswerChannels, FeedbackChannels, ReceiptChannels):
    """An answered chat turn and the feedback on it. Plain data: the replay buffer holds the tokens as well."""


class GradientStepInput(AdapterScope):
    """The input of CLaaS's learning graph: the adapter to update if enough exchanges are ready."""

    least: NotRequired[int]
    """Ready exchanges that the step needs; the settings' B_min if not given."""


class BatchChannel(TypedDict):
    """The leased minibatch of a gradient step."""

    batch: str
    """Its id in the replay buffer."""


class CorrectionChannel(TypedDict):
    """The correction of a minibatch for staleness."""

    correction: Correction


class UpdateChannel(TypedDict):
    """The result of a gradient step."""

    update: Update


class CandidateVersion(TypedDict):
    """The version that the gate examines."""

    candidate: str
    """Its label; empty: none."""


class ChecksChannel(TypedDict):
    """The results of the gate."""

    checks: list[Check]


class WhyChannel(TypedDict):
    """The reason for the outcome of a gradient step, in words."""

    why: str


class Outcome(WhyChannel):
    """The outcome of a gradient step, with the reason."""

    outcome: str
    """`too few`, `skipped`, `stepped`, `canary`, `live` or `dropped`; empty while the step is running."""


class GradientStepState(
    GradientStepInput, BatchChannel, CorrectionChannel, UpdateChannel, CandidateVersion, ChecksChannel, Outcome
):
    """A gradient step of one adapter: batch, correction, update, gate."""
