"""Passwords in the URLs of databases: what may be shown and written down."""

import pytest

from learngraph.memory.storage.postgres_store import error_text, without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("runs/a:b@c", "runs/a:b@c"),
        ("runs/a?", "runs/a?"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("postgresql://me@host/db?options=-csearch_path%3Dx", "postgresql://me@host/db?options=-csearch_path%3Dx"),
        ("postgresql://me:sesame@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgresql://me:ses@me@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?user=me&password=sesame", "postgresql://host/db?user=me"),
        ("postgresql://host/db?password=sesame", "postgresql://host/db"),
        ("postgresql://host/db?sslpassword=sesame&user=me", "postgresql://host/db?user=me"),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url", ["postgresql://me:ope%6e@ses/db", "postgresql://me:open@ses@host/db", "postgresql://host/db?password=open"]
)
def test_an_error_is_said_without_the_passwords(url: str) -> None:
    assert "open" not in error_text(ValueError("no host ses@host, and no login with open"), url)
