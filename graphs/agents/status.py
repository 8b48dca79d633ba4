"""The state of a learner in numbers and in words: what it has learned, and above all what kept it from learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from ...memory.errors import plural

__all__ = ["LearnerStatus", "trend"]

FEW = 20
"""Model calls, or rewards, from which on their share or mean says something."""
LET_IN = "quarantine_reasons() says why, release(thread_id) lets them in"
"""What helps where words of feedback are not learned."""
ASKED_AGAIN = "the next feedback or model call{pause} has it asked again, and learn() at once"
"""When a critic is asked again that could not be asked."""
LOW_SHARE = 0.5
"""Share of model calls with something recalled below which `status` says what would help."""


def trend(rewards: Sequence[float], has_recalled: bool = False) -> str:
    """A sentence where the newest rewards are clearly below the best ones before (2 standard errors), or, where most model calls had
    something recalled, not above the first ones and far from the best reward; else empty."""
    means = [fmean(rewards[n : n + FEW]) for n in range(len(rewards) - FEW, -1, -FEW)]
    newest, best = means[0] if means else 0.0, max(means, default=0.0)
    noise = 2 * pstdev(rewards or [0]) * (2 / FEW) ** 0.5
    if best - newest > noise:
        ago = means.index(best) * FEW
        return f"rewards fell: the newest {FEW} earned {newest:.2f}, and {FEW} in a row {best:.2f}, {ago} ratings before"
    if not has_recalled or len(means) < 2 or newest - means[-1] > noise or newest >= 0.25 * min(rewards) + 0.75 * max(rewards):
        return ""
    return f"rewards have not risen: the newest {FEW} earned {newest:.2f}, the first {FEW} {means[-1]:.2f}"


@dataclass(frozen=True)
class LearnerStatus:
    """The state of a learner in a scope: what it has learned, and what kept it from learning. `str` says it in words."""

    method: str
    rated: int
    """Rated stretches of conversations in the store."""
    consulted: int = 0
    """Model calls for which this process looked into memory; for JitRL these are the decisions."""
    recalled: int = 0
    """Of these, the ones for which memory had something, and room to show it."""
    unshown: int = 0
    """The ones for which `max_added_tokens` had no room for any of it."""
    early: int = 0
    """Model calls that came before anything was there to be recalled."""
    guarded: bool = False
    """True if what was alike had mostly been taught by too few users (`user=`)."""
    needs: str = ""
    """What a conversation takes to be recalled beside feedback of any kind."""
    remedy: str = "states are hardly ever alike; give a state_key that names the kind of case"
    """What would have more recalled."""
    nearest: float | None = None
    """The greatest similarity in [0, 1] at the others, where nothing was alike enough; None: not measured."""
    studied: int = 0
    """Texts that a critic has written: about a conversation, or about a group of them."""
    waiting: int = 0
    """Conversations with feedback that a critic has not studied yet."""
    when: str = "the agent's process studies them soon, and learn() at once"
    """Who studies them, and when."""
    lessons: int = 0
    """Lessons or notes that came of it and hold now."""
    alike: int = 0
    """Groups of conversations with equal rewards, which had nothing to compare."""
    unreadable: tuple[str, ...] = ()
    """Reasons for which no lesson came of a conversation or a group: the critic's replies could not be read, or it failed each time."""
    failure: str = ""
    """The last error of the critic's model, if it could not be asked; empty without one."""
    quarantined: int = 0
    """Conversations of which all, or a turn and what followed, is not learned until a person releases them."""
    held: int = 0
    """Of these, the ones with feedback."""
    idle: int = 0
    """Conversations with feedback in which the agent did nothing, as where its first model call failed; counted while none is rated."""
    notes: tuple[str, ...] = ()
    """Sentences of the method about itself."""
    rewards: tuple[float, ...] = ()
    """Of the rated stretches, in the order in which they were rated first; those that have words alone have none."""

    @property
    def failures_of_critic(self) -> list[str]:
        """The failures of the critic, a sentence each: that it could not be asked, and that its replies were of no use."""
        found = []
        if self.failure:
            waits = f"with {plural(self.waiting, 'conversation')} waiting"
            found.append(f"the critic could not be asked, {waits}: {self.failure}; {self.when}")
        if self.unreadable:
            tries = f"all of its tries at {len(self.unreadable)} of {self.studied} studied"
            found.append(f"the critic failed in {tries}, the last: {self.unreadable[-1]}")
        return found

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons for which less was learned than could be, a sentence each; empty if there is none."""
        found = []
        if self.idle:
            found.append(
                f"nothing is learned from {plural(self.idle, 'conversation')} with feedback: the agent did nothing there"
            )
        elif not self.rated and not self.held:
            found.append("no conversation has feedback: call feedback(thread_id, reward=...)")
        if self.quarantined:
            say_why = "all of it, or a turn and what followed; quarantine_reasons() says why, release(thread_id) lets one in"
            feedback = f", {self.held} of them with feedback" if self.held else ""
            found.append(f"nothing is learned from {plural(self.quarantined, 'conversation')}{feedback}: {say_why}")
        found += self.failures_of_critic
        if not self.failure and self.waiting and not self.studied:
            found.append(f"waiting for the critic: {self.waiting}; {self.when}")
        if self.alike:
            found.append(f"{plural(self.alike, 'group')} of conversations had equal rewards, and nothing to compare")
        is_written = self.lessons or not self.waiting  # else that keeps it from being recalled
        asked, found_some = self.consulted - self.early, self.recalled + self.unshown
        if self.studied and not self.lessons:
            found.append(
                f"the critic has kept no lesson of what it studied, {self.studied} in all, so that there is nothing to recall"
            )
        elif self.guarded:
            found.append("what was alike had mostly been taught by so few users that only they are shown it (user=)")
        elif is_written and self.rated and self.consulted >= FEW and not self.nearest and not found_some:
            why = f"is recalled: that takes {self.needs}" if self.needs else f"was alike: {self.remedy}"
            early = f"all {plural(self.consulted, 'model call')} came before there was anything to recall"
            found.append(f"nothing that was rated {why}" if asked else early)
        elif is_written and self.rated and (asked >= FEW or self.nearest) and found_some < LOW_SHARE * asked:
            near = f", where the nearest had similarity {self.nearest:.2f}" if self.nearest else ""
            calls = plural(asked, "model call") + " since there was something to recall" * bool(self.early)
            found.append(f"recalled in {found_some / asked:.0%} of {calls}: {self.remedy}{near}")
        return tuple(found)

    def __str__(self) -> str:
        counts = [
            plural(self.rated, "rated conversation"),
            f"{self.recalled} of {self.consulted} model calls of this process had something recalled",
        ]
        if len(self.rewards) >= 2 * FEW:
            first, newest = fmean(self.rewards[:FEW]), fmean(self.rewards[-FEW:])
            counts.insert(1, f"mean reward {first:.2f} of the first {FEW}, {newest:.2f} of the newest {FEW}")
        if self.studied or self.waiting:
            counts.insert(1, f"{self.studied} studied, {self.waiting} waiting, {plural(self.lessons, 'lesson')}")
        return "\n".join([f"{self.method}: {'; '.join(counts)}", *(f"  {one}" for one in (*self.notes, *self.problems))])
