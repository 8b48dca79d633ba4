"""Work waits for a server that restarts, an agent's turn for a short time only."""

from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.storage import outages, postgres_store
from learngraph.memory.storage.open_store import open_agent_store, open_store
from learngraph.memory.storage.outages import RESTART_SECONDS, TURN_SECONDS, outlast


def test_work_is_begun_anew_while_its_error_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(outages.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(outages.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    errors: list[Exception] = [ConnectionError("away"), ConnectionError("away"), KeyError("other")]

    def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    def is_outage(error: Exception) -> bool:
        return isinstance(error, ConnectionError)

    with pytest.raises(KeyError, match="other"):
        outlast(work, is_outage, 1.0)
    assert outlast(work, is_outage, 1.0) == "done"
    errors += [ConnectionError("away")] * 10
    with pytest.raises(ConnectionError, match="away"):
        outlast(work, is_outage, 1.0)
    assert len(errors) == 3


def test_a_run_waits_for_a_restart_and_an_agent_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()
    monkeypatch.setattr(postgres_store, "PostgresMemory", lambda url, **given: waits.append(given["patience"]))
    for open_it in (open_store, open_agent_store):
        found: Any = open_it("postgresql://somewhere/memory")
        assert found is None
    assert waits == [RESTART_SECONDS, TURN_SECONDS]
    with pytest.raises(UserError, match="did you mean postgres://x/memory"):
        open_agent_store("postgres//x/memory")
    with pytest.raises(UserError, match="a Chroma server as http://host:port, or postgresql://user@host/database"):
        open_agent_store("postgre://x/memory")
