"""The share of one user in what memory shows to the others of his tenant: what he alone has taught, he alone is shown."""

from collections import Counter
from collections.abc import Sequence

__all__ = ["within_share"]


def within_share(users: Sequence[str], reader: str, share: float, most: int, among: Sequence[str] | None = None) -> list[int]:
    """The places of at most `most` recalled conversations, best first, of which no user but the reader holds more than a share.

    Args:
        users: whose each conversation is, best first; empty: nobody's, such as one that was imported, which always counts.
        reader: the user that they are shown to, whose own always count.
        share: of those that are shown, in (0, 1]; one of `most`, or of two, if that is more.
        most: the greatest number.
        among: whose all alike conversations are, of which these were drawn. With a share of .25 another user's is shown where three of
            these are of others or the reader, however few are shown. None: it is shown among any number.
    """
    found = [] if among is None else among
    is_enough = among is None or (len({*found} - {"", reader}) + sum(user in ("", reader) for user in found)) * share >= 1
    share = max(share, 1 / max(most, 2))
    for limit in range(max(int(share * most), 1) if is_enough else 0, -1, -1):
        held, kept = Counter[str](), list[int]()
        for place, user in enumerate(users):
            is_free = user in ("", reader)
            if len(kept) < most and (is_free or held[user] < limit):
                kept.append(place)
                held[user] += not is_free
        if max(held.values(), default=0) <= share * len(kept):
            return kept
    raise AssertionError("with a limit of 0 nobody holds a share")
