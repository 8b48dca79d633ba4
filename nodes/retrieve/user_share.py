"""The share of one user in what memory shows to the others of his tenant."""

from collections import Counter
from collections.abc import Sequence

__all__ = ["are_enough", "within_share"]


def are_enough(users: Sequence[str], reader: str, share: float) -> bool:
    """True if what another user alone has taught is no more than a share of what is alike, each user counted once: with .25 it takes three
    beside his.

    Args:
        users: whose each alike conversation is; empty: nobody's, such as one that was imported, which counts by itself.
        reader: the user that they are shown to, each of whose own counts.
        share: in (0, 1].
    """
    free = sum(user in ("", reader) for user in users)
    return (len({*users} - {"", reader}) + free) * share >= 1


def within_share(users: Sequence[str], reader: str, share: float, most: int) -> list[int]:
    """The places of at most `most` recalled conversations, best first, of which no user but the reader holds more than a share.

    Args:
        users: whose each conversation is, best first; empty: nobody's, such as one that was imported, which always counts.
        reader: the user that they are shown to, whose own always count.
        share: of those that are shown, in (0, 1]; one of `most`, or of two, if that is more.
        most: the greatest number.
    """
    share = max(share, 1 / max(most, 2))
    for limit in range(max(int(share * most), 1), -1, -1):
        held, kept = Counter[str](), list[int]()
        for place, user in enumerate(users):
            is_free = user in ("", reader)
            if len(kept) < most and (is_free or held[user] < limit):
                kept.append(place)
                held[user] += not is_free
        if max(held.values(), default=0) <= share * len(kept):
            return kept
    raise AssertionError("with a limit of 0 nobody holds a share")
