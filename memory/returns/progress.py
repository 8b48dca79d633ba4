"""The steps of an episode that made progress, told by their rewards alone."""

from collections.abc import Sequence

__all__ = ["last_progress", "made_progress"]


def made_progress(rewards: Sequence[float | None]) -> list[bool]:
    """True for each step that lifts the running score to a new high by more than the episode's earlier steps earned on average.

    The new high: points that are given, taken back and given again are progress once. The average (0 before the first step): a
    constant that every step pays is no progress, so a constant added to all rewards changes nothing but perhaps the first step.
    A step without a reward (None) makes no progress that is known.
    """
    found, score, best, earlier = [], 0.0, 0.0, 0
    for reward in rewards:
        if reward is None:
            found.append(False)
            continue
        usual = score / earlier if earlier else 0.0
        score, earlier = score + reward, earlier + 1
        found.append(score > best + 1e-9 and reward > usual + 1e-9)
        if score > best:  # cheaper than max()
            best = score
    return found


def last_progress(rewards: Sequence[float | None]) -> int:
    """The number of steps up to and with the last one that made progress; 0 if none did."""
    return max((step + 1 for step, made in enumerate(made_progress(rewards)) if made), default=0)
