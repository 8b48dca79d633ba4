"""The way to a Ray cluster: who is refused for his token is told so, and a start that takes too long is tried again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.tools.training.ray_cluster import START_TRIES, connect

ray = pytest.importorskip("ray")
grpc = pytest.importorskip("grpc")


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that answers each call as Ray's does where the token is missing or wrong; yields its address."""

    class Refuse(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, asked: Any) -> Any:
            def refuse(_: bytes, context: Any) -> None:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid or missing authentication token")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refuse()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"ray://127.0.0.1:{port}"
    server.stop(None)


def lost(**_: Any) -> None:
    raise ConnectionError("ray client connection timeout")  # all that Ray says, whatever the server answered


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "asks for a token, and there is none here: set RAY_AUTH_TOKEN"),
        ("x", "asks for another token: RAY_AUTH_TOKEN must be"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_said(
    token: str, said: str, refusing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "init", lost)
    for name, value in {"HOME": str(tmp_path), "RAY_AUTH_TOKEN": token, "RAY_AUTH_TOKEN_PATH": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"--learner {refusing}: the Ray cluster .* {said}"):
        connect(f"--learner {refusing}", refusing, 1)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("y")
    with pytest.raises(UserError, match="asks for another token"):
        connect("--learner", refusing, 1)


def test_where_nothing_answers_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lost)
    with pytest.raises(UserError, match=r"no Ray cluster answers .*; start one with 'ray start --head'"):
        connect("--learner", "ray://127.0.0.1:9", 1)


def test_a_cluster_of_this_machine_that_is_slow_to_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    tries = list[Any]()

    def slow(**options: Any) -> None:
        tries.append(options["num_cpus"])
        if len(tries) % START_TRIES:
            raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", slow)
    assert connect("--learner ray", "ray", 2) is ray
    assert tries == [2] * START_TRIES

    def never(**_: Any) -> None:
        raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", never)
    with pytest.raises(UserError, match=r"--learner ray: no Ray cluster starts on this machine .*timed out during startup"):
        connect("--learner ray", "ray", 2)
