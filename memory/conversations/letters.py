"""Letters as a reader sees them, whatever characters they are written with."""

import re
import unicodedata

__all__ = ["SPACED_DIGITS", "latin", "readable"]

_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]")
"""Characters that nobody sees, and that split words."""
SPACED_DIGITS = re.compile(r"(?<!\w)\d+(?: \d+)+(?!\w)")
"""A number that is told in groups."""
_LATIN = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0432\u043c\u043d\u0442\u043a\u03b1\u03bf\u03b5\u03c1\u03b9\u03ba\u03bd\u03c4"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcyxijsbmhtkaoepikvtABEKMHOPCTXIJSABEHIKMNOPTYX",
)
"""Cyrillic and Greek letters -> the Latin ones that they look like."""


def readable(text: str) -> str:
    """The text without characters that nobody sees, and with letters in one form."""
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text))


def latin(text: str) -> str:
    """The readable text with Latin letters in the place of those that look like them, as a mark in English is looked for in it."""
    return readable(text).translate(_LATIN)
