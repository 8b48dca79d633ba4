"""learngraph serve: what it refuses, and once through with the pocket model: chat, feedback, a version goes live, back again."""

import json
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import bench_serving
import httpx
import pytest
from claas_settings import changed
from forks import Python
from waiting import until, wait_until

from learngraph.graphs.claas import CLaaS, Objective
from learngraph.graphs.cli import main as cli
from learngraph.graphs.cli import serve as serve_cli
from learngraph.graphs.cli.flags import parse_options_and_settings
from learngraph.graphs.cli.serve import ServeOptions
from learngraph.graphs.cli.serve_options import HEADINGS
from learngraph.graphs.cli.serve_parts import ServeParts
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import LoRA, TeacherSettings
from learngraph.memory.errors import UserError
from learngraph.memory.records import ChatCall, ChatRequest, Exchange, Feedback, Sampling

pytest.importorskip("fastapi")


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli.main(["serve", *args]) == 2
    said = capsys.readouterr().err
    assert said.startswith("learngraph: ")
    assert len(said.splitlines()) == 1
    return said


@pytest.mark.slow
def test_nobody_is_served_without_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEARNGRAPH_API_KEY", raising=False)
    assert "--api-key KEY" in refused(capsys)
    assert "--no-auth lets every client in" in refused(capsys, "--no-auth", "--host", "0.0.0.0")
    assert "one or the other" in refused(capsys, "--no-auth", "--api-key", "k")


def test_all_that_is_cheap_to_find_wrong_is_said_at_once_and_nothing_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LEARNGRAPH_API_KEY", raising=False)
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "in"):
        said = refused(capsys, "--out", str(out), "--host", "127.0.0.1", "--port", "1", "--model", "local:none")
        assert "--api-key KEY" in said
        assert f"{tmp_path / 'file'} is a file; choose another folder" in said
    for wrong, told in (
        (["--learn", "icl"], "got 'icl'; did you mean icrl?"),
        (["--learn", "icrl", "--loss.kind", "ppo"], "have no effect with --learn"),
        (["--learn", "icrl", "--max-user-share", "0"], "--max-user-share is a share in (0, 1]"),
        (["--learn", "icrl", "--control", "2"], "--control one in [0, 1]; got 0.25 and 2"),
        (
            ["--model", "vllm:X", "--base-url", "http://h", "--learner", "off", "--retention-file", "x"],
            "needs the model in this process",
        ),
        (["--retention-file", str(tmp_path / "none")], f"cannot read {tmp_path / 'none'}: No such file or directory"),
        (["--retention-file", str(tmp_path / "file")], "holds no chats; expected one a line"),
    ):
        assert told in refused(capsys, *wrong, "--out", str(tmp_path / "new"), "--api-key", "k", "--port", "0")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "service.json").write_text('{"model": "openai:x", "base": "context:icrl"}')
    others = ["--learn", "adamem", "--out", str(tmp_path / "old"), "--api-key", "k", "--port", "0"]
    assert "was learned with --learn icrl, and this is --learn adamem; choose another --out" in refused(capsys, *others)
    (tmp_path / "old" / "service.json").unlink()
    (tmp_path / "old").rmdir()
    monkeypatch.setattr("os.access", lambda *asked: False)
    assert f"{tmp_path} may not be written" in refused(capsys, "--out", str(tmp_path / "new"), "--api-key", "k", "--port", "0")
    assert "--api-key KEY" in refused(capsys, "--out", str(tmp_path / "new"), "--port", "0")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_port_in_use_is_said_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refused(
            capsys, "--api-key", "k", "--port", port, "--model", "local:none"
        )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port", "70000"], "--port is from 0 to 65535"),
        (["--livez-port", "0"], "--livez-port is from 1 to 65535"),
        (["--model", "vllm:x"], "--base-url"),
        (["--model", "nope"], "pocket, guard, local:PATH_OR_NAME or vllm:MODEL"),
        (["--model", "openai:foo"], "the weights of openai:foo are not ours to train"),
        (["--base-url", "http://x/v1"], "--base-url"),
        (["--model", "vllm:x", "--base-url", "http://x/v1"], "--weights local:PATH_OR_NAME"),
        (["--model", "vllm:x", "--base-url", "http://x/v1", "--weights", "pocket", "--learner", "inline"], "it is another one"),
        (["--learner", "remote"], "process, inline, ray, ray://HOST:PORT or off"),
        (["--threads", "0"], "--threads is at least 1, got 0"),
        (["--max-body-bytes", "0"], "--max-body-bytes is at least 1"),
        (["--prompts", "/none"], "--prompts /none is no folder"),
        (["--engine-path", "/srv/x"], "it needs --model vllm:MODEL"),
        (["--replay.batch-size", "0"], "batch_size is at least 1"),
        (["--loss.kind", "sft"], "--loss.kind"),
        (["--preset", "nope"], "no preset 'nope'"),
        (["--bacth", "3"], "there is no --bacth"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    assert said in refused(capsys, "--api-key", "k", *args)


def test_keys_may_be_given_again_and_again() -> None:
    args = ["--api-key", "a", "--port", "1", "--api-key=b", "--gate.no-enabled"]
    options, settings = parse_options_and_settings(ServeOptions, CLaaS(), args, "learngraph serve", "", "")
    assert (options.api_key, options.port, settings.gate.enabled) == (("a", "b"), 1, False)


def test_any_key_will_do_where_none_is_asked_for() -> None:
    tenants = serve_cli.find_tenants(ServeOptions(no_auth=True))
    assert [tenants.log_in(key).name for key in ("whatever", None)] == ["default", "default"]
    assert tenants.names == ("default",)


def test_keys_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNGRAPH_API_KEY", "one,two")
    tenants = serve_cli.find_tenants(ServeOptions())
    assert tenants.log_in("two").name == "default"
    assert tenants.log_in("three") is None


def test_presets_set_other_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[ServeOptions, CLaaS]] = []

    async def served(options: ServeOptions, settings: CLaaS, tenants: Any) -> None:
        seen.append((options, settings))

    monkeypatch.setattr(serve_cli, "_serve", served)
    assert cli.main(["serve", "--api-key", "k", "--port", "0", "--preset", "paper", "--loss.learning-rate", "1e-5"]) == 0
    assert seen[-1][1] == changed(CLaaS.paper(), loss={"learning_rate": 1e-5})
    assert not logging.getLogger("learngraph.claas").isEnabledFor(logging.INFO)
    assert (
        cli.main(
            ["serve", "--api-key", "k", "--port", "0", "--prompts", ".", "--loss.kind", "ppo", "--rollout.canary-share", "0.1"]
        )
        == 0
    )
    assert seen[-1][1] == changed(CLaaS(loss=Objective(kind="ppo")), rollout={"canary_share": 0.1})
    assert logging.getLogger("learngraph.claas").isEnabledFor(logging.INFO), "the log says by which prompt feedback is read"


class Engine:
    base, window, features = "one", 64, frozenset[str]()
    stream = load = unload = vitals = loaded_versions = close = None


@pytest.mark.parametrize(
    ("learner", "nice", "rest"), [("process", 19, 2), ("process", 0, 0), ("inline", 19, 0), ("ray", 19, 0)]
)
async def test_a_learner_beside_the_replies_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learner: str, nice: int, rest: float
) -> None:
    monkeypatch.setattr(ServeParts, "open_engine", lambda parts: Engine())
    monkeypatch.setattr(ServeParts, "open_learner", lambda parts, engine: Engine())
    service = serve_cli.build_service(ServeOptions(out=tmp_path, learner=learner, learner_nice=nice), CLaaS())
    service.replay.close()
    assert service._learning is not None
    assert service._learning._rest == rest


async def test_a_folder_belongs_to_one_process_and_one_base_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServeParts, "open_engine", lambda parts: Engine())
    options = ServeOptions(out=tmp_path, learner="off")
    with Replay(tmp_path / "replay.sqlite"), pytest.raises(UserError, match=f"process {os.getpid()}|open in"):
        serve_cli.build_service(options, CLaaS())
    service = serve_cli.build_service(options, CLaaS(lora=LoRA(rank=4)))
    service.replay.close()
    assert json.loads((tmp_path / "service.json").read_text())["settings"]["lora"]["rank"] == 4
    monkeypatch.setattr(Engine, "base", "another")
    with pytest.raises(UserError, match=r"was learned on guard .base one., and guard is base another; choose another --out"):
        serve_cli.build_service(options, CLaaS())
    (tmp_path / "service.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        serve_cli.build_service(options, CLaaS())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder"):
        serve_cli.build_service(replace(options, out=tmp_path / "file"), CLaaS())
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(UserError, match="is the folder of learngraph run; choose another"):
        serve_cli.build_service(options, CLaaS())


# Once through, in another process


class Client:
    """The service at a URL, as a tenant sees it."""

    def __init__(self, url: str, key: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)

    def chat(self, text: str, seed: int) -> tuple[str, str, str]:
        """(id, reply, version)."""
        body = {"model": "pocket", "messages": [{"role": "user", "content": text}], "max_tokens": 6, "seed": seed}
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        return told["id"], told["choices"][0]["message"]["content"], answer.headers["x-policy-version"]

    def like(self, id: str, reward: float) -> None:
        body = {"response_id": id, "reward": reward, "text": "" if reward > 0 else "take something"}
        answer = self.http.post("/v1/feedback", json=body)
        assert answer.status_code == 202, answer.text

    def scope(self) -> Any:
        return self.http.get("/v1/status").json()["scopes"][0]

    def until(self, true: Callable[[Any], bool], seconds: float = 300.0) -> Any:
        wait_until(lambda: true(self.scope()), seconds)
        return self.scope()


@contextmanager
def serving(out: Path, *flags: str) -> Iterator[tuple[Client, Any]]:
    """A client of the service, and its process."""
    more = [
        "--loss.learning-rate",
        "3e-3",
        "--lora.rank",
        "4",
        "--rollout.max-lead",
        "100",
        *flags,
    ]  # feedback comes before steps
    with bench_serving.server("pocket", "process", out, more, Python) as (url, key, process):
        yield Client(url, key), process


@pytest.mark.slow
def test_chats_feedback_a_version_goes_live_and_back(tmp_path: Path) -> None:
    """Learned by a process beside, as it is if nothing else was asked for."""
    with serving(tmp_path / "out", "--replay.max-samplings", "2", "--learner-nice", "0") as (client, process):
        first = [client.chat("what now?", i) for i in range(10)]
        assert {version for *_, version in first} == {"base"}
        for id, *_ in first:
            client.like(id, -1.0)
        scope = client.until(lambda scope: bool(scope["live"]))
        assert scope["updates"][0]["step"] == 1
        client.until(lambda scope: scope["counts"].get("ready", 0) < 8 and not scope["counts"].get("leased"))
        live = client.scope()["live"]
        assert client.chat("what now?", 0)[1:] != first[0][1:]
        answer = client.http.post("/v1/adapters/default/rollback", json={"to": "base"})
        assert answer.status_code == 200, answer.text
        assert client.chat("what now?", 0)[1:] == first[0][1:]  # as if nothing had been learned
        answer = client.http.post("/v1/adapters/default/promote", json={"version": live})
        assert answer.json()["live"] == live
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


@pytest.mark.slow
def test_only_the_user_reads_what_is_kept(tmp_path: Path) -> None:
    """Chats of all tenants lie there: files of the service, and of an earlier one that were open to all."""
    out = tmp_path / "out"
    (out / "adapters/acme").mkdir(parents=True)
    (out / "replay.sqlite").touch()
    for path in (out, out / "adapters", out / "adapters/acme", out / "replay.sqlite"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    with serving(out, "--learner", "inline") as (client, _):
        client.like(client.chat("what now?", 0)[0], 1.0)
    modes = {path.relative_to(out): path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert len(modes) > 5
    assert {str(name): oct(mode) for name, mode in modes.items() if mode != (0o700 if (out / name).is_dir() else 0o600)} == {}


async def said(service: Service, id: str, seed: int) -> Exchange:
    request = ChatRequest(({"role": "user", "content": "what now?"},), Sampling(max_tokens=6, seed=seed))
    *_, exchange = [item async for item in service.chat(ChatCall(id, "acme", request))]
    assert isinstance(exchange, Exchange)
    return exchange


@pytest.mark.slow
async def test_one_network_answers_and_learns_in_turns(tmp_path: Path) -> None:
    """--trainer inline, and on again with what was learned."""
    options, settings = (
        ServeOptions(out=tmp_path, model="pocket", learner="inline"),
        changed(
            CLaaS(lora=LoRA(rank=4)),
            loss={"learning_rate": 3e-3, "teacher": TeacherSettings(rewrites=0)},
            replay={"max_samplings": 1},
        ),
    )
    async with serve_cli.build_service(options, settings) as service:
        first = [await said(service, f"first-{i}", i) for i in range(10)]
        for exchange in first:
            await service.feedback("acme", exchange.id, Feedback(-1.0, "take something"))
        await until(lambda: bool(service.version("acme", "default", "after")))
        live = service.versions("acme").current
        assert service.replay.updates("acme", "default", 9)[-1]["step"] == 1
        after = await said(service, "after", 0)
        assert after.reply.version == live
        assert after.reply.logprobs != first[0].reply.logprobs
    async with serve_cli.build_service(replace(options, learner="off"), settings) as service:
        again = await said(service, "again", 0)
        assert (again.reply.version, again.reply.logprobs) == (live, after.reply.logprobs)


def test_help_shows_the_first_options_and_help_all_every_one_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            serve_cli.serve([flag])
        assert end.value.code == 0
        printed = re.findall(r"^│ --(?:no-)?([\w.-]+)", capsys.readouterr().out, flags=re.MULTILINE)
        shown[flag] = [name.replace("-", "_") for name in printed]
    front, everything = (set(names) for names in shown.values())
    assert front == set(HEADINGS["options"])
    assert len(shown["--help-all"]) == len(everything)
    options = {field.name.removeprefix("no_") for field in fields(ServeOptions)}
    assert options | {"seed", "loss.kind", "loss.policy.step_share", "gate.max_kl"} <= everything
