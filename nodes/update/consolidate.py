"""The edits of all groups of a learning step are consolidated into the next version of the library.

Every edit of every group gets a ruling, kept with the version that the step proposes: applied, merged with others, or dropped,
with the reason. Votes, and how often lessons were shown, are counted in the lessons. They hold whether or not the proposed version
is accepted, so they are also kept in a second version with the lessons as they were: `<run>/<step + 1>-kept`.

A model merges the edits in one call. Code does where there is no model that writes, or no reply that can be read.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NotRequired

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import TypedDict

from ...memory.lessons.library import Library, LibraryLimits, lesson_similarity
from ...memory.records import Comparison, Edit, Ruling, Usage
from ..ask import Ask, BadReply
from ..extract.critic import Critic
from ..extract.edits import as_edits, read_edits
from ..lenient_json import json_values
from ..read_reply import Unreadable, answer_text
from ..reply_schemas import EDITS
from ..state import LibraryChannels

__all__ = ["EditDecision", "ReviseLibrary", "consolidate"]

MIN_LIKENESS = 0.3
"""Similarity (`lesson_similarity`) from which a text counts as a reworded form of another one."""
OUTVOTED = 2
"""Surplus of votes against a lesson at which code deletes the lesson, where nobody says what becomes of it."""


@dataclass(frozen=True, slots=True)
class EditDecision:
    """A decision about the edits of a step."""

    edits: tuple[Edit, ...] = ()
    """Edits to apply, in this order; each gets its ruling then."""
    rulings: tuple[Ruling, ...] = ()
    """Rulings of edits that are not applied."""
    merges: tuple[tuple[Edit, Edit], ...] = ()
    """Pairs of a group's edit and the edit among `edits` that it went into, whose ruling it gets."""
    why: str = ""
    """The way in which the decision was made, as text."""
    note: str = ""
    """Text that is added to every ruling."""


# By code


def resolve_conflicts(edits: Sequence[Edit], from_code: bool = False) -> tuple[list[Edit], list[Ruling]]:
    """The edits that can be applied together, and rulings of the others. Each edit is in exactly one of them.

    A lesson is deleted only if more edits delete it than change, merge or keep it. Of different changes of one lesson, the most
    frequent comes first, and `Library.apply` takes the first. Of different actions that groups name for one state (`RuleProposer`),
    the one that most groups name is kept; in a tie, the one with the higher mean reward, then the first.

    Args:
        edits: the edits of all groups.
        from_code: whether code made the edits: their reasons then name the state. A model's reasons are prose.
    """
    against = Counter(id for edit in edits if edit.op == "delete" for id in edit.lessons)
    stay = Counter(id for edit in edits if edit.op in ("modify", "merge", "keep") for id in edit.lessons)
    wanted = Counter((edit.op, edit.lessons, _normalize(edit.text)) for edit in edits)
    ways: dict[str, dict[str, list[Edit]]] = {}  # state -> what is said of it -> who says so
    for edit in edits if from_code else ():
        cue, action = _cue(edit)
        if cue:
            ways.setdefault(cue, {}).setdefault(action, []).append(edit)
    best = {cue: max(said, key=lambda action: _weight(said[action])) for cue, said in ways.items()}
    kept: list[Edit] = []
    rulings: list[Ruling] = []
    for edit in edits:
        split = [id for id in edit.lessons if against[id] and stay[id]]
        lost = [id for id in split if (against[id] > stay[id]) == (edit.op != "delete")]
        cue, action = _cue(edit)
        if lost and edit.op != "merge":  # the rest of a merge may still be possible
            sides = [f"{against[id]} for and {stay[id]} against deleting {id}" for id in lost]
            rulings.append(Ruling(edit, False, f"the groups disagree: {', '.join(sides)}"))
        elif cue in best and action != best[cue]:
            groups = _weight(ways[cue][best[cue]])[0]
            rulings.append(
                Ruling(
                    edit, False, f"contradicts '{cue} {best[cue]}', which {groups} group{'s say' if groups > 1 else ' says'}"
                )
            )
        else:
            kept.append(edit)
    return sorted(kept, key=lambda edit: -wanted[edit.op, edit.lessons, _normalize(edit.text)]), rulings


def _weight(edits: Sequence[Edit]) -> tuple[int, float]:
    """The number of groups behind these edits, and the mean reward of their rollouts."""
    rewards = [reward for edit in edits for reward in edit.rewards]
    return len({edit.problems for edit in edits}), round(sum(rewards) / len(rewards), 9) if rewards else 0.0


def _normalize(content: str) -> str:
    return " ".join(content.lower().split()).rstrip(".")


def _cue(edit: Edit) -> tuple[str, str]:
    """The state and the action that an edit made by code is about; empty texts for other edits."""
    found = _AT.fullmatch(edit.why) if edit.op in ("add", "modify", "keep") else None
    return (found[1], _normalize(found[2])) if found else ("", "")


_AT = re.compile(r"at ([^:]+): (.+)")


def match_proposals(
    proposals: Sequence[Edit], final: Sequence[Edit], stated_sources: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """Index of a proposal -> index of the final edit that it went into; a proposal without an entry was dropped.

    Args:
        proposals: the groups' edits.
        final: the edits of the consolidation.
        stated_sources: index of a final edit -> indices of the proposals that the model says it was made from. Final edits
            without an entry are matched by lesson and by similarity; of several, one that does what was proposed.
    """
    into: dict[int, int] = {}
    for at, sources in stated_sources.items():
        for n in sources:
            into.setdefault(n, at)
    silent = [at for at in range(len(final)) if not stated_sources.get(at)]
    for n, proposal in enumerate(proposals):
        near = [(_does(final[at], proposal), _likeness(proposal, final[at]), -at) for at in silent]
        near = [one for one in near if one[1] >= MIN_LIKENESS]
        if n not in into and near:
            into[n] = -max(near)[2]
    return into


def _does(final: Edit, proposal: Edit) -> bool:
    """True if an edit does what was proposed, in other words or for several lessons at once."""
    if "delete" in (final.op, proposal.op):
        return final.op == proposal.op and set(proposal.lessons) <= set(final.lessons)
    return final.op != "keep" or proposal.op in ("add", "keep")  # an added text may be what a kept lesson says already


def _match(
    proposals: Sequence[Edit], final: Sequence[Edit], stated_sources: Mapping[int, Sequence[int]]
) -> tuple[list[Edit], tuple[tuple[Edit, Edit], ...], tuple[Ruling, ...]]:
    """The final edits with their provenance, pairs of a proposal and the final edit that does it, and rulings of the others."""
    into = match_proposals(proposals, final, stated_sources)
    behind = [[proposals[n] for n in into if into[n] == at and _does(edit, proposals[n])] for at, edit in enumerate(final)]
    final = [_with_provenance(edit, some) for edit, some in zip(final, behind, strict=True)]
    pairs, rulings = [], []
    for n, proposal in enumerate(proposals):
        if n not in into:
            rulings.append(Ruling(proposal, False, "dropped by the consolidation"))
        elif _does(final[into[n]], proposal):
            pairs.append((proposal, final[into[n]]))
        else:
            rulings.append(Ruling(proposal, False, f"decided otherwise: {describe_edit(final[into[n]])}"))
    return final, tuple(pairs), tuple(rulings)


def describe_edit(edit: Edit) -> str:
    """An edit in words: `modify L3 'When ..., do ...'`."""
    change = f"{edit.op} {', '.join(edit.lessons)}".rstrip()
    return f"{change} {edit.text!r}" if edit.text else change


def _likeness(proposal: Edit, final: Edit) -> float:
    if set(proposal.lessons) & set(final.lessons):
        return 1.0 + lesson_similarity(proposal.text, final.text)
    return lesson_similarity(proposal.text, final.text) if proposal.text and final.text else 0.0


# The node


class ComparisonsOfStep(LibraryChannels):
    """The comparisons of a step's groups, and the library that they may change."""

    run: str
    step: int
    comparisons: Sequence[Comparison]
    rejected: NotRequired[Sequence[str]]
    lesson_rewards: NotRequired[Mapping[str, Sequence[float]]]


class Decided(TypedDict):
    """A decision about the edits of a step, and the tokens that it took."""

    decision: EditDecision
    usage: NotRequired[Usage]


class ProposedVersion(TypedDict):
    """The version that a step proposes."""

    candidate: str
    """Its name; empty: none."""
    usage: NotRequired[Usage]


@dataclass(frozen=True)
class ReviseLibrary(Runnable[ComparisonsOfStep, ProposedVersion]):
    """Make the candidate, `<run>/<step + 1>`, from the comparisons of the step; see `consolidate`.

    The current library with the votes and shown counts of the step is kept as `<run>/<step + 1>-kept` if they change it. It holds
    if there is no candidate, or if the candidate is rejected.
    """

    role: ClassVar[str] = "model"

    critic: Critic
    question: Ask[ComparisonsOfStep, Decided] | None = field(default=None, repr=False)
    """The question to the model, whose reply is read into `decision`; None: code decides."""

    def invoke(self, input: ComparisonsOfStep, config: RunnableConfig | None = None, **kwargs: Any) -> ProposedVersion:
        asked = self.question.invoke(input, config) if self.question and self._asks(input) else None
        return self._propose_version(input, asked)

    async def ainvoke(self, input: ComparisonsOfStep, config: RunnableConfig | None = None, **kwargs: Any) -> ProposedVersion:
        asked = await self.question.ainvoke(input, config) if self.question and self._asks(input) else None
        return await asyncio.to_thread(self._propose_version, input, asked)

    def _asks(self, state: ComparisonsOfStep) -> bool:
        """True if there is something to ask about. A model that is asked about nothing makes something up."""
        return any(edit.op != "keep" for edit in all_edits(state)) or bool(contested_lessons(self.critic, state))

    def _propose_version(self, state: ComparisonsOfStep, asked: Decided | None) -> ProposedVersion:
        critic, name = self.critic, f"{state['run']}/{state['step'] + 1}"
        comparisons = sort_comparisons(state)
        current = critic.versions.at(state["library"], before=name)
        library = with_votes_of_step(current, state)
        kept = library.with_votes([(id, 1) for edit in all_edits(state) if edit.op == "keep" for id in edit.lessons])
        if kept != current:
            critic.versions.put(f"{name}-kept", kept, parent=state["library"], why="the votes of the step")
        if not any(c.edits or c.rulings or c.votes for c in comparisons):
            return {"candidate": ""}
        decided = asked["decision"] if asked else _by_code(state, library, from_code=critic.line_only)
        decision = self._within_budget(self._without_leaks(decided))
        base, added = with_additions(critic, library, state) if self.question and critic.paper else (library, ())
        instructions = {id: task.instruction for id, task in critic.tasks.items()}
        made, ruled = base.apply(decision.edits, critic.limits, critic.count, instructions=instructions)
        dropped = [ruling for comparison in comparisons for ruling in comparison.rulings]
        fates = {id(ruling.edit): ruling for ruling in reversed(ruled)}
        taken = [_ruling_of_merge(edit, fates[id(final)]) for edit, final in decision.merges]
        rulings = [*dropped, *added, *decision.rulings, *taken, *ruled]
        if decision.note:
            rulings = [replace(r, reason=f"{r.reason}; {decision.note}" if r.reason else decision.note) for r in rulings]
        made = replace(made, written_by=critic.author or made.written_by)
        critic.versions.put(name, made, parent=state["library"], why=decision.why, rulings=rulings)
        return {"candidate": name, "usage": asked["usage"] if asked else Usage()}

    def _without_leaks(self, decision: EditDecision) -> EditDecision:
        """The decision without edits whose text tells the answer of a problem of the run; those get a ruling."""
        reasons = {id(e): self.critic.leak_reason(e.text, e.problems) for e in decision.edits if e.text}
        leaks = {at: reason for at, reason in reasons.items() if reason}
        return _leave_out(decision, leaks)

    def _within_budget(self, decision: EditDecision) -> EditDecision:
        """The decision with the first `LessonSettings.max_step_edits` changes; the others get a ruling. Equal changes count once."""
        most = self.critic.limits.max_step_edits
        changes = dict.fromkeys((e.op, e.lessons, _normalize(e.text)) for e in decision.edits if e.op != "keep")
        if not most or len(changes) <= most:
            return decision
        late, beyond = set(list(changes)[most:]), f"beyond the {most} change{'s' * (most > 1)} of a step"
        reasons = {id(e): beyond for e in decision.edits if (e.op, e.lessons, _normalize(e.text)) in late}
        return _leave_out(decision, reasons)


def _leave_out(decision: EditDecision, reasons: Mapping[int, str]) -> EditDecision:
    """The decision without some of its edits, which get a ruling, as do the groups' edits that went into them."""
    if not reasons:
        return decision
    return replace(
        decision,
        edits=tuple(edit for edit in decision.edits if id(edit) not in reasons),
        rulings=(
            *decision.rulings,
            *(Ruling(edit, False, reasons[id(edit)]) for edit in decision.edits if id(edit) in reasons),
            *(Ruling(edit, False, reasons[id(final)]) for edit, final in decision.merges if id(final) in reasons),
        ),
        merges=tuple((edit, final) for edit, final in decision.merges if id(final) not in reasons),
    )


def sort_comparisons(state: ComparisonsOfStep) -> list[Comparison]:
    """The comparisons of the step by task id: in an order that does not depend on which group ended first."""
    return sorted(state["comparisons"], key=lambda comparison: comparison.task)


def all_edits(state: ComparisonsOfStep) -> list[Edit]:
    """All edits of the step's groups."""
    return [edit for comparison in sort_comparisons(state) for edit in comparison.edits]


def with_votes_of_step(library: Library, state: ComparisonsOfStep) -> Library:
    """The library with the votes and the shown counts of the step's groups."""
    comparisons = sort_comparisons(state)
    shown = library.with_shown_counts(id for one in comparisons for id, times in one.shown for _ in range(times))
    return shown.with_votes([vote for one in comparisons for vote in one.votes])


def with_additions(critic: Critic, library: Library, state: ComparisonsOfStep) -> tuple[Library, tuple[Ruling, ...]]:
    """The library with all that groups add, as the paper's consolidation sees it, and the rulings of these edits."""
    instructions = {id: task.instruction for id, task in critic.tasks.items()}
    added = [edit for edit in all_edits(state) if edit.op == "add"]
    return library.apply(added, critic.limits, critic.count, instructions=instructions)


def contested_lessons(critic: Critic, state: ComparisonsOfStep) -> list[str]:
    """Ids of the lessons that a group of this step called harmful, and that have more votes against them than for them."""
    voted = {id for one in state["comparisons"] for id, vote in one.votes if vote < 0}
    library = with_votes_of_step(critic.versions.at(state["library"]), state)
    return [lesson.id for lesson in library.lessons if lesson.id in voted and lesson.harmful > lesson.helpful]


def _by_code(
    state: ComparisonsOfStep, library: Library, why: str = "the groups' edits, by code", note: str = "", from_code: bool = False
) -> EditDecision:
    """The decision by code. A lesson without an edit goes if its votes against it outnumber those for it by two or more."""
    proposed = all_edits(state)
    named = {id for edit in proposed for id in edit.lessons}
    voted = {id for one in state["comparisons"] for id, vote in one.votes if vote < 0}
    outvoted = [
        Edit("delete", (lesson.id,), "", f"votes: {lesson.helpful} helped, {lesson.harmful} harmed", step=state["step"])
        for lesson in library.lessons
        if lesson.id in voted - named and lesson.harmful - lesson.helpful >= OUTVOTED
    ]
    edits, rulings = resolve_conflicts([*proposed, *outvoted], from_code)
    return EditDecision(tuple(edits), tuple(rulings), why=why, note=note)


def _ruling_of_merge(edit: Edit, fate: Ruling) -> Ruling:
    reason = f"consolidated into {describe_edit(fate.edit)}"
    return Ruling(edit, fate.accepted, f"{reason}: {fate.reason}" if fate.reason else reason, fate.lesson)


# The questions to a model


def consolidate(model: Runnable[Any, Any], critic: Critic) -> ReviseLibrary:
    """The node that makes the candidate from all groups' edits: one call a step, which sees the edits and the library.

    If no reply can be read, and for edits that the prompt has no room for, code decides (`resolve_conflicts`), as it always does
    for a critic that only writes a line. Without edits nothing is asked, and there is no candidate.
    """
    question = _paper_merger if critic.paper else _merger
    return ReviseLibrary(critic, None if critic.line_only else question(model, critic))


def _paper_merger(model: Runnable[Any, Any], critic: Critic) -> Ask[ComparisonsOfStep, Decided]:
    """The paper's question (Fig. 9). It shows additions as lessons already, so they stay where no plan can be read."""
    prompt = critic.prompts["optimise"]

    def candidates(state: ComparisonsOfStep) -> Library:
        return with_additions(critic, critic.versions.at(state["library"]), state)[0]

    def proposals(state: ComparisonsOfStep) -> list[Edit]:
        return [edit for edit in all_edits(state) if edit.op not in ("add", "keep")]

    def keeps(state: ComparisonsOfStep) -> list[Edit]:
        return [edit for edit in all_edits(state) if edit.op == "keep"]

    def messages(state: ComparisonsOfStep) -> list[BaseMessage]:
        told = "".join(f"- {describe_edit(edit)}\n" for edit in proposals(state)) or "(none)\n"
        return prompt.messages(edits=told, lessons=critic.lessons(candidates(state), critic.remaining_tokens(prompt, told)))

    def read(reply: AIMessage, state: ComparisonsOfStep) -> Decided:
        edits = proposals(state)
        final, bad = read_edits(answer_text(reply), candidates(state), 0, critic.limits, state["step"])
        final, pairs, dropped = _match(edits, final, {})
        return {
            "decision": EditDecision((*final, *keeps(state)), (*dropped, *bad), pairs, "the model's plan, after all additions")
        }

    def on_bad_reply(bad: BadReply, state: ComparisonsOfStep) -> Decided:
        lost = tuple(Ruling(edit, False, "no plan of revision could be read") for edit in proposals(state))
        return {"decision": EditDecision((*keeps(state),), lost, why=f"additions alone: {bad}")}

    return critic.ask("optimise", model, messages, read, on_bad_reply)


def _merger(model: Runnable[Any, Any], critic: Critic) -> Ask[ComparisonsOfStep, Decided]:
    prompt = critic.prompts["consolidate"]

    def prompt_values(state: ComparisonsOfStep) -> dict[str, str]:
        library = with_votes_of_step(critic.versions.at(state["library"]), state)
        kept = Counter(id for edit in all_edits(state) if edit.op == "keep" for id in edit.lessons)
        voted = Counter((id, vote > 0) for one in state["comparisons"] for id, vote in one.votes)
        told = [f"{id} proved itself in {n} group{'s' * (n > 1)}" for id, n in sorted(kept.items())]
        told += [
            f"{id} {'helped' if good else 'harmed'} in {n} group{'s' * (n > 1)}" for (id, good), n in sorted(voted.items())
        ]
        contested = ", ".join(contested_lessons(critic, state))
        most = critic.limits.max_step_edits
        return {
            "aim": critic.aim,
            "lessons": critic.evidence(library, state.get("lesson_rewards") or {}),
            "votes": "In this step: " + "; ".join(told) + ".\n" if told else "",
            "ruling": f"More votes against than for: {contested}. Say of each what becomes of it, and why.\n"
            if contested
            else "",
            "rejected": critic.rejected_text(state.get("rejected", ())),
            "budget": f" The list has at most {most} changes, the most useful first." if most else "",
            "words": str(critic.limits.max_words),
            "size": str(critic.limits.max_lessons),
        }

    def fitting(state: ComparisonsOfStep) -> tuple[list[Edit], list[Edit], str]:
        """The proposals that the prompt has room for, the others, and the prompt's text of the first ones."""
        edits = [edit for edit in all_edits(state) if edit.op != "keep"]
        room, lines = critic.remaining_tokens(prompt, *prompt_values(state).values()), ""
        for n, edit in enumerate(edits):
            line = _proposal(n + 1, edit)
            if critic.count(lines + line) > room:
                return edits[:n], edits[n:], lines
            lines += line
        return edits, [], lines

    def messages(state: ComparisonsOfStep) -> list[BaseMessage]:
        return prompt.messages(**prompt_values(state), edits=fitting(state)[2] or "(none)\n")

    def read(reply: AIMessage, state: ComparisonsOfStep) -> Decided:
        library, (edits, rest, _) = critic.versions.at(state["library"]), fitting(state)
        most = len(edits) + len(library.lessons)
        contested = contested_lessons(critic, state)
        final, bad = read_edits(answer_text(reply), library, most, critic.limits, state["step"])
        if unruled := [id for id in contested if all(id not in edit.lessons for edit in final)]:
            raise Unreadable(f"asked what becomes of {', '.join(unruled)} (modify, merge, delete, or keep), got no edit of it")
        stated = _stated_sources(answer_text(reply), final, len(edits), library, critic.limits)
        final, pairs, dropped = _match(edits, final, stated)
        keeps = [edit for edit in all_edits(state) if edit.op == "keep"]
        later, refused = resolve_conflicts(rest)
        decision = EditDecision(
            (*final, *keeps, *later),
            (*dropped, *bad, *refused),
            pairs,
            f"{len(edits)} edits of the groups, consolidated by the model"
            + (f"; {len(rest)} more, which its prompt had no room for, by code" if rest else ""),
        )
        return {"decision": decision}

    def on_bad_reply(bad: BadReply, state: ComparisonsOfStep) -> Decided:
        note = "applied by code, for no consolidation could be read"
        library = with_votes_of_step(critic.versions.at(state["library"]), state)
        return {"decision": _by_code(state, library, f"the groups' edits, {note}: {bad}", note)}

    return critic.ask("consolidate", model, messages, read, on_bad_reply, edits=EDITS)


def _proposal(number: int, edit: Edit) -> str:
    """A proposal as the prompt shows it, with the number and the mean reward of the attempts behind it."""
    what = " ".join([edit.op, *([", ".join(edit.lessons)] if edit.lessons else [])])
    because = [edit.why] if edit.why else []
    because += (
        [f"{len(edit.rewards)} attempts, mean reward {sum(edit.rewards) / len(edit.rewards):.2f}"] if edit.rewards else []
    )
    told = f" (because: {'; '.join(because)})" if because else ""
    return f"{number}. {what}{f': {edit.text}' if edit.text else ''}{told}\n"


def _with_provenance(edit: Edit, proposals: Sequence[Edit]) -> Edit:
    """A final edit with the provenance of the proposals that it was made from."""
    problems = tuple(dict.fromkeys(problem for proposal in proposals for problem in proposal.problems))
    groups = dict.fromkeys((proposal.problems, proposal.rewards) for proposal in proposals)
    return replace(edit, problems=problems, rewards=tuple(reward for _, rewards in groups for reward in rewards))


def _stated_sources(
    reply: str, final: Sequence[Edit], number: int, library: Library, limits: LibraryLimits
) -> dict[int, list[int]]:
    """Index of a final edit -> indices of the proposals that the model says it was made from (`"from"` in its reply)."""
    stated: dict[Edit, list[list[int]]] = {}
    for item in _objects(json_values(reply)):
        given = item.get("from")
        numbers = [n for one in (given if isinstance(given, list) else [given]) for n in re.findall(r"\d{1,6}", str(one))]
        places = [int(n) - 1 for n in numbers if 0 < int(n) <= number]
        for edit in as_edits(item, library, limits) if places else ():
            stated.setdefault(_without_provenance(edit), []).append(places)
    bare = [_without_provenance(edit) for edit in final]
    return {at: stated[edit].pop(0) for at, edit in enumerate(bare) if stated.get(edit)}


def _without_provenance(edit: Edit) -> Edit:
    return Edit(edit.op, edit.lessons, edit.text, edit.why)


def _objects(found: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, at any depth."""
    if isinstance(found, dict):
        yield found
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _objects(inner)
