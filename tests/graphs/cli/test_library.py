"""`learngraph memory library show|diff|export|rollback`: what it says and does."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from learngraph.graphs.cli.library import library
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library, LibraryLimits
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Edit, Lesson

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command and return what it prints."""

    def run(*args: str | Path) -> str:
        assert library([str(arg) for arg in args]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with two versions."""
    folder = tmp_path / "run"
    versions = LibraryVersions(folder / "learned-s0" / "library.jsonl")
    versions.put("r/0", Library())
    edits = [
        Edit("add", text="Look before you leap: always", problems=("p1",)),
        Edit("add", text="Count twice"),
        Edit("delete", ("L7",)),
    ]
    new, rulings = versions.at("r/0").apply(edits, LibraryLimits(), len)
    versions.put("r/1", new, parent="r/0", why="step 0", rulings=rulings)
    versions.move("r/1")
    versions.close()
    return folder


def head(run: Path) -> str:
    return LibraryVersions.read(run / "learned-s0" / "library.jsonl").head


def test_show_tells_lessons_rulings_and_versions(run: Path, say: Say) -> None:
    told = say("show", run)
    assert told.startswith(
        "r/1 (holds), made from r/0: step 0\n[L0] Look before you leap: always\n     learned on p1; +0 -0, shown 0"
    )
    assert "2 of 3 accepted" in told
    assert "no  delete L7 : there is no lesson 'L7'; there are none" in told
    assert told.endswith("Versions:\n  r/0: 0 lessons\n  r/1: 2 lessons (holds)\n")
    assert say("show", run, "r/0").startswith("r/0\nno lessons\n")
    assert say("show", run / "learned-s0" / "library.jsonl") == told


def test_diff_is_with_the_version_before_unless_two_are_named(run: Path, say: Say) -> None:
    added = "+ [L0] Look before you leap: always\n+ [L1] Count twice\n"
    assert say("diff", run) == f"from r/0 to r/1:\n{added}"
    assert say("diff", run, "r/1", "r/0") == f"from r/1 to r/0:\n{added.replace('+', '-')}"
    assert say("diff", run, "r/1", "r/1") == "r/1 and r/1 are the same\n"


def test_a_person_exports_edits_and_rolls_back(run: Path, say: Say, tmp_path: Path) -> None:
    file = tmp_path / "mine" / "lessons.yaml"
    assert say("export", run, file) == f"r/1: 2 lessons written to {file}\n"
    file.write_text(file.read_text().replace("Look before you leap: always", "Look, then leap") + "- text: 'Use #1 first'\n")
    assert say("show", file).startswith("[L0] Look, then leap\n     learned on p1; +0 -0, shown 0 times\n[L1] Count twice")
    assert Library.from_yaml(file.read_text()).lesson("L2").text == "Use #1 first"
    assert say("rollback", run, "r/0").startswith("r/0 holds now, r/1 did before\n- [L0] Look before")
    assert head(run) == "r/0"
    say("export", run, file, "--version", "r/1")
    assert "always" in file.read_text()


def test_a_run_at_work_is_looked_at_and_not_written_to(run: Path, say: Say, tmp_path: Path) -> None:
    before = (run / "learned-s0" / "library.jsonl").read_bytes()
    with FileLock(run / "learned-s0" / "owner.lock"):
        say("show", run)
        say("export", run, tmp_path / "a.yaml")
        with pytest.raises(UserError, match="is being written to by a run"):
            library(["rollback", str(run), "r/0"])
    assert (run / "learned-s0" / "library.jsonl").read_bytes() == before
    say("rollback", run, "r/0")
    assert head(run) == "r/0"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", r"usage: learngraph memory library show PATH \[VERSION\] .*; got nothing"),
        ("list", "got list"),
        ("show", "learngraph memory library show needs PATH: A YAML file, a file of versions, or a run folder"),
        ("show {run} --all", "there is no --all"),
        ("show {run} r/0 r/1", "takes no further arguments, got r/1"),
        ("show /no/such", "there is no library at /no/such: give a YAML file, a file of versions"),
        ("show {run} r/9", "there is no version 'r/9'; there are r/0, r/1"),
        ("show {yaml} r/1", "is one library and has no version 'r/1'"),
        ("show {bad}", "bad.yaml: lesson 1 has no text"),
        ("show {two}", "learned-s0.*learned-s1.*name one of them"),
        ("diff {yaml}", "nothing to compare it with"),
        ("diff {run}/learned-s0/library.jsonl r/0 r/9", "there is no version 'r/9'"),
        ("export {run}", "needs FILE: The file to write"),
        ("export {run} x.txt", "whose name ends in .yaml"),
        ("export {run} x.yaml --version r/9", "there is no version 'r/9'"),
        ("export {run} x.yaml --verse r/9", "there is no --verse; did you mean --version."),
        ("export {yaml} x.yaml --version r/9", "has no version 'r/9'"),
        ("rollback {run} r/9", "there is no version 'r/9'"),
        ("rollback {yaml} r/0", "has no version 'r/0'"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    args: str, said: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    yaml, bad, two = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "two"
    yaml.write_text("- Look first\n")
    bad.write_text("- id: L1\n")
    for seed in ("learned-s0", "learned-s1"):
        LibraryVersions(two / seed / "library.jsonl").close()
    with pytest.raises(UserError, match=said):
        library(args.format(run=run, yaml=yaml, bad=bad, two=two).split())
    assert head(run) == "r/1"


def test_help(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("--help").startswith("usage: learngraph memory library show PATH [VERSION]")
    for args, usage in (("show --help", "show [-h] PATH [VERSION]"), ("export -h", "export [-h] PATH FILE")):
        with pytest.raises(SystemExit) as end:
            library(args.split())
        assert not end.value.code
        assert capsys.readouterr().out.startswith(f"usage: learngraph memory library {usage}")


# Pages for coding agents


def test_a_skill_is_in_the_form_that_agents_read(run: Path, say: Say, tmp_path: Path) -> None:
    file = tmp_path / "skills" / "order-tickets" / "SKILL.md"
    assert say("export", run, file) == f"r/1: 2 lessons written to {file}\n"
    empty, head, body = file.read_text().split("---\n")
    assert not empty
    described = yaml.safe_load(head)
    assert described["name"] == "order-tickets"
    assert described["description"].startswith("Lessons that an agent learned")
    assert described["metadata"] == {"lessons": "2"}
    assert body.endswith("- Look before you leap: always\n- Count twice\n")
    say("export", run, file, "--description", "How tickets: about orders are solved")
    assert yaml.safe_load(file.read_text().split("---\n")[1])["description"] == "How tickets: about orders are solved"
    with pytest.raises(UserError, match=r"lower-case letters, digits and single hyphens.*got 'My Skill'"):
        library(["export", str(run), str(tmp_path / "My Skill" / "SKILL.md")])
    with pytest.raises(UserError, match="1024 characters at most, got 2000"):
        library(["export", str(run), str(file), "--description", "x" * 2000])
    with pytest.raises(UserError, match="--description is of a skill"):
        library(["export", str(run), str(tmp_path / "a.yaml"), "--description", "x"])
    with pytest.raises(UserError, match="has no lessons"):
        library(["export", str(run), str(file), "--version", "r/0"])


def test_the_lessons_of_an_agents_page_are_replaced_and_all_else_stays(run: Path, say: Say, tmp_path: Path) -> None:
    file = tmp_path / "AGENTS.md"
    file.write_text("# Our project\n\nRun the tests.\n")
    say("export", run, file)
    once = file.read_text()
    assert once.startswith("# Our project\n\nRun the tests.\n\n<!-- learngraph lessons: begin -->\n## Lessons learned\n")
    file.write_text(once + "\nBe kind.\n")
    (tmp_path / "l.yaml").write_text("- Only this\n")
    say("export", tmp_path / "l.yaml", file)
    twice = file.read_text()
    assert "- Only this\n" in twice
    assert "Count twice" not in twice
    assert twice.startswith("# Our project")
    assert twice.endswith("Be kind.\n")
    say("export", tmp_path / "l.yaml", tmp_path / "new" / "AGENTS.md")
    assert (tmp_path / "new" / "AGENTS.md").read_text().startswith("<!-- learngraph")
    file.write_text(twice.replace("<!-- learngraph lessons: end -->", ""))
    with pytest.raises(UserError, match="only one of the two marks"):
        library(["export", str(run), str(file)])


def test_show_and_pages_say_which_models_the_lessons_are_of(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "l.yaml"
    file.write_text(Library((Lesson("L0", "Look first"),), written_by="org/a", tested_with="org/b").to_yaml())
    assert say("show", file).startswith("Written by org/a. The accept test was passed with org/b.\n[L0] Look first")
    page = tmp_path / "one-skill" / "SKILL.md"
    say("export", file, page)
    head = yaml.safe_load(page.read_text().split("---\n")[1])
    assert head["metadata"] == {"lessons": "1", "written-by": "org/a", "accept-test-passed-with": "org/b"}
    say("export", file, tmp_path / "AGENTS.md")
    assert "<!-- accept-test-passed-with: org/b -->" in (tmp_path / "AGENTS.md").read_text()
