"""Whose a key is, and how much a tenant may."""

import re
from pathlib import Path

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.serving.tenants import RateLimitExceeded, Tenant, TenantLimits, Tenants, read_tenants

DIGEST = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
"""Of `secret`."""


def test_keys_and_their_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        f'acme: {{keys: [one, "{DIGEST}"], streams: 5}}\nrival: {{keys: [two]}}\nprometheus: {{keys: [three], metrics: true}}\n'
    )
    found = read_tenants(["mine"], file)
    assert {key: who.name for key in ("mine", "one", "secret", "two", "three") if (who := found.log_in(key))} == {
        "mine": "default",
        "one": "acme",
        "secret": "acme",
        "two": "rival",
        "three": "prometheus",
    }
    acme = found.log_in("one")
    assert acme is not None
    assert acme.limits == TenantLimits(5)
    for nobody in ("", "ONE", "one ", DIGEST, "é", "\ud800"):
        assert found.log_in(nobody) is None
    assert found.names == ("default", "acme", "rival")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names tenants"),
        ("[]", "names tenants"),
        ("a: [", "not YAML (line 1"),
        ('a: {keys: [secret, "x}', "not YAML (line 1"),
        ("Acme: {keys: [x]}", "a tenant's name"),
        ("../x: {keys: [x]}", "a tenant's name"),
        ("1: {keys: [x]}", "a tenant's name"),
        ("acme: {}", "no list `keys`"),
        ("acme: {keys: []}", "no list `keys`"),
        ("acme: {keys: x}", "no list `keys`"),
        ("acme: {keys: [1]}", "got int"),
        ("acme: {keys: ['a b']}", "a text of 3 characters"),
        ("acme: {keys: ['sha256:xyz']}", "64 hex digits"),
        ("acme: {keys: [x], streems: 1}", "'streems'; known are keys, chat_keys, metrics, streams, adapters"),
        ("acme: {keys: [x], streams: 0}", "streams is a number above 0"),
        ("acme: {keys: [x], streams: 1.5}", "streams is a number above 0"),
        ("acme: {keys: [x], adapters: true}", "adapters is a number above 0"),
        ("acme: {keys: [x], metrics: 1}", "metrics is true or false"),
        ("acme: {keys: [x]}\nrival: {keys: [x]}", "acme and rival have a key in common"),
        (f"acme: {{keys: [secret]}}\nrival: {{keys: ['{DIGEST}']}}", "acme and rival have a key in common"),
        ("acme: {keys: [x], metrics: true}", "no API key"),
        ("acme: {keys: [x], chat_keys: y}", "acme: chat_keys is a list of keys, of a tenant that may chat, got a str"),
        ("acme: {keys: [x], chat_keys: [y], metrics: true}", "of a tenant that may chat"),
        ("acme: {keys: [x], chat_keys: [x]}", "a key stands in keys and in chat_keys"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(said)) as problem:
        read_tenants((), file)
    assert "secret" not in str(problem.value).replace("{keys: [secret]}", "")


def test_no_key_at_all_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no API key"):
        read_tenants()
    with pytest.raises(UserError, match="cannot read"):
        read_tenants((), tmp_path / "none.yaml")
    with pytest.raises(UserError, match="a text of 0 characters"):
        read_tenants([""])


def test_replies_under_way_are_counted_and_let_go_of() -> None:
    acme = Tenant("acme", TenantLimits(streams=3))
    found = Tenants({"k": acme})
    with found.reserve_streams(acme, 2):
        with pytest.raises(RateLimitExceeded, match="2 replies are being made and 2 more"), found.reserve_streams(acme, 2):
            pass
        with pytest.raises(ZeroDivisionError), found.reserve_streams(acme):
            raise ZeroDivisionError
        with found.reserve_streams(acme):
            assert found.usage(acme)["streams"] == 3
    assert found.usage(acme)["streams"] == 0


def test_keys_are_replaced_and_counts_stay() -> None:
    known = read_tenants(["old"])
    tenant = known.log_in("old")
    assert tenant is not None
    with known.reserve_streams(tenant):
        known.replace_keys(read_tenants(["new"]))
        found = known.log_in("new")
        assert known.log_in("old") is None
        assert found is not None
        assert known.usage(found)["streams"] == 1
