"""The store by which versions travel: whole or not at all, as they were written, and no more of them than the service has."""

from pathlib import Path

import pytest

from learngraph.memory.errors import UnknownVersion, UserError
from learngraph.tools.training.version_store import FetchedVersions, SharedVersions, VersionStore

ONE, TWO, OTHER = "acme/default@000001-aaaaaaaaaaaa", "acme/default@000002-bbbbbbbbbbbb", "acme/other@000001-cccccccccccc"


@pytest.fixture(params=["folder", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    return VersionStore(str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path.name}/adapters")


def version(tmp_path: Path, label: str) -> Path:
    folder = tmp_path / "out" / label
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(label.encode() * 1000)
    (folder / "learner.json").write_text("{}")
    return folder


def test_a_version_comes_out_as_it_was_put_in(store: VersionStore, tmp_path: Path) -> None:
    folder = version(tmp_path, ONE)
    assert ONE not in store
    store.put(ONE, folder)
    store.put(OTHER, folder)
    assert ONE in store
    assert store.labels("acme/default") == [ONE]
    assert store.labels("nobody/default") == []
    out = tmp_path / "fetched"
    out.mkdir()
    store.get(ONE, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {p.name: p.read_bytes() for p in folder.iterdir()}
    store.remove(ONE)
    store.remove(ONE)
    assert ONE not in store
    with pytest.raises(FileNotFoundError):
        store.get(ONE, out)


def test_half_a_copy_is_none_and_a_damaged_one_is_noticed(store: VersionStore, tmp_path: Path) -> None:
    store.put(ONE, version(tmp_path, ONE))
    place = f"{store._root}/{ONE}"
    store._files.pipe_file(f"{place}/adapter_model.safetensors", b"other weights")
    out = tmp_path / "fetched"
    out.mkdir()
    with pytest.raises(OSError, match=r"damaged: adapter_model.safetensors"):
        store.get(ONE, out)
    store._files.rm_file(f"{place}/files.json")  # whoever put it was killed before the end
    assert ONE not in store
    store.put(ONE, version(tmp_path, ONE))
    store.get(ONE, out)
    store._files.pipe_file(f"{place}/files.json", b'{"../../evil": {"bytes": 1, "sha256": ""}}')
    with pytest.raises(OSError, match=r"names a file '../../evil'"):
        store.get(ONE, out)


def test_a_label_is_no_way_out_of_the_store(store: VersionStore, tmp_path: Path) -> None:
    for label in ("../secret", "acme/../../x", "/etc/passwd", "", "acme//x", "acme/.hidden"):
        with pytest.raises(OSError, match="cannot be called"):
            store.put(label, tmp_path)


def test_the_store_has_what_is_published_and_loses_what_the_service_deleted(store: VersionStore, tmp_path: Path) -> None:
    there = {label: version(tmp_path, label) for label in (ONE, TWO, OTHER)}

    def folder(label: str) -> Path:
        if label not in there:
            raise UnknownVersion(f"there is no version {label}")
        return there[label]

    shared = SharedVersions(store, folder)
    for label in (ONE, OTHER):
        shared.publish(label)
    del there[ONE], there[OTHER]
    shared.publish(TWO)
    assert (store.labels("acme/default"), store.labels("acme/other")) == ([TWO], [OTHER])  # one adapter's at a time
    with pytest.raises(UnknownVersion):
        shared.publish(ONE)


def test_a_fetched_version_stays_for_a_while(store: VersionStore, tmp_path: Path) -> None:
    labels = [f"acme/default@00000{n}-aaaaaaaaaaaa" for n in range(1, 6)]
    fetched = FetchedVersions(store, tmp_path / "cache", most=2)
    for label in labels:
        store.put(label, version(tmp_path, label))
        assert (fetched.folder(label) / "learner.json").exists()
    store.remove(labels[-1])
    assert fetched.folder(labels[-1]).is_dir()
    assert len(list((tmp_path / "cache" / "acme").iterdir())) <= 3
    with pytest.raises(FileNotFoundError):
        FetchedVersions(store, tmp_path / "empty").folder(labels[-1])


def test_a_url_that_nothing_knows_is_said() -> None:
    with pytest.raises(UserError, match="--hand-over nosuch://x"):
        VersionStore("nosuch://x")
