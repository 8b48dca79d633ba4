"""A library of lessons as pages that coding agents read: `SKILL.md` (Agent Skills) and a section of `AGENTS.md`.

The format of a skill is that of agentskills.io: a folder with the skill's name, and in it `SKILL.md`, which begins with YAML: `name`
(lower-case letters, digits and single hyphens, at most 64 characters), `description` (at most 1024: what it is and when to read it),
and `metadata` (texts by name). `AGENTS.md` (agents.md) is plain Markdown, so the lessons stand between two marks: what else a
person has written into the file stays.
"""

import re

from .library import Library, LibraryError

__all__ = ["agents_page", "skill_page"]

MAX_NAME, MAX_DESCRIPTION = 64, 1024
BEGIN, END = "<!-- learngraph lessons: begin -->", "<!-- learngraph lessons: end -->"


def skill_page(library: Library, name: str, description: str = "") -> str:
    """The text of a `SKILL.md`.

    Args:
        library: the lessons.
        name: the skill's name, which is its folder's, too.
        description: what the skill is and when to read it; from the lessons' tasks if not given.

    Raises:
        LibraryError: the name or the description does not fit the format, or there are no lessons.
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > MAX_NAME:
        raise LibraryError(
            f"a skill's name is up to {MAX_NAME} lower-case letters, digits and single hyphens, and its folder's name; got {name!r}"
        )
    lines = _lesson_lines(library)
    description = description or _default_description(library)
    if len(description) > MAX_DESCRIPTION:
        raise LibraryError(f"a skill's description has {MAX_DESCRIPTION} characters at most, got {len(description)}")
    head = {"name": name, "description": description, "metadata": {"lessons": str(len(library.lessons)), **_models(library)}}
    written = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=float("inf"))
    return f"---\n{written}---\n\n# {name.replace('-', ' ').capitalize()}\n\n{description}\n\n{lines}"


def agents_page(library: Library, before: str = "") -> str:
    """The text of an `AGENTS.md` with a section of lessons.

    Args:
        library: the lessons.
        before: the file's text so far. A section that an earlier export wrote is replaced; all else stays.

    Raises:
        LibraryError: there are no lessons, or only one of the two marks is in the file.
    """
    told = "".join(f"<!-- {name}: {value.replace('-->', '')} -->\n" for name, value in _models(library).items())
    section = f"{BEGIN}\n## Lessons learned\n\n{told}{_lesson_lines(library)}{END}\n"
    if (BEGIN in before) != (END in before):
        raise LibraryError(f"the page has only one of the two marks {BEGIN!r} and {END!r}; put both back, or delete both")
    if BEGIN not in before:
        return f"{before.rstrip()}\n\n{section}".lstrip() if before.strip() else section
    head, rest = before.split(BEGIN, 1)
    return f"{head}{section}{rest.split(END, 1)[1].removeprefix(chr(10))}"


def _lesson_lines(library: Library) -> str:
    if not library.lessons:
        raise LibraryError("the library has no lessons, so there is nothing to export")
    return library.text(with_ids=False)


def _default_description(library: Library) -> str:
    tasks = list(dict.fromkeys(line for lesson in library.lessons for line in lesson.instruction.splitlines()))
    such = f" on tasks such as: {tasks[0]:.300}" if tasks else ""
    return f"Lessons that an agent learned from its own attempts{such}. Read them before a task of this kind."


def _models(library: Library) -> dict[str, str]:
    known = {"written-by": library.written_by, "accept-test-passed-with": library.tested_with}
    return {name: value for name, value in known.items() if value}
