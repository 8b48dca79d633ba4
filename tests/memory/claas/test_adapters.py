"""Versions of an adapter: named by contents, whole or not there, one live, back in a moment, and nothing outside their folder."""

import os
import resource
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.claas.adapters import Adapters, list_adapters, split_label
from learngraph.memory.errors import AdapterConflict, AdapterError, UnknownVersion

FILES = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "teacher.safetensors", "learner.json")


@pytest.fixture
def adapters(tmp_path: Path) -> Adapters:
    return Adapters(tmp_path / "root", "acme")


def opened(adapters: Adapters) -> Adapters:
    """The same versions, as another process reads them."""
    return Adapters(adapters.place.parents[1], "acme")


def made(place: Path, text: str = "x") -> Path:
    folder = place / "work"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(f"{name} {text}")
    return folder


def add(adapters: Adapters, step: int, parent: str = "", **more: Any) -> str:
    return adapters.write(made(adapters.place.parents[1], str(step)), step, parent, "base", **more)


def state(adapters: Adapters, label: str) -> str:
    return adapters.version(label).state


# -- writing


def test_a_version_is_named_by_its_contents(adapters: Adapters, tmp_path: Path) -> None:
    work = made(tmp_path)
    label = adapters.write(work, 17, "", "b1", {"loss": 0.5, "bad": float("nan"), "checks": ({"name": "kl"},)})
    assert label.startswith("acme/default@000017-")
    assert split_label(label) == ("acme", "default", label.split("@")[1])
    assert not work.exists()
    folder = adapters.folder(label)
    assert {path.name for path in folder.iterdir()} == {*FILES, "manifest.json"}
    version = adapters.version(label)
    assert (version.step, version.parent, version.base, version.state, version.tainted) == (17, "", "b1", "candidate", False)
    assert version.about == {"loss": 0.5, "bad": None, "checks": [{"name": "kl"}]}
    assert set(version.digests) == set(FILES)
    before = adapters.log()
    assert adapters.write(made(tmp_path), 17, "", "b1", {"loss": 9}) == label  # again: nothing changes
    assert (adapters.log(), adapters.version(label)) == (before, version)
    other = adapters.write(made(tmp_path, "y"), 17, label, "b1")
    assert other != label
    assert adapters.version(other).parent == label
    assert [each.label for each in adapters.versions()] == sorted([label, other], reverse=True)
    with pytest.raises(AdapterConflict, match="cannot have"):
        adapters.write(made(tmp_path), 17, "", "b2")


@pytest.mark.parametrize("wrong", ["linked", "link", "folder", "hidden", "space", "empty", "missing", "fifo"])
def test_a_folder_that_is_no_version_is_refused(adapters: Adapters, tmp_path: Path, wrong: str) -> None:
    work = made(tmp_path)
    if wrong == "link":
        (work / "more.json").symlink_to("/etc/passwd")
    elif wrong == "folder":
        (work / "more").mkdir()
    elif wrong == "hidden":
        (work / ".more").write_text("")
    elif wrong == "space":
        (work / "a b").write_text("")
    elif wrong == "fifo":
        os.mkfifo(work / "more")
    elif wrong == "empty":
        for path in work.iterdir():
            path.unlink()
    elif wrong == "linked":
        (tmp_path / "linked").symlink_to(work)
        work = tmp_path / "linked"
    else:
        work = tmp_path / "nowhere"
    with pytest.raises(AdapterError):
        adapters.write(work, 1, "", "base")
    assert adapters.versions() == []
    assert wrong == "missing" or work.exists()


# -- damage and tricks


@pytest.mark.parametrize("name", [name for name in FILES if name != "optimizer.safetensors"])
def test_a_changed_file_is_found_and_named(adapters: Adapters, name: str) -> None:
    label = add(adapters, 1)
    path = adapters.folder(label) / name
    path.write_text(path.read_text()[:-1] + "z")
    for look in (adapters, opened(adapters)):
        with pytest.raises(AdapterError, match=f"corrupt: .*{name} is not what was written; roll back"):
            look.folder(label)
        with pytest.raises(AdapterError, match=name):
            look.promote(label, "good")


def test_a_missing_an_added_and_a_linked_file_are_named(adapters: Adapters) -> None:
    label = add(adapters, 1)
    folder = adapters.folder(label)
    (folder / "extra.bin").write_text("")
    with pytest.raises(AdapterError, match=r"extra\.bin is too many"):
        adapters.folder(label)
    (folder / "extra.bin").unlink()
    adapters.folder(label)
    os.rename(folder / "learner.json", folder.parent / "elsewhere")
    with pytest.raises(AdapterError, match=r"learner\.json is missing"):
        adapters.folder(label)
    (folder / "learner.json").symlink_to(folder.parent / "elsewhere")
    with pytest.raises(AdapterError, match=r"learner\.json is no plain file"):
        adapters.folder(label)


@pytest.mark.parametrize("change", ['"base": "base"', '"loss": 0.5', "sha256"])
def test_a_changed_manifest_is_found(adapters: Adapters, change: str) -> None:
    label = add(adapters, 1, about={"loss": 0.5})
    path = adapters.folder(label) / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace(change, change.replace("b", "c").replace("5", "4").replace("256", "512")))
    assert path.read_text() != text
    fresh = opened(adapters)
    with pytest.raises(AdapterError, match=r"corrupt: .*manifest\.json"):
        fresh.folder(label)
    (found,) = fresh.versions()
    assert (found.state, "manifest.json" in found.about["error"]) == ("corrupt", True)


def test_the_same_contents_again_mend_a_damaged_version(adapters: Adapters) -> None:
    label = add(adapters, 1)
    (adapters.folder(label) / FILES[1]).write_text("garbage")
    assert add(adapters, 1) == label
    assert (adapters.folder(label) / FILES[1]).read_text() == f"{FILES[1]} 1"


LABEL = "acme/default@000001-3f9c2ab1d4e0"
NO_LABELS = (
    "base acme/default acme/default@ acme/default@1-abc acme/default@../../etc ../default@000001-3f9c2ab1d4e0 a@b@c"
    " acme/..@000001-3f9c2ab1d4e0 acme/default@000001-3F9C2AB1D4E0 acme//etc@000001-3f9c2ab1d4e0 ACME/d@000001-3f9c2ab1d4e0"
    " acme/default@\u0660\u0661\u0662\u0663\u0664\u0665-3f9c2ab1d4e0"
)


@pytest.mark.parametrize("label", ["", f"{LABEL}\n", f"{LABEL}/..", f"/{LABEL}", *NO_LABELS.split()])
def test_labels_that_are_none_never_become_paths(adapters: Adapters, label: str, tmp_path: Path) -> None:
    for use in (
        adapters.folder,
        adapters.version,
        adapters.delete,
        lambda label: adapters.promote(label, ""),
        lambda label: adapters.drop(label, ""),
        lambda label: adapters.make_canary(label, ""),
        lambda label: adapters.export(label, tmp_path),
    ):
        with pytest.raises(AdapterError):
            use(label)
    if label:
        with pytest.raises(AdapterError):
            adapters.write(made(tmp_path), 1, label, "base")
        with pytest.raises(AdapterError):
            adapters.roll_back(label)


@pytest.mark.parametrize(
    ("tenant", "adapter"), [("..", "d"), ("a", ".."), ("", "d"), ("a/b", "d"), ("A", "d"), ("a", "x" * 64), ("a\n", "d")]
)
def test_names_that_are_none_make_no_folder(tmp_path: Path, tenant: str, adapter: str) -> None:
    with pytest.raises(AdapterError, match="is no name"):
        Adapters(tmp_path / "root", tenant, adapter)
    assert list(tmp_path.iterdir()) == []


def test_links_in_the_way_are_refused(adapters: Adapters, tmp_path: Path) -> None:
    label = add(adapters, 1)
    folder = adapters.folder(label)
    os.rename(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AdapterError, match="symbolic link"):
        adapters.folder(label)
    (tmp_path / "root" / "zeta").symlink_to(tmp_path / "root" / "acme")
    with pytest.raises(AdapterError, match="symbolic link"):
        Adapters(tmp_path / "root", "zeta")
    assert list_adapters(tmp_path / "root") == [("acme", "default")]


def test_a_log_cut_short_loses_the_half_line_and_a_damaged_one_is_named(
    adapters: Adapters, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = add(adapters, 1), add(adapters, 2)
    adapters.promote(one, "good")
    log = adapters.place / "states.jsonl"
    text = log.read_text()
    log.write_text(text + '{"time": 1, "label": "' + two)
    again = opened(adapters)
    assert (again.current, log.read_text()) == (one, text)
    assert "half a line, or garbage, at its end" in caplog.text
    log.write_text(f"{text}garbage\n")
    again = opened(adapters)
    assert (again.current, again.has_lost_line, log.read_text()) == (one, True, text)
    log.write_text(text.replace('"state"', '"stale"', 1))
    with pytest.raises(AdapterError, match=r"corrupt: .*states\.jsonl, line 1"):
        opened(adapters)


# -- states


def test_from_candidate_to_live_and_back(adapters: Adapters) -> None:
    one, two, three = (add(adapters, i) for i in (1, 2, 3))
    assert (adapters.current, adapters.canary) == ("", "")
    adapters.make_canary(one, "gate passed", {"gate": [{"name": "kl", "value": 0.1}]})
    assert (adapters.canary, state(adapters, one), adapters.current) == (one, "canary", "")
    adapters.promote(one, "canary did well")
    assert (adapters.canary, state(adapters, one), adapters.current) == ("", "live", one)
    adapters.promote(two, "gate passed")
    assert (state(adapters, one), state(adapters, two)) == ("retired", "live")
    adapters.promote(three, "gate passed")
    assert adapters.roll_back(why="rewards fell") == two == adapters.current
    assert state(adapters, three) == "retired"
    assert adapters.roll_back() == one
    assert adapters.roll_back() == ""
    assert adapters.roll_back() == ""
    adapters.promote(three, "after all")
    assert adapters.roll_back(one) == one
    assert adapters.roll_back("") == adapters.current == ""
    assert adapters.version(one).about["gate"] == [{"name": "kl", "value": 0.1}]
    fell = next(line for line in adapters.log() if line["why"] == "rewards fell")
    assert (fell["state"], fell["label"], fell["was"]) == ("live", two, three)
    again = opened(adapters)
    assert (again.log(), again.versions()) == (adapters.log(), adapters.versions())


def test_changes_again_change_nothing(adapters: Adapters) -> None:
    one, two = add(adapters, 1), add(adapters, 2)
    for _ in range(2):
        adapters.make_canary(one, "")
    for _ in range(2):
        adapters.promote(one, "")
    for _ in range(2):
        adapters.drop(two, "")
    for _ in range(2):
        adapters.taint([two], "")
    assert [line["state"] for line in adapters.log()] == ["candidate", "candidate", "canary", "live", "dropped", "tainted"]


def test_what_must_not_become_live(adapters: Adapters) -> None:
    one, two, three = (add(adapters, i) for i in (1, 2, 3))
    adapters.drop(one, "gate failed")
    for use in (adapters.promote, adapters.make_canary):
        with pytest.raises(AdapterConflict, match="was dropped"):
            use(one, "")
    assert adapters.taint([two, "zeta/default@000001-3f9c2ab1d4e0"], "a record was deleted") == (two,)
    assert adapters.version(two).tainted
    for use in (adapters.promote, adapters.make_canary):
        with pytest.raises(AdapterConflict, match="a record that was deleted"):
            use(two, "")
    adapters.promote(three, "")
    for refused in (adapters.drop, adapters.make_canary):
        with pytest.raises(AdapterConflict, match="is live"):
            refused(three, "")
    with pytest.raises(AdapterConflict, match="roll back or drop it first"):
        adapters.delete(three)
    with pytest.raises(AdapterConflict, match="dropped"):
        adapters.roll_back(one)
    four = add(adapters, 4)
    with pytest.raises(AdapterConflict, match="never live"):
        adapters.roll_back(four)
    assert adapters.current == three


def test_roll_back_passes_over_what_is_no_good(adapters: Adapters) -> None:
    labels = [add(adapters, i) for i in range(1, 7)]
    for label in labels:
        adapters.promote(label, "")
    adapters.taint([labels[4]], "")
    adapters.drop(labels[3], "")
    adapters.delete(labels[2])
    (adapters.folder(labels[1]) / FILES[1]).write_text("garbage")
    assert adapters.roll_back() == labels[0]
    assert adapters.roll_back() == ""


def test_a_second_canary_takes_the_first_ones_place(adapters: Adapters) -> None:
    one, two = add(adapters, 1), add(adapters, 2)
    adapters.make_canary(one, "")
    adapters.make_canary(two, "")
    assert (adapters.canary, state(adapters, one)) == (two, "dropped")
    adapters.drop(two, "worse")
    assert adapters.canary == ""


# -- what goes


def test_prune_keeps_what_is_in_use(adapters: Adapters, tmp_path: Path) -> None:
    adapters.keep_versions = 2
    labels = [add(adapters, i) for i in range(1, 11)]
    adapters.promote(labels[1], "")
    adapters.promote(labels[2], "")
    adapters.make_canary(labels[3], "")
    gone = adapters.prune(protect=[labels[4], "", "zeta/default@000001-3f9c2ab1d4e0"])
    assert set(gone) == {labels[0], *labels[5:8]}
    assert {version.label for version in adapters.versions()} == {*labels[1:5], *labels[8:]}
    assert adapters.prune(protect=[labels[4]]) == ()
    with pytest.raises(UnknownVersion, match="it was deleted"):
        adapters.folder(labels[0])
    assert add(adapters, 1) == labels[0]  # made again
    assert state(adapters, labels[0]) == "candidate"
    assert adapters.roll_back() == labels[1]


def test_versions_that_failed_the_gate_push_out_none_that_were_live(adapters: Adapters) -> None:
    adapters.keep_versions = 4
    good = line(adapters, 6)
    for label in good:
        adapters.promote(label, "passed the gate")
    failed = []
    for step in range(7, 27):
        failed.append(add(adapters, step, good[-1]))
        adapters.drop(failed[-1], "kl")
        adapters.prune()
    kept = {version.label for version in adapters.versions()}
    assert kept == {*good[2:], *failed[-4:]}
    assert adapters.roll_back("") == ""  # to the base model, and there is still a way forward
    assert adapters.prune() == ()
    for label in reversed(good[2:]):
        adapters.promote(label, "by hand")
        assert adapters.current == label


def test_versions_of_deleted_feedback_push_out_none_that_can_answer(adapters: Adapters) -> None:
    adapters.keep_versions = 3
    labels = line(adapters, 9)
    for label in labels:
        adapters.promote(label, "")
    adapters.taint(labels[5:], "learned from a record that was deleted")
    assert set(adapters.prune()) == {labels[0], labels[1], labels[5]}
    assert adapters.roll_back() == labels[4]
    adapters.prune()
    assert [version.label for version in adapters.versions() if not version.tainted] == labels[4:1:-1]
    assert [adapters.roll_back() for _ in range(2)] == [labels[3], labels[2]]


def line(adapters: Adapters, count: int, start: int = 1, parent: str = "") -> list[str]:
    """Versions, each learned from the one before."""
    labels: list[str] = []
    for i in range(start, start + count):
        labels.append(add(adapters, i, labels[-1] if labels else parent))
    return labels


def test_parents_are_known_when_they_are_long_pruned(adapters: Adapters) -> None:
    adapters.keep_versions = 2
    labels = line(adapters, 12)
    adapters.promote(labels[3], "")
    assert len(adapters.prune()) == 9
    for each in (adapters, opened(adapters)):
        assert list(each.lineage(labels[-1])) == [*reversed(labels), ""]
        assert each.is_live_descendant(labels[-1])  # the versions between are gone, and none of them was withdrawn
        assert not each.is_live_descendant(labels[6]), "not there any more"
        assert not each.is_live_descendant("acme/default@000099-3f9c2ab1d4e0")
        assert not each.is_live_descendant("")


def test_what_follows_the_live_version(adapters: Adapters) -> None:
    adapters.keep_versions = 1
    labels = line(adapters, 6)
    assert all(adapters.is_live_descendant(label) for label in ["", *labels])
    adapters.promote(labels[2], "")
    assert [adapters.is_live_descendant(label) for label in labels] == [False, False, True, True, True, True]
    adapters.drop(labels[3], "gate failed")
    assert [adapters.is_live_descendant(label) for label in labels] == [False, False, True, False, False, False]
    adapters.prune()  # the dropped one is gone, and known to be dropped
    assert not adapters.is_live_descendant(labels[5])
    other = line(adapters, 2, 20, labels[2])
    adapters.promote(other[0], "")
    adapters.roll_back(labels[2], "worse")
    assert not adapters.is_live_descendant(other[1])
    assert adapters.is_live_descendant(labels[2])


def test_promoting_what_follows_is_one_step_with_the_look(adapters: Adapters) -> None:
    """A rollback between a look and the change was overridden."""
    one, two = line(adapters, 2)
    adapters.promote(one, "", require_descendant=True)
    assert adapters.is_live_descendant(two)
    adapters.roll_back("", "somebody did")
    for use in (adapters.promote, adapters.make_canary):
        with pytest.raises(AdapterConflict, match="withdrawn since"):
            use(two, "passed the gate", require_descendant=True)
    assert (adapters.current, adapters.canary, state(adapters, two)) == ("", "", "candidate")
    adapters.promote(two, "asked for")  # by hand it may
    assert adapters.current == two


def test_what_comes_of_a_tainted_live_version_is_marked_and_goes_live(adapters: Adapters) -> None:
    one, two, three = line(adapters, 3)
    (other,) = line(adapters, 1, 9)
    adapters.promote(one, "")
    adapters.taint([two, three], "a record was deleted")
    assert not adapters.is_live_descendant(two), "the live one did not learn from it"
    with pytest.raises(AdapterConflict, match="was deleted"):
        adapters.promote(two, "", require_descendant=True)
    adapters.taint([one, other], "another was")
    assert adapters.is_live_descendant(three)
    adapters.promote(three, "", require_descendant=True)
    assert adapters.version(adapters.current).tainted
    with pytest.raises(AdapterConflict, match="was deleted"):
        adapters.promote(other, "asked for")  # it has nothing to do with the live one
    assert adapters.roll_back(one) == one
    assert adapters.roll_back() == ""


def test_the_way_back_passes_over_what_is_gone(adapters: Adapters) -> None:
    adapters.keep_versions = 1
    labels = line(adapters, 6)
    for label in labels:
        adapters.promote(label, "")
    assert adapters.rollback_target(labels[3]) == labels[3]
    adapters.prune(protect=[labels[1]])
    assert adapters.rollback_target(labels[3]) == labels[1]
    assert adapters.rollback_target(labels[0]) == adapters.rollback_target("") == ""


def test_adapters_whose_names_begin_alike_never_touch_each_other(tmp_path: Path) -> None:
    """The reference removes `user10` with `user1`, and lists it under it."""
    root = tmp_path / "root"
    all_of = {
        scope: Adapters(root, *scope) for scope in [(t, a) for t in ("user", "user1", "user10") for a in ("a", "a-b", "a_b")]
    }
    for adapters in all_of.values():
        adapters.promote(add(adapters, 1), "")
    labels = {scope: adapters.current for scope, adapters in all_of.items()}
    assert len(set(labels.values())) == 9, "the same contents under nine labels"
    assert list_adapters(root) == sorted(all_of)
    removed = ("user1", "a")
    all_of.pop(removed).remove()
    assert list_adapters(root) == sorted(all_of)
    for scope, adapters in all_of.items():
        for opened in (adapters, Adapters(root, *scope)):
            assert opened.current == labels[scope]
            assert [version.label for version in opened.versions()] == [labels[scope]]
            assert opened.folder(labels[scope]).is_dir()
            assert opened.taint(list(labels.values()), "") == (labels[scope],)
            with pytest.raises(UnknownVersion):
                opened.folder(labels[removed])
            foreign = labels["user" if scope[0] == "user10" else "user10", scope[1]]  # the same contents, of another tenant
            for use in (opened.folder, opened.version, opened.delete, partial(opened.promote, why="")):
                with pytest.raises(UnknownVersion, match="has no version"):
                    use(foreign)


def test_export_holds_what_peft_opens_and_nothing_of_the_learner(adapters: Adapters, tmp_path: Path) -> None:
    label = add(adapters, 1)
    (tmp_path / "out").mkdir()
    path = adapters.export(label, tmp_path / "out")
    assert path.name == f"acme-default-{split_label(label)[2]}.zip"
    with zipfile.ZipFile(path) as file:
        assert sorted(file.namelist()) == ["adapter_config.json", "adapter_model.safetensors"]
        assert file.testzip() is None
        for name in FILES[:2]:
            assert file.read(name) == (adapters.folder(label) / name).read_bytes()
    again = adapters.export(label, tmp_path / "out" / "x.zip")
    assert again.read_bytes() == path.read_bytes()
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == sorted([path.name, "x.zip"])
    (adapters.folder(label) / FILES[1]).write_text("garbage")
    with pytest.raises(AdapterError, match="corrupt"):
        adapters.export(label, tmp_path / "out" / "y.zip")


# -- the optimizer's moments


def moments_of(adapters: Adapters) -> set[str]:
    """Labels of the versions that have moments still."""
    return {f"{adapters.scope}@{path.parent.name}" for path in adapters.place.glob("versions/*/optimizer.safetensors")}


def test_moments_are_kept_of_the_versions_that_a_step_may_start_from(adapters: Adapters) -> None:
    labels = [add(adapters, 1)]
    adapters.promote(labels[0], "better")
    for step in range(2, 7):  # candidates on the way to the next gate
        labels.append(add(adapters, step, labels[-1]))
        assert moments_of(adapters) == {labels[0], *labels[-2:]}
    adapters.make_canary(labels[-1], "passed")
    labels.append(add(adapters, 7, labels[0]))
    assert moments_of(adapters) == {labels[0], *labels[-2:]}
    for label in labels:  # whole without them
        adapters.folder(label)
    assert moments_of(opened(adapters)) == {labels[0], *labels[-2:]}


def test_lost_and_damaged_moments_harm_no_version(adapters: Adapters, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    label = add(adapters, 1)
    path = adapters.folder(label) / "optimizer.safetensors"
    path.write_bytes(b"")  # the machine went down
    assert Adapters(tmp_path / "root", "acme").folder(label) == path.parent
    assert not path.exists()
    assert "new moments" in caplog.text
    assert add(adapters, 1) == label  # the step again: they are there again
    assert path.read_text() == "optimizer.safetensors 1"
    (path.parent / "teacher.safetensors").unlink()
    with pytest.raises(AdapterError, match="missing"):
        adapters.folder(label)


# -- many, at once, and on a full disk


def test_a_full_disk_leaves_no_half_version(adapters: Adapters, tmp_path: Path) -> None:
    """A limit on a file's size stands for the full disk."""
    one = add(adapters, 1)
    adapters.promote(one, "good")
    work = made(tmp_path, "2")
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, kept[1]))
    try:
        with pytest.raises(AdapterError, match="what was there before is kept"):
            adapters.write(work, 2, one, "base")
        with pytest.raises(AdapterError, match="what was there before is kept"):
            adapters.roll_back()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    for look in (adapters, opened(adapters)):
        assert look.current == one
        assert [version.label for version in look.versions()] == [one]
        assert len(look.log()) == 2
    assert adapters.write(work, 2, one, "base") != one  # the folder is where it was
    assert adapters.roll_back() == ""


def test_several_take_turns(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            mine = Adapters(tmp_path / "root", "acme")
            for i in range(5):
                label = mine.write(made(tmp_path / f"{number}", f"{number} {i}"), i, "", "base")
                mine.promote(label, f"{number} {i}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    adapters = Adapters(tmp_path / "root", "acme")
    assert len(adapters.versions()) == 15
    lives = [line for line in adapters.log() if line["state"] == "live"]
    assert [line["was"] for line in lives] == ["", *(line["label"] for line in lives[:-1])]
    assert adapters.current == lives[-1]["label"]
