"""Walk through a run of any LangGraph graph that has a checkpointer: pause, look, edit, go back, fork, compare.

    walk = start(graph, {"task": task, "run": "demo", "episode": 0})
    walk.until("choose")                       run to the pause before that node
    walk.until(lambda state: state["score"] > 3)    or until something is true of the state
    walk.state["candidates"], walk.view()      look
    walk.edit(action="open door").step()       another future
    walk.back(3)                               an earlier moment; later ones stay on record
    other = walk.fork()                        two futures from here
    compare(walk, other, before="act", show=["action"])
    walk.into("group", 2)                      into the third invocation of that node's subgraph; out() comes back
    walk.question, walk.resume("yes")          what `interrupt()` asks, and the answer

`step`, `until`, `finish`, `into`, `out` and `resume` run nodes. Asynchronous nodes are called on an event loop in a thread of its own,
and so is a checkpointer that belongs to the caller's loop. In a loop that must not wait, move with `await asyncio.to_thread(walk.step)`.
Made for notebooks: the returned objects show themselves there and print as text elsewhere. Going back and on again executes nodes again, with
all their effects. Where a node fails, its error is raised and the walk stands before that node; of nodes side by side those that ended do
not run again.

A forked or edited walk, and one that went back, is a what-if: it sees the memories as they were at its moment, and writes into a branch
of its own (memory/storage/branches.py), never into what the real run remembers. Its moments, too, are recorded apart, in this process's
memory (record_copy.py). `keep` writes the branch into the memories and its moments into the run's record, `drop` forgets it and leads back.
That holds for all memories of this project, and for the `store` of any graph. Other effects are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Interrupt, StateSnapshot

from ...memory.errors import did_you_mean, plural, type_of
from ...memory.graph_input import check_input
from ...memory.graph_input import check_names as check_input_names
from ...memory.storage.branches import Branch, new_moment
from ...memory.storage.branching_store import BranchingStore
from ...memory.storage.serializer import allow_records
from .edits import sent_at, write_edit
from .moments import (
    call_graph,
    check_answer,
    check_kind,
    checkpoint_id,
    descend,
    explaining,
    is_asynchronous,
    is_of_this_loop,
    latest_moment,
    loop_of_walks,
    merge,
    names_of,
    nodes_of,
    passes_along,
    place_of,
    read_history,
    read_moment,
    source_of,
    thread_of,
    try_input,
    turns_to,
)
from .pauses import Graph, Invocation, find_subgraph, innermost, name_questions, pause_in
from .record_copy import copy_record, newest_in, write_back
from .tables import StepperError, Table, channel_rows, check_channels, check_edit, check_names, table, to_line

__all__ = ["StepperError", "Table", "Walk", "start", "table"]

Stop = str | Callable[[dict[str, Any]], Any]
"""A place to pause at: the name of a node, or a test of the state."""


@dataclass
class Walk:
    """A place in a run: the moment before the nodes in `next`. Moving changes the place and never deletes from the run's record."""

    graph: Graph
    place: RunnableConfig
    """The checkpoint of the present place. A walk made with a thread begins at the thread's latest checkpoint."""
    branch: Branch | None = field(default=None, repr=False)
    """Its branch of the memories, since it became a what-if by `edit`, `back` or `fork`; None while it is the real run."""
    config: RunnableConfig = field(default_factory=lambda: RunnableConfig(), repr=False)
    """What every call of the graph is given beside the place, such as `{"configurable": {"user": "ann"}}`."""
    inside: tuple[Invocation, ...] = ()
    """The subgraphs' invocations in which it stands, the outermost first; empty in the graph itself."""
    breakpoints: list[Stop] = field(default_factory=list, repr=False)
    """Where `until` and `finish` pause, too: see `break_on`."""
    _awaits_nodes: bool = field(default=False, init=False, repr=False)
    _now: StateSnapshot | None = field(default=None, repr=False, compare=False)
    _left: Walk | None = field(default=None, repr=False, compare=False)
    """The walk as it was where it became a what-if."""
    _saver: Any = field(default=None, repr=False, compare=False)
    """The checkpointer of the real run; a what-if's graph has one of its own, in memory."""
    _since: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The newest in the real run's record where the what-if began (`newest_in`); empty of a walk apart from it."""
    listen: Callable[[Any], None] | None = field(default=None, repr=False)
    """Called while nodes run with LangGraph's events of the streams `tasks` and `messages`: (namespace, stream, event)."""
    _answers: tuple[Mapping[Any, Any], ...] = field(default=(), repr=False)
    """The answers given so far to the questions of this place, round by round: place of the question -> answer."""
    _asks_again: bool = field(default=False, repr=False)
    """True if the record may hold answers to the questions of this place that this walk has not given."""
    _has_asked: bool = field(default=False, repr=False)
    """True if the walk went back to a moment whose nodes have asked: `resume` first runs them to their questions."""
    _seen: dict[str, tuple[Any, ...]] = field(default_factory=dict, repr=False, compare=False)
    """Id of a question that was seen, here or by the walk that was forked -> its place."""
    _stood: str = field(default_factory=new_moment, repr=False, compare=False)
    """The moment when it came to its place."""

    def __post_init__(self) -> None:
        if not self.graph.checkpointer:
            raise StepperError("a walk needs checkpoints: compile the graph with checkpointer=InMemorySaver()")
        allow_records()
        self._saver = self._saver or self.graph.checkpointer
        if self.graph.store is not None and not isinstance(self.graph.store, BranchingStore):
            self.graph = self.graph.copy({"store": BranchingStore(self.graph.store)})
        self._awaits_nodes = is_asynchronous(self.graph)
        if self._now is None:
            now = self._snapshot()  # it refuses a place of which nothing is held
            if "checkpoint_id" not in self.place["configurable"]:
                self.place = now.config

    @property
    def _in_loop(self) -> bool:
        """True if the graph is called in the loop of walks: it awaits nodes, or its checkpointer is of the loop that waits here."""
        return self._awaits_nodes or is_of_this_loop(self._saver)

    def _snapshot(self) -> StateSnapshot:
        if self._now is None:
            self._now = latest_moment(self.graph, self._in_loop, self.place)
        return self._now

    @property
    def state(self) -> dict[str, Any]:
        """The values of the channels at this moment."""
        return dict(self._snapshot().values)

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes about to run: one, several after a fan-out, none at the end of the run."""
        return self._snapshot().next

    @property
    def here(self) -> Graph:
        """The graph in which the walk stands: a subgraph after `into`."""
        return innermost(self.graph, self.inside)

    @property
    def question(self) -> Any:
        """The question of the node that paused in `interrupt()`; None if none asks. Of several questions a dict: id -> question."""
        asked = self.questions
        return next(iter(asked.values())) if len(asked) == 1 else asked or None

    @property
    def questions(self) -> dict[str, Any]:
        """The questions of the nodes that paused in `interrupt()`, by their ids."""
        self._seen.update(self._open_places())
        return {one.id: one.value for one in self._interrupts()}

    @property
    def answers(self) -> dict[str, Any]:
        """The answers given at this place while other questions are open, by the ids of their questions: `resume` changes them."""
        open_ids, ids = self.questions, {place: id for id, place in self._seen.items()}
        given = {ids[place]: said for one in self._answers for place, said in one.items() if place in ids}
        return {id: said for id, said in given.items() if id not in open_ids}

    def _interrupts(self) -> list[Interrupt]:
        return [one for task in self._snapshot().tasks for one in task.interrupts]

    def _open_places(self) -> dict[str, tuple[Any, ...]]:
        """Id of an open question -> its place: the path of the task that asks it, and its number there. A copy of the moment asks under
        other ids at the same places."""
        return {one.id: (*task.path, n) for task in self._snapshot().tasks for n, one in enumerate(task.interrupts)}

    # -- moves ----------------------------------------------------------------------------------------------------

    def step(self, times: int = 1) -> Self:
        """Run the next node, with all of its subgraph if it has one.

        Raises:
            StepperError: the run has ended, or the node waits for an answer (see `resume`).
        """
        if not isinstance(times, int) or times < 1:
            raise StepperError(f"step takes a number of steps, got {times!r}; until(NODE) runs to a node")
        for _ in range(times):
            self._run("*")
        return self

    def until(self, *stops: Stop) -> Self:
        """Run to the next pause, or to the end of the run; a question (see `question`) and a breakpoint pause as well.

        At least one node is run: where the walk stands before one of these nodes already, it goes on to the next time.

        Args:
            stops: names of nodes of the graph in which the walk stands, to pause before; or tests of the state, such as
                `lambda state: state["step"] == 3`, to pause wherever it is true. A channel that has no value yet makes a test false.

        Raises:
            StepperError: there is no such node or channel, or the walk cannot go on (see `step`).
        """
        return self._until(stops)

    def finish(self) -> Self:
        """Run to the end of the whole run, or to a question or a breakpoint; at the end nothing runs."""
        return self if not self.next else self._until((), come_out=True)

    def into(self, node: str | None = None, number: int = 0) -> Self:
        """Run to the first pause inside the subgraph of a node. Other nodes of the same moment run to their ends.

        A node that does not run its subgraph this time is passed, and the walk stands after it.

        Args:
            node: name of the node; if it is not about to run, the walk first goes on until it is. None: the next one.
            number: the invocation to enter, from 0, where several are about to run (`Send`).

        Raises:
            StepperError: there is no such node or invocation, or it has no subgraph that can pause.
        """
        here = self.here
        entered = [one for one in nodes_of(here) if find_subgraph(here, one) is not None]
        if node is not None:
            self._check_stops([node])
            if node in entered and node not in self.next:
                self._run([node])
                if node not in self.next:
                    raise StepperError(f"the run never came to {node!r}: it stands at {self}")
        if not self.next:
            raise StepperError("the run has ended: back(n) goes to an earlier moment")
        name = node or next((one for one in self.next if one in entered), self.next[0])
        if name not in entered:
            others = f"; {', '.join(map(repr, entered))} can be entered" if entered else ", nor has another node here"
            raise StepperError(f"{name!r} has no subgraph that LangGraph knows{others}")
        graph = find_subgraph(here, name)
        if graph.checkpointer is False:  # compiled to leave no checkpoints; to pause it needs those of the graph around it
            graph.checkpointer = None
        paths = sorted((task.path for task in self._snapshot().tasks if task.name == name), key=str)
        if not 0 <= number < len(paths):
            raise StepperError(f"{name!r} is about to run {len(paths)} times: there is no number {number} (they count from 0)")
        inside = (*self.inside, Invocation(name, number, tuple(paths[number][:3])))
        if self._interrupts():
            return self._open_questions()._stand(inside)
        if self._latest(inside)[1] == len(inside):
            return self._stand(inside)  # it has begun already
        self.inside = inside
        return self._run("*", entering=True)

    def out(self) -> Self:
        """Run the subgraph to its end, and pause in the graph around it. From a node that asks nothing is run, and the question goes along."""
        if not self.inside:
            raise StepperError("the walk stands in no subgraph: into() enters one")
        if not self._interrupts():
            return self._run(())
        return self._open_questions()._stand(self.inside[:-1])

    def resume(self, answer: Any) -> Self:
        """Answer the node that asks (see `question`), and run it to its end, or to its next question.

        Args:
            answer: what `interrupt()` returns in the node; of several questions a dict: id -> answer, or node -> answer where each node
                asks one. An answer of this place that was given already may be changed in the same way, while others are open: the walk
                is a what-if from there on.

        Raises:
            StepperError: nothing asks, or several nodes ask and the answer does not say which, or LangChain's middleware asks and could
                not read it.
        """
        if self._has_asked:
            self.step()
        places = self._open_places()
        if not places:
            raise StepperError(f"nothing asks for an answer at {self}: step() goes on")
        self._seen.update(places)
        names, known = name_questions(self._snapshot().tasks), {**self._seen, **places}
        if isinstance(answer, Mapping) and (len(places) > 1 or self._answers):
            nodes = {tuple(task.path): task.name for task in self._snapshot().tasks}
            here = {*places.values(), *(place for one in self._answers for place in one)}
            asked = [(nodes.get(place[:-1]), id) for id, place in known.items() if place in here]
            by_name = {name: id for name, id in asked if sum(name == other for other, _ in asked) == 1}
            answer = {by_name.get(key, key): said for key, said in answer.items()}
        by_id = isinstance(answer, Mapping) and len(answer) > 0 and answer.keys() <= known.keys()
        if len(places) > 1 and not by_id:
            form, key = ", ".join(f"{one!r}: ..." for one in names or places), "node" if names else "id"
            odd = [*(answer.keys() - known if isinstance(answer, Mapping) else ())]
            said = f"{odd[0]!r} does not ask{did_you_mean(str(odd[0]), names)}; " if odd else ""
            sent = sent_at(self._in_loop, (self.graph, self.place))
            works = [sent[task.id] for task in self._snapshot().tasks for _ in task.interrupts if task.id in sent]
            about = f"; in this order they work on {', '.join(works)}" if works and not names else ""
            raise StepperError(
                f"{said}{len(places)} nodes ask: answer with a dict of {key} -> answer, such as resume({{{form}}}){about}"
            )
        given = {known[id]: said for id, said in answer.items()} if by_id else {next(iter(places.values())): answer}
        for one in self._interrupts():
            if places[one.id] in given:
                check_answer(one.value, given[places[one.id]], self.here)
        if not self._is_latest(self.inside):
            self._asks_again = True  # another walk stands at the latest moment, and has answers of its own
        for place in given.keys() - places.values():
            self._begin_branch()
            self._change_answer(place, given.pop(place))
        self._open_questions()
        if not given:
            return self
        before = checkpoint_id(self.place)
        try:
            self._run("*", self._command(given))
        except Exception:  # LangGraph keeps the answer with which the node failed
            self._asks_again = True
            raise
        self._answers = (*self._answers, given) if checkpoint_id(self.place) == before else ()
        return self

    def _change_answer(self, place: tuple[Any, ...], answer: Any) -> None:
        rounds = [n for n, one in enumerate(self._answers) if place in one]
        if not rounds:
            raise StepperError(f"that question is not asked at {self}; back(n) goes to where it was")
        changed = {**self._answers[rounds[-1]], place: answer}
        self._answers = (*self._answers[: rounds[-1]], changed, *self._answers[rounds[-1] + 1 :])
        self._asks_again = True

    def _open_questions(self) -> Self:
        """Stand where the questions are open: where the record holds other answers, at an edit of nothing that asks them anew. The real
        run's thread goes along, unless another walk has gone on there."""
        if not self._asks_again:
            return self
        goes_along, since = self.branch is None and self._is_latest(self.inside), self._begin()
        self._write({})
        if goes_along and write_back(self._saver, self._in_loop, self.graph, self.place, since):
            self.graph = self.graph.copy({"checkpointer": self._saver})
        self._run("*")
        for given in self._answers:
            self._run("*", self._command(given))
        self._asks_again = False
        return self

    def _command(self, given: Mapping[Any, Any]) -> Command[Any]:
        """The answers by the ids of the questions: beside this one others may be open, in other subgraphs."""
        ids = {place: id for id, place in self._open_places().items()}
        return Command(resume={ids[place]: answer for place, answer in given.items()})

    def _stand(self, inside: Sequence[Invocation]) -> Self:
        """Stand at the latest moment of the run inside these invocations, or as far inside as they have not ended."""
        self._has_asked, self._stood = False, new_moment()
        self._now, depth = self._latest(inside)
        self.inside, self.place = tuple(inside[:depth]), self._now.config
        return self

    def go_on(self, input: Any) -> Self:
        """Begin another run on the same thread, such as the next turn of a chat, and pause before its first node.

        Args:
            input: the input, as for `graph.invoke`; the channels are those that this run has left.

        Raises:
            StepperError: this run has not ended, or the input names no channels.
        """
        if self.next:
            raise StepperError(f"{self}: this run has not ended; finish() ends it")
        check_kind(self.graph, input, "go_on takes an input")
        check_input_names(self.graph, input)
        try_input(self.graph, self._in_loop, input, self.place)
        self._be_latest(())
        self._call("invoke", input, merge(self.config, thread_of(self.place)), interrupt_before="*")
        return self._stand(())

    def edit(self, *unnamed: Any, **channels: Any) -> Self:
        """Write values into channels as if the last node had, or all that ran side by side; a channel with a reducer adds.

        The old values stay on record. The walk is a what-if from here on: see `keep` and `drop`. A refused edit changes nothing.

        Raises:
            StepperError: there is no such channel, or the value is not of the channel's type.
        """
        if unnamed or not channels:
            raise StepperError("edit takes channels and their values, such as edit(action='wait')")
        check_channels(self.here, channels)
        before = dict(vars(self))
        asking = {task.name for task in self._snapshot().tasks if self._has_asked or task.interrupts}
        self._begin_branch()
        try:
            self._write(channels)
            self._answers, self._asks_again = (), False
            check_edit(self.here, channels, self.state, self._saver.serde.dumps_typed)
        except Exception as error:  # a reducer, or a condition of the graph's, may raise anything
            vars(self).update(before)
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise StepperError(f"the channels {', '.join(channels)} do not take these values: {said}") from error
        self._has_asked = not asking.isdisjoint(self.next)
        return self

    def _write(self, channels: Mapping[str, Any]) -> None:
        """Write an edit, and stand there. What had ended beside it does not run again, but for nodes with answers that this walk has given."""
        played = [one for one in self._turns()[-1] if source_of(one) != "update"]
        nodes = [*dict.fromkeys(task.name for task in played[-2].tasks)] if len(played) > 1 else []
        done = [one for one in self._snapshot().tasks if one.result is not None and not one.interrupts]
        anew = {place[:-1] for one in self._answers for place in one} if not channels else set()
        ended = {one.id for one in done if tuple(one.path) not in anew}
        with self._remembering():
            self.graph, self.place = write_edit(
                self.graph, self.place, channels, inside=self.inside, in_loop=self._in_loop, nodes=nodes, ended=ended
            )
        self._stand(self.inside)

    def break_on(self, *stops: Stop) -> Self:
        """Set breakpoints: `until` and `finish` pause there, too. `breakpoints.clear()` takes them away.

        Args:
            stops: nodes and tests, as for `until`.
        """
        self._check_stops(stops)
        self.breakpoints += stops
        return self

    def back(self, times: int = 1) -> Self:
        """Go back `times` steps (or edits). The walk is a what-if from here on: see `keep` and `drop`.

        It goes back past the beginning of a turn that `go_on` began, to the end of the turn before; inside a subgraph as far as the
        subgraph's first node. A node that has asked asks anew: `resume` answers it at once. What had run when an edit was made stays.
        """
        path = [moment for turn in self._turns() for moment in turn]
        if times not in range(len(path)):
            around = f" in {self.inside[-1].node!r}; out() leads to the graph around it" if self.inside else ""
            here = f"{self._place()}, with {plural(len(path) - 1, 'step')} before it{around}"
            raise StepperError(f"cannot go back {times} steps: this is {here}")
        self._begin_branch()
        assert self.branch is not None
        if times:
            past, after = path[-1 - times], path[-times]
            runs_anew = source_of(after) != "update"
            self.branch = self.branch.at(checkpoint_id((past if runs_anew else after).config))
            self._has_asked = runs_anew and any(task.interrupts for task in past.tasks)
            self.place, self._answers, self._asks_again = past.config, (), False
        self._copy_record(anew=times > 0 and runs_anew)
        return self

    def fork(self) -> Self:
        """A what-if from this place, with a branch of memory and a record of its own; the two walks are independent."""
        made = replace(self, breakpoints=list(self.breakpoints), _left=None, _since=self._begin())
        made._copy_record()
        moment = made._moment()
        made.branch = self.branch.at(moment) if self.branch is not None else Branch(moment)
        made._left = replace(made)
        return made

    def keep(self, *, replace: bool = False) -> Self:
        """Write into the memories what this what-if has written in its branch. From here on the walk is the real run, and the run's
        record goes on with its moments, unless it has itself gone on since: then the walk is shown as "apart from its thread".

        Args:
            replace: whether that replaces what was remembered otherwise under the same names since; a log replaces nothing.

        Raises:
            StepperError: the walk is the real run.
            BranchError: something else was written in its place since; nothing is written then.
        """
        if self.branch is None:
            raise StepperError("this walk is the real run, which memory keeps anyway: only what-ifs are kept or dropped")
        self.branch.keep(replace=replace)
        self.branch = self._left = None
        if write_back(self._saver, self._in_loop, self.graph, self.place, self._since):
            self.graph = self.graph.copy({"checkpointer": self._saver})
        self._since = {}
        return self

    def drop(self) -> Self:
        """Forget what this what-if has written, and go back to the place where it began.

        A walk that became a what-if by `edit` or `back` is the real run again there; one made by `fork` is a what-if still.

        Raises:
            StepperError: the walk is the real run.
        """
        left = self._left
        if left is None:
            raise StepperError("this walk is the real run, which is not dropped; back(n) begins a what-if")
        self.graph = self.graph.copy({"checkpointer": left.graph.checkpointer})
        self.place, self.inside, self._now, self._stood = left.place, left.inside, left._now, left._stood
        self.branch = left.branch.at(left._moment()) if left.branch is not None else None
        self._left = left if left.branch is not None else None
        self._answers, self._asks_again, self._has_asked = left._answers, left._asks_again, left._has_asked
        return self

    def _begin_branch(self) -> None:
        if self.branch is None:
            self._left, self._since = replace(self), self._begin()
            self.branch = Branch(self._moment())

    def _begin(self) -> Mapping[str, Any]:
        """The newest in the record of the real run, of which a what-if may be the future."""
        if self.branch is not None or self._is_apart:
            return self._since
        return newest_in(self._saver, self._in_loop, self.place)

    @property
    def _is_apart(self) -> bool:
        """True if the thread has gone on otherwise than this walk, whose moments are recorded in this process alone."""
        return self.branch is None and self.graph.checkpointer is not self._saver

    def _moment(self) -> str:
        """The moment as of which a what-if from here sees the memories: it has what nodes side by side wrote that have run already."""
        has_begun = any(task.interrupts or task.error or task.result is not None for task in self._snapshot().tasks)
        return self._stood if has_begun else checkpoint_id(self.place)

    def _copy_record(self, anew: bool = False) -> None:
        """Go on in a record of its own; `anew`: the nodes about to run there begin anew."""
        saver = copy_record(self.graph.checkpointer, self._in_loop, self.place, anew=anew)
        self.graph = self.graph.copy({"checkpointer": saver})
        self._now, _ = self._latest(self.inside)

    def _be_latest(self, inside: Sequence[Invocation]) -> None:
        """Go on in a record of its own if another walk, or the graph itself, has gone on from here."""
        if not self._is_latest(inside):
            self._copy_record()

    # -- looking --------------------------------------------------------------------------------------------------

    def path(self) -> list[StateSnapshot]:
        """The moments that led here, from the first pause of the graph in which the walk stands to this one; of a chat, of this turn."""
        *past, now = self._turns()[-1]
        return [*map(self._with_ended, past), now]

    def _turns(self) -> list[list[StateSnapshot]]:
        """The moments that led here, a list for each turn of a chat; inside a subgraph only those of its present run."""
        history = read_history(self.graph, self._in_loop, thread_of(self.place, ns=True))
        return turns_to(self._snapshot(), history, only_last=bool(self.inside))

    def _with_ended(self, moment: StateSnapshot) -> StateSnapshot:
        """The moment of an edit with what had ended beside it then: LangGraph shows that of the latest moment alone."""
        if source_of(moment) != "update" or all(task.result is None for task in moment.tasks):
            return moment
        saver = copy_record(self.graph.checkpointer, self._in_loop, moment.config, anew=True)
        graph, thread = self.graph.copy({"checkpointer": saver}), thread_of(moment.config)
        shown = descend(read_moment(graph, self._in_loop, thread, bool(self.inside)), self.inside)[0]
        return moment._replace(values=shown.values, next=shown.next)

    def passes(self) -> dict[tuple[str, str], int]:
        """How often the walk took each arrow on its way: (from, to) -> number. The ends are START and END."""
        return passes_along(self.path(), self.here)

    def view(self, *channels: str) -> Table:
        """A table of the channels (or only these) at this moment; those that the last step changed are highlighted."""
        check_names(self.here, channels)
        path = self.path()
        now, before = self.state, path[-2].values if len(path) > 1 else {}
        rows, changed = list[tuple[str, str, str]](), set[int]()
        for name in filter(now.__contains__, channels or now):
            new, old = channel_rows(name, now[name]), channel_rows(name, before[name]) if name in before else []
            if now[name] != before.get(name):
                changed |= {len(rows) + i for i, row in enumerate(new) if old[i : i + 1] != [row]} or {len(rows)}
            rows += new
        whole = {(i, 1): text for i, (*_, text) in enumerate(rows) if text}
        lines = tuple((name, line) for name, line, _ in rows)
        return Table(("channel", "value"), lines, frozenset(changed), title=str(self), whole=whole)

    def __str__(self) -> str:
        played = [f"{name} {self.state[name]}" for name in ("episode", "step") if isinstance(self.state.get(name), int)]
        place = self._place() + (f" ({', '.join(played)})" if len(played) == 2 else "")
        place += ", apart from its thread" * self._is_apart
        if not self.next:
            return f"{place}, the end"
        asked = self._interrupts()
        told = (
            f", which asks {'; '.join(to_line(one.value) for one in asked)}" if asked else ", which asks anew" * self._has_asked
        )
        return f"{place}, before {names_of(self.next)}{told}"

    def _place(self) -> str:
        """Where the walk stands, in words: the subgraphs that it is in, the turn of a chat that has several, and the moment's number."""
        where = "".join(f"{one.node}[{one.number}] > " if one.number else f"{one.node} > " for one in self.inside)
        turns = self._turns()
        return where + place_of(len(turns), len(turns), len(turns[-1]) - 1)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()

    # -- how moves are made -----------------------------------------------------------------------------------------

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the graph in the walk's branch of memory."""
        with self._remembering():
            return call_graph(self.graph, self._in_loop, name, *args, **kwargs)

    def _remembering(self) -> AbstractContextManager[Any]:
        return self.branch.play() if self.branch is not None else nullcontext()

    def _until(self, stops: Sequence[Stop], come_out: bool = False) -> Self:
        self._check_stops(stops)
        wanted = [*stops, *self.breakpoints]
        names = [one for one in wanted if isinstance(one, str)]
        tests = [one for one in wanted if not isinstance(one, str)]
        if not tests:
            return self._run(names, around=() if come_out else "*")
        while True:
            self._run("*")
            if not self.next or self._interrupts() or set(self.next) & set(names) or any(map(self._is_true, tests)):
                return self

    def _check_stops(self, stops: Sequence[Stop]) -> None:
        known = nodes_of(self.here)
        for name in stops:
            if isinstance(name, str) and name not in known:
                owner = next((node for node in known if name in nodes_of(find_subgraph(self.here, node))), "")
                inside = f"; {owner!r} has one inside: into({owner!r}).until({name!r})" if owner else ""
                inside = "; finish() runs to the end" if name.strip("_").upper() == "END" else inside
                raise StepperError(f"there is no node {name!r}{did_you_mean(name, known, 'there are')}{inside}")
            if not isinstance(name, str) and not callable(name):
                raise StepperError(f"a stop is the name of a node, or a test of the state; got {name!r}")

    def _is_true(self, test: Callable[[dict[str, Any]], Any]) -> bool:
        try:
            return bool(test(self.state))
        except KeyError as error:
            known = self.here.builder.channels
            if error.args and error.args[0] in known:
                return False
            hint = did_you_mean(str(error).strip("'"), known, "there are")
            raise StepperError(f"the test asks for {error}, which is no channel{hint}") from error

    def _latest(self, inside: Sequence[Invocation]) -> tuple[StateSnapshot, int]:
        """The thread's latest moment inside these invocations, or as far inside as they have not ended; and how many of them that are."""
        with self._remembering():
            return descend(read_moment(self.graph, self._in_loop, thread_of(self.place), bool(inside)), inside)

    def _is_latest(self, inside: Sequence[Invocation]) -> bool:
        """True if the thread's latest moment, seen inside these invocations, is this one: no other walk has gone on from here."""
        return checkpoint_id(self._latest(inside)[0].config) == checkpoint_id(self.place)

    def _run(self, pause: Any, input: Any = None, *, around: Any = "*", entering: bool = False) -> Self:
        """Run the graph to a pause.

        Args:
            pause: nodes of the graph in which the walk stands to pause before, or "*".
            input: None, or the answer to a question.
            around: nodes to pause before in the graphs around that one.
            entering: the last of `inside` has not begun.
        """
        if not self.next:
            raise StepperError("the run has ended: back(n) goes to an earlier moment")
        if input is None and self._interrupts():
            raise StepperError(f"{self}: answer with resume(value)")
        self._be_latest(self.inside[:-1] if entering else self.inside)
        run = partial(self._call, "invoke") if self.listen is None else self._hear
        try:
            with pause_in(self.graph, self.inside, pause, around), explaining(self.graph, lambda: self._latest(())[0].values):
                run(input, merge(self.config, thread_of(self.place)), interrupt_before=around if self.inside else pause)
        finally:  # also where a node failed: what ran before it must not run again
            self._stand(self.inside)
        return self

    def _hear(self, input: Any, config: RunnableConfig, **pause: Any) -> None:
        """Run the graph to a pause, and tell `listen` what happens meanwhile."""
        hear: Any = self.listen
        streams: dict[str, Any] = {"stream_mode": ["tasks", "messages"], "subgraphs": True, **pause}

        async def wait() -> None:
            async for event in self.graph.astream(input, config, **streams):
                hear(event)

        with self._remembering():
            if self._in_loop:
                asyncio.run_coroutine_threadsafe(wait(), loop_of_walks()).result()
            else:
                for event in self.graph.stream(input, config, **streams):
                    hear(event)


def start(graph: Graph, input: Any = None, thread: str | None = None, config: RunnableConfig | None = None) -> Walk:
    """Begin a run and pause before its first node; without an input, stand where a thread stands. No node runs.

    Args:
        graph: compiled with a checkpointer.
        input: the input, as for `graph.invoke`; None: the run goes on that the checkpointer holds under this thread.
        thread: the run's name for the checkpointer; None: the first of `walk-1`, `walk-2`, ... that the checkpointer does not hold, so that
            a cell that runs again begins anew. A second run of the same name begins with the channels of the first.
        config: further settings of every call of the graph, such as `{"configurable": {"user": "ann"}}`.
    """
    if not isinstance(graph, CompiledStateGraph):
        remedy = "; compile it first, with checkpointer=InMemorySaver()" if isinstance(graph, StateGraph) else ""
        raise StepperError(f"step takes a compiled graph first, got {type_of(graph)}{remedy}")
    given, place = config or RunnableConfig(), RunnableConfig(configurable={"thread_id": thread or ""})
    if graph.checkpointer:
        in_loop = is_asynchronous(graph) or is_of_this_loop(graph.checkpointer)
        if thread is None:
            check_kind(graph, input, "step takes the input second")
            check_input(graph, input)
            threads = (RunnableConfig(configurable={"thread_id": f"walk-{number}"}) for number in count(1))
            place = next(one for one in threads if read_moment(graph, in_loop, one).created_at is None)
        if input is not None:
            try_input(graph, in_loop, input, place)
            call_graph(graph, in_loop, "invoke", input, merge(given, place), interrupt_before="*")
    return Walk(graph, place, config=given)
