"""Whose a key is, and how much a tenant may."""

import re
import threading
from pathlib import Path

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.serving.tenants import RateLimitExceeded, Tenant, TenantLimits, Tenants, read_tenants

DIGEST = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
"""Of `secret`."""


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def tenants(clock: Clock, **limits: float) -> tuple[Tenants, Tenant]:
    acme = Tenant("acme", TenantLimits(**limits))  # type: ignore[arg-type]
    return Tenants({"k": acme}, clock, clock), acme


def test_keys_and_their_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        f'acme: {{keys: [one, "{DIGEST}"], requests_per_minute: 60, tokens_per_day: 1000, streams: 5}}\n'
        "rival: {keys: [two]}\n"
        "prometheus: {keys: [three], metrics: true}\n"
    )
    found = read_tenants(["mine"], file)
    assert {key: who.name for key in ("mine", "one", "secret", "two", "three") if (who := found.tenant_for_key(key))} == {
        "mine": "default",
        "one": "acme",
        "secret": "acme",
        "two": "rival",
        "three": "prometheus",
    }
    acme = found.tenant_for_key("one")
    assert acme is not None
    assert acme.limits == TenantLimits(60, 1000, 5)
    for nobody in ("", "ONE", "one ", DIGEST, "é", "\ud800"):
        assert found.tenant_for_key(nobody) is None
    assert found.names == ("default", "acme", "rival")
    assert found.tenant_by_name("prometheus") is None
    assert found.tenant_by_name("rival") == Tenant("rival")


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
        ("acme: {keys: [x], streems: 1}", "'streems'; known are keys, metrics, requests_per_minute, tokens_per_day"),
        ("acme: {keys: [x], streams: 0}", "streams is a number above 0"),
        ("acme: {keys: [x], streams: 1.5}", "streams is a number above 0"),
        ("acme: {keys: [x], requests_per_minute: .nan}", "requests_per_minute is a number above 0"),
        ("acme: {keys: [x], tokens_per_day: true}", "tokens_per_day is a number above 0"),
        ("acme: {keys: [x], metrics: 1}", "metrics is true or false"),
        ("acme: {keys: [x]}\nrival: {keys: [x]}", "acme and rival have a key in common"),
        (f"acme: {{keys: [secret]}}\nrival: {{keys: ['{DIGEST}']}}", "acme and rival have a key in common"),
        ("acme: {keys: [x], metrics: true}", "no API key"),
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


def test_a_bucket_fills_steadily() -> None:
    clock = Clock()
    found, acme = tenants(clock, requests_per_minute=30)
    for _ in range(30):
        found.admit(acme)
    with pytest.raises(RateLimitExceeded) as many:
        found.admit(acme)
    assert many.value.retry_after == pytest.approx(2)
    clock.now += 2.01
    found.admit(acme)
    with pytest.raises(RateLimitExceeded):
        found.admit(acme)
    clock.now += 1e6
    for _ in range(30):
        found.admit(acme)
    with pytest.raises(RateLimitExceeded):
        found.admit(acme)


def test_less_than_one_request_a_minute() -> None:
    clock = Clock()
    found, acme = tenants(clock, requests_per_minute=0.5)
    found.admit(acme)
    with pytest.raises(RateLimitExceeded) as many:
        found.admit(acme)
    assert many.value.retry_after == pytest.approx(120)


def test_the_tokens_of_a_day_come_back_with_the_next() -> None:
    clock = Clock()
    found, acme = tenants(clock, tokens_per_day=100)
    with found.reserve_streams(acme):
        found.spend(acme, 150)
    with pytest.raises(RateLimitExceeded, match="all 100 tokens") as many, found.reserve_streams(acme):
        pass
    assert many.value.code == "insufficient_quota"
    assert many.value.retry_after == 86_400 - clock.now % 86_400
    clock.now += many.value.retry_after
    with found.reserve_streams(acme):
        assert found.usage(acme) == {"tokens_today": 0, "tokens_per_day": 100, "streams": 1, "streams_at_once": 256}


def test_replies_under_way_are_counted_and_let_go_of() -> None:
    found, acme = tenants(Clock(), streams=3)
    with found.reserve_streams(acme, 2):
        with pytest.raises(RateLimitExceeded, match="2 replies are being made and 2 more"), found.reserve_streams(acme, 2):
            pass
        with pytest.raises(ZeroDivisionError), found.reserve_streams(acme):
            raise ZeroDivisionError
        with found.reserve_streams(acme):
            assert found.usage(acme)["streams"] == 3
    assert found.usage(acme)["streams"] == 0


def test_many_threads_take_no_more_than_there_is() -> None:
    found, acme = tenants(Clock(), requests_per_minute=100)
    admitted = []

    def ask() -> None:
        for _ in range(50):
            try:
                found.admit(acme)
            except RateLimitExceeded:
                continue
            admitted.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 100
