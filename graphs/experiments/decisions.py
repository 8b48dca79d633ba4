"""One decision of JitRL in words: what memory recalled, what it made of that, what the model alone would have done, and why.

    explain_decision(walk.state, settings, memory, world.name)      of a walk in a notebook, at the pause before `act`
    learngraph.explain("runs/mine", step=3)                         of a run folder (graphs/cli/explain.py)

Every number is one that JitRL's own nodes computed; here they are only put into words. The equations are in graphs/jitrl.py.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from textwrap import fill
from typing import Any

from ...memory.display import Table, markdown_table, short
from ...memory.errors import plural
from ...memory.records import Candidate, Estimate, Experience, Neighbour
from ...memory.returns.experiences import Experiences, ExperienceScope
from ...memory.search.sections import split_sections
from ...nodes.act.advantage import reference_exploration, unseen_value
from ...nodes.act.choose import Choose, softmax
from ...nodes.act.decide import loss_shares, untried_value
from ..jitrl import JitRL

__all__ = ["Explanation", "explain_decision"]

MAX_ROWS = 20
"""Most rows of the table of remembered steps."""
MAX_TITLE = 60
"""Most characters of a state's title."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """A decision in sentences and two tables. `str` gives text; in a notebook it shows itself as HTML."""

    sentences: tuple[str, ...]
    remembered: tuple[tuple[str, ...], ...]
    """The remembered steps that were recalled: a header, and a row for each remembered state and action."""
    actions: tuple[tuple[str, ...], ...]
    """The candidates: a header, and a row for each, the most probable first."""

    def __str__(self) -> str:
        paragraphs = [fill(sentence, 110) for sentence in self.sentences]
        tables = (f"\n{title}\n\n{markdown_table(rows, left=2 - (rows is self.actions))}" for title, rows in self.tables())
        return "\n".join([*paragraphs, *tables])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        said = [f"<p>{escape(sentence)}</p>" for sentence in self.sentences]
        return "".join([*said, *(Table(rows[0], rows[1:], title=title)._repr_html_() for title, rows in self.tables())])

    def tables(self) -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
        """Title and rows, the header first, of each table with a row."""
        for title, rows in (("Remembered steps", self.remembered), ("Candidates (* was taken)", self.actions)):
            if len(rows) > 1:
                yield title, rows


@dataclass(frozen=True)
class _Decision:
    """A decision, and the settings and the memory that it was made with."""

    state: Mapping[str, Any]
    settings: JitRL
    memory: Experiences
    scope: ExperienceScope

    @property
    def estimator(self) -> str:
        return self.settings.advantage_estimator

    @property
    def neighbours(self) -> Sequence[Neighbour]:
        found: Sequence[Neighbour] = self.state["neighbours"]
        return found

    @property
    def repeats(self) -> Mapping[str, int]:
        """Action -> visits in this episode that led nowhere; empty where the estimator counts none."""
        return self.state.get("repeats") or {} if self.estimator == "guarded" else {}

    @property
    def beta(self) -> float:
        return min(1 + 0.5 * self.state["episode"] / 50, 1.5) if self.estimator == "reference" else self.settings.beta

    def rows(self) -> list[tuple[Estimate, float, float, float, float]]:
        """(estimate, logit before, logit after, probability before, probability after) of every candidate."""
        before, after = self.state["prior"], [c.logit for c in self.state["candidates"]]
        own = dict(self._own_chances())
        chances = softmax(after, self.settings.temperature)
        actions = [e.action for e in self.state["estimates"]]
        return list(zip(self.state["estimates"], before, after, [own.get(a, 0.0) for a in actions], chances, strict=True))

    def own_candidates(self) -> list[Candidate]:
        """The model's own candidates, with the logits that it gave them."""
        pairs = zip(self.state["candidates"], self.state["prior"], strict=True)
        return [Candidate(c.action, z) for c, z in pairs if c.source == "policy"]

    def _own_chances(self) -> Iterator[tuple[str, float]]:
        found = self.own_candidates()
        return zip([c.action for c in found], softmax([c.logit for c in found], self.settings.temperature), strict=True)

    def draw(self, candidates: Sequence[Candidate]) -> str:
        """The action that this step's random draw gives among these candidates."""
        return Choose(self.settings.temperature)({**self.state, "candidates": list(candidates)})["action"]  # type: ignore[typeddict-item]

    def visits(self, neighbour: Neighbour) -> list[Experience]:
        """The single visits behind a neighbour, oldest first."""
        found = self.memory.visits(neighbour.id, **self.scope)
        return [one for one in found if neighbour.count > 1 or one.id == neighbour.id]

    def episodes(self, visits: Sequence[Experience]) -> str:
        """The episodes of these visits in words, those of other runs by their names."""
        found = dict.fromkeys((one.run, one.episode) for one in visits)
        ours = sorted(episode for run, episode in found if run == self.state["run"])
        return ", ".join([*_spans(ours), *(f"{run}/{episode}" for run, episode in found if run != self.state["run"])])


def explain_decision(state: Mapping[str, Any], settings: JitRL, memory: Experiences, domain: str = "") -> Explanation:
    """Say what JitRL's memory did to a decision.

    Args:
        state: the channels of JitRL's graph when the action is chosen and not taken yet.
        settings: those of the agent.
        memory: the agent's memory. What it holds of this and later episodes of the run does not count.
        domain: name of the environment.
    """
    scope: ExperienceScope = {
        "task": state["task"].id,
        "domain": domain,
        "cross_task": settings.cross_task,
        "only_other_tasks": settings.only_other_tasks,
        "before": (state["run"], state["episode"]),
    }
    decision = _Decision(state, settings, memory, scope)
    sentences = [_place(decision), _recall(decision)]
    if decision.neighbours:
        sentences.append(_values(decision))
    sentences += [*_evidence(decision), *_guards(decision), *_verdict(decision)]
    return Explanation(tuple(sentences), _remembered_table(decision), _action_table(decision))


# The sentences


def _place(decision: _Decision) -> str:
    state = decision.state
    where = f"Episode {state['episode']}, step {state['step']} of {state['run']} (task {state['task'].id})"
    return f"{where}: in the state '{_title(state['observation'].text)}' the agent took '{state['action']}'."


def _recall(decision: _Decision) -> str:
    found, least = decision.neighbours, decision.settings.min_similarity
    if not found:
        stays = " but for what this episode repeats" if decision.repeats else ""
        return f"Memory held no state similar enough (min_similarity {least:g}), so the model's own logits stand{stays}."
    visits = [one for neighbour in found for one in decision.visits(neighbour)]
    states, actions = len({one.state for one in visits}), len({n.action for n in found})
    alike = "like it" if min(n.similarity for n in found) < 1 else "just like it"
    return (
        f"Memory knew {plural(states, 'state')} {alike}, with {plural(sum(n.count for n in found), 'visit')} to "
        f"{plural(actions, 'action')} (episodes {decision.episodes(visits)})."
    )


def _values(decision: _Decision) -> str:
    """The value of the state, and of an action that was never tried in one like it."""
    state, settings, found = decision.state, decision.settings, decision.neighbours
    visits = sum(n.count for n in found)
    match decision.estimator:
        case "guarded":
            here = untried_value(found, math.inf)
            return (
                f"An untried action is worth U(s) = {untried_value(found, state['average']):.3g} (Eq. 4'), the lower of the mean "
                f"return of everything remembered, {state['average']:.3g}, and of this state, {here:.3g}. The mean of Q over the "
                f"candidates is {state['value']:.3g}; A is what an action is worth beyond that."
            )
        case "paper":
            bonus = unseen_value(state["value"], visits, settings.unseen_bonus, True)
            chance, whose = f"lambda = {settings.unseen_bonus_probability:g}", "V(s), their mean return, is"
        case _:
            mean = sum(n.count * n.mean for n in found) / visits
            bonus = unseen_value(mean, visits, settings.unseen_bonus, True)
            chance = f"{reference_exploration(found):.3g}, which falls as returns are high and steady,"
            whose = "The value that advantages are taken from (it mixes in those of untried actions) is"
    lucky = [f"'{e.action}'" for e in state["estimates"] if e.explored]
    drawn = f"the draw favoured {_list(lucky)}" if lucky else "the draw favoured none"
    return f"{whose} {state['value']:.3g}. An untried action is worth {bonus:.3g} with probability {chance} else 0 (Eq. 6): {drawn}."


def _evidence(decision: _Decision) -> Iterator[str]:
    """Sentences on what memory knew of the action that was taken, of the model's favourite and of memory's own."""
    rows = decision.rows()
    if not decision.neighbours:
        return
    taken = next((row for row in rows if row[0].action == decision.state["action"]), None)
    top = max(row[3] for row in rows)
    favourites = [row for row in rows if row[3] > top - 1e-9]
    named = [taken, *(favourites if len(favourites) == 1 else []), max(rows, key=lambda row: row[0].shift)]
    for estimate, before, after, _, _ in dict.fromkeys(row for row in named if row is not None):
        tried = sum(n.count for n in decision.neighbours if n.action == estimate.action)
        total = sum(n.count * n.mean for n in decision.neighbours if n.action == estimate.action)
        seen = (
            f"was tried {_times(tried)} there, with a mean return of {total / tried:.3g}" if tried else "was never tried there"
        )
        moved = decision.beta * estimate.shift
        start = after - moved
        lifted = ""
        if start > before + 1e-9:
            lifted = f" (lifted to {start:.3g}, as min_prior = {decision.settings.min_prior:g} says)"
        yield (
            f"'{estimate.action}' {seen}: Q = {estimate.value:.3g}, A = {estimate.advantage:+.3g}, shift {estimate.shift:+.3g}. "
            f"beta = {decision.beta:g} times the shift moved its logit by {moved:+.3g}, from {before:.3g}{lifted} to {after:.3g}."
        )


def _guards(decision: _Decision) -> Iterator[str]:
    """Sentences on what Eq. 26' took from actions that led nowhere."""
    if decision.estimator != "guarded":
        return
    penalty = decision.settings.repeat_penalty
    candidates = {e.action for e in decision.state["estimates"]}
    for action, times in sorted(decision.repeats.items(), key=lambda one: -one[1]):
        if action in candidates:
            yield (
                f"This episode had taken '{action}' in this very state {_times(times)} since it last made progress, which took "
                f"{penalty * times:.3g} from its shift (Eq. 26')."
            )
    for action, share in loss_shares(decision.neighbours).items():
        if share and action in candidates:
            yield f"{share:.0%} of the visits to '{action}' lost an episode, which took {penalty * share:.3g} from its shift."


def _verdict(decision: _Decision) -> Iterator[str]:
    state, rows, own = decision.state, decision.rows(), decision.own_candidates()
    taken, greedy = state["action"], decision.settings.temperature == 0
    top = max(c.logit for c in own)
    favourites = [f"'{c.action}'" for c in own if c.logit > top - 1e-9]
    alone = decision.draw(own)
    if len(favourites) == 1:
        chance = max(row[3] for row in rows)
        yield f"The model alone preferred {favourites[0]}{'' if greedy else f' (probability {chance:.3g})'}" + (
            "." if greedy else f"; the same draw would have given it '{alone}'."
        )
    else:
        equals = f"all {len(own)} actions" if len(favourites) == len(own) else _list(favourites)
        yield f"To the model alone {equals} were equally likely; the same draw would have given it '{alone}'."
    best = max(rows, key=lambda row: row[2])
    drawn = decision.draw(state["candidates"])
    if taken != drawn:
        yield f"With memory '{best[0].action}' came first, and '{drawn}' was drawn; '{taken}' was put in its place from outside."
    elif greedy:
        yield f"With memory '{taken}' had the highest logit, and at temperature 0 that decides."
    else:
        chance = next(row[4] for row in rows if row[0].action == taken)
        first = "came first, and was drawn" if best[0].action == taken else "was drawn"
        beaten = "" if best[0].action == taken else f", although '{best[0].action}' had {best[4]:.3g}"
        yield f"With memory '{taken}' {first} with probability {chance:.3g}{beaten}."
    if taken == alone == drawn:
        yield (
            "So memory changed the probabilities, and not this action." if decision.neighbours else "So memory changed nothing."
        )


# The tables


def _remembered_table(decision: _Decision) -> tuple[tuple[str, ...], ...]:
    rows = [("state", "action", "visits", "mean return", "similarity", "losses", "episodes")]
    for neighbour in decision.neighbours[:MAX_ROWS]:
        visits = decision.visits(neighbour)
        rows.append(
            (
                _title(visits[-1].state),
                neighbour.action,
                str(neighbour.count),
                f"{neighbour.mean:.3g}",
                f"{neighbour.similarity:.3g}",
                str(sum(one.lost for one in visits)),
                decision.episodes(visits),
            )
        )
    if (left := len(decision.neighbours) - MAX_ROWS) > 0:
        rows.append((f"… and {left} more", "", "", "", "", "", ""))
    return tuple(rows)


def _action_table(decision: _Decision) -> tuple[tuple[str, ...], ...]:
    head = ["action", "visits", "Q", "A", "shift", "repeats", "logit before", "after", "probability before", "after"]
    rows = []
    for estimate, before, after, own, chance in sorted(decision.rows(), key=lambda row: (-row[4], -row[2])):
        repeats = decision.repeats.get(estimate.action, 0)
        rows.append(
            [
                ("* " if estimate.action == decision.state["action"] else "") + estimate.action,
                f"{estimate.count:.3g}",
                *(f"{number:.3g}" for number in (estimate.value, estimate.advantage, estimate.shift)),
                str(repeats) if decision.estimator == "guarded" else "–",
                *(f"{number:.3g}" for number in (before, after, own, chance)),
            ]
        )
    return tuple(map(tuple, [head, *rows]))


# Words


def _title(state: str) -> str:
    """The first line of a state, or of each section of a key that has some."""
    firsts = [text.strip().partition("\n")[0] for text in split_sections(state).values() or (state,)]
    return short(", ".join(first for first in firsts if first.strip(" |")).replace("|", "/"), MAX_TITLE)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _spans(numbers: Sequence[int]) -> Iterator[str]:
    """Rising numbers in words: '0 to 3', '5'."""
    for _, group in groupby(enumerate(numbers), key=lambda one: one[1] - one[0]):
        found = [number for _, number in group]
        yield from map(str, found) if len(found) < 3 else [f"{found[0]} to {found[-1]}"]


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
