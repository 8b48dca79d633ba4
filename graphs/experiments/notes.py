"""Lines below a table: what its numbers leave out, and what went wrong in finished runs without an error. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ...memory.display import short
from ...memory.errors import plural
from ...memory.records import Usage
from ...nodes.cached_model import Prices
from ...nodes.evaluate.judge import NO_REWARDS_REASON
from .measures import dollars
from .results import SeedResult, optimum_name, total_usage
from .tables import ResultTable

__all__ = []

Arms = Mapping[str, Sequence[SeedResult]]
"""Label of a method -> its finished runs."""


def table_notes(table: ResultTable, *, costs: bool = False) -> list[str]:
    """The lines about a table, with what each method cost if `costs`."""
    arms = table.runs
    lines = [*_exceeded(arms), *_bank_costs(arms), *_missing_rewards(arms)]
    lines += [*_empty_look_ups(arms), *_unusable_replies(arms), *_trainings(arms)]
    return lines + (_costs(arms, table.prices) if costs else [])


def unusable_warnings(arms: Arms) -> list[str]:
    """One line for each method at least half of whose replies could not be used: its scores are the server's and not its own."""
    return [
        f"{arm} could not use {usage.unreadable:,} of {usage.calls:,} replies{_causes(usage)}, so its scores say little about it; "
        "another model would do, or, where replies are cut off, more tokens for them (--max-tokens)"
        for arm, usage in _usages(arms)
        if usage.unreadable and usage.unreadable >= 0.5 * usage.calls
    ]


def _usages(arms: Arms) -> list[tuple[str, Usage]]:
    return [(arm, total_usage(runs)) for arm, runs in arms.items()]


def _causes(usage: Usage) -> str:
    """Why replies could not be used, as far as their server says so: ` (12 refused, 3 cut off)`."""
    counts = {"refused": usage.refused, "filtered": usage.filtered, "cut off": usage.cut_off}
    said = ", ".join(f"{count:,} {cause}" for cause, count in counts.items() if count)
    return said and f" ({said})"


def _exceeded(arms: Arms) -> list[str]:
    """One line on the row `walkthrough`, and one for each method that scored higher than that, or than an optimum."""
    name = optimum_name([run for runs in arms.values() for run in runs])
    lines = ["walkthrough: what a known way earns within the horizon; a higher score may be possible"] * (name != "optimum")
    for arm, runs in arms.items():
        if exceeded := sum(score > run.optimum + 1e-6 for run in runs for score in run.scores):
            lines.append(f"{arm}: {plural(exceeded, 'episode')} scored higher than the {name}, a regret of 0")
    return lines


def _bank_costs(arms: Arms) -> list[str]:
    """One line for each method that read a bank: what that cost, which the table leaves out."""
    return [
        f"{arm}: reading its bank before the first attempt took {usage.studied / len(arms[arm]):,.0f} tokens a seed, which the table leaves out"
        for arm, usage in _usages(arms)
        if usage.studied
    ]


def _missing_rewards(arms: Arms) -> list[str]:
    """One line for each method some of whose attempts have no reward, unless it has none by design."""
    lines = []
    for arm, runs in arms.items():
        whys = [why for run in runs for why in run.unjudged]
        missing = [why for why in whys if why is not None]
        if not missing or set(missing) == {NO_REWARDS_REASON}:
            continue
        (why, _), *others = Counter(why or "the environment could not read an action" for why in missing).most_common()
        more = f" (and {plural(len(others), 'other reason')})" if others else ""
        lines.append(f"{len(missing)} of {len(whys)} attempts of {arm} have no reward: {short(why, 200)}{more}")
    return lines


def _empty_look_ups(arms: Arms) -> list[str]:
    """One line for each method whose memory held nothing alike at some steps."""
    lines = []
    for arm, runs in arms.items():
        found = [run.look_ups for run in runs]
        if empty := sum(one.empty for one in found):
            nearest = max((one.nearest_miss for one in found if one.nearest_miss is not None), default=None)
            near = "" if nearest is None else f"; what was nearest there had a similarity of {nearest:.2f} at most"
            all_of_them = sum(one.steps for one in found)
            lines.append(
                f"{arm} found nothing alike in its memory at {empty:,} of {all_of_them:,} steps after the first episode{near}"
            )
    return lines


def _unusable_replies(arms: Arms) -> list[str]:
    """One line for each method with replies that could not be used, and how many steps were lost by it."""
    lines = []
    for arm, usage in _usages(arms):
        if (lost := usage.lost_steps) or usage.unreadable:
            done = f"; at {plural(lost, 'step')} no try gave one that could, and nothing was done" if lost else ""
            lines.append(f"{arm}: {usage.unreadable:,} of {usage.calls:,} replies could not be used{_causes(usage)}{done}")
    return lines


def _trainings(arms: Arms) -> list[str]:
    """One line for each method some of whose trainings learned nothing, and one for what trainings left out."""
    lines = []
    for arm, runs in arms.items():
        rows = [row for run in runs if run.work for row in run.work.trainings]
        for why, count in Counter(row["why"] for row in rows if row["why"]).most_common():
            lines.append(f"{arm}: {count} of {plural(len(rows), 'training')} learned nothing: {why}")
        if left_out := sum(row["left_out"] for row in rows):
            lines.append(f"{arm}: trainings left out {left_out} attempts without a return or steps too long")
    return lines


def _costs(arms: Arms, prices: Prices) -> list[str]:
    """One line for each method about what its calls cost, with what is in no finished episode."""
    lines = []
    for arm, runs in arms.items():
        usage = total_usage(runs)
        if not usage.calls:
            continue
        paid = [dollars(run, prices) for run in runs]
        price = "" if None in paid else f", ${sum(one for one in paid if one is not None):,.4g}"
        lost = sum(max(0, run.tokens - run.episode_tokens) for run in runs)
        unused = f"; {lost:,} of these tokens are in no finished episode" if lost else ""
        lines.append(
            f"{arm} cost {usage.calls:,} calls, {usage.input_tokens:,} tokens read, {usage.output_tokens:,} written{price}{unused}"
        )
    return lines
