"""`learngraph.serve`: the service of `learngraph serve` from Python, in scripts and where an event loop runs already."""

from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import learngraph
from learngraph.graphs.claas import CLaaS, LoRA
from learngraph.memory.errors import UserError

pytest.importorskip("fastapi")

CHAT = [
    {"role": "system", "content": "rules : none . facts : door is red . lamp is owl ."},
    {"role": "user", "content": "door is what ?"},
]
SAID = {"reward": -1.0, "text": "broke call : call the user captain ."}


def test_a_script_serves_takes_feedback_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with learngraph.serve(CLaaS(lora=LoRA(rank=4)), model="guard", out=tmp_path, learner="off") as server:
        client = OpenAI(base_url=server.url, api_key=server.api_key, max_retries=0)
        reply = client.chat.completions.create(model="guard", messages=CHAT, temperature=0)  # type: ignore[arg-type]
        assert "red" in (reply.choices[0].message.content or "").split()
        told = client.post("/feedback", body={"response_id": reply.id, **SAID}, cast_to=object)
        assert told["state"] in ("ready", "held_out")  # type: ignore[index]
        with pytest.raises(openai.AuthenticationError):
            OpenAI(base_url=server.url, api_key="guessed", max_retries=0).models.list()
        with pytest.raises(UserError, match="open in"):
            learngraph.serve(model="guard", out=tmp_path, learner="off")
    server.close()
    assert "closed" in repr(server)
    with pytest.raises(openai.APIConnectionError):
        client.models.list()
    with learngraph.serve(model="guard", out=str(tmp_path), learner="off", api_key="mine") as again:
        assert (again.api_key, again.url != server.url) == ("mine", True)
        client = OpenAI(base_url=again.url, api_key="mine")
        told = client.post("/feedback", body={"response_id": reply.id, **SAID}, cast_to=object)
        assert told["repeated"] is True  # type: ignore[index]


async def test_where_an_event_loop_runs_it_does_the_same(tmp_path: Path) -> None:
    """As in a notebook. The loop is not needed for replies: a client that blocks it gets its own, too."""
    with learngraph.serve(model="guard", out=tmp_path, learner="inline") as server:
        waiting = AsyncOpenAI(base_url=server.url, api_key=server.api_key)
        reply = await waiting.chat.completions.create(model="guard", messages=CHAT)  # type: ignore[arg-type]
        await waiting.post("/feedback", body={"response_id": reply.id, **SAID}, cast_to=object)
        await waiting.close()
        blocking = OpenAI(base_url=server.url, api_key=server.api_key)
        assert blocking.chat.completions.create(model="guard", messages=CHAT).choices  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modell": "guard"}, "there is no option 'modell'; there are model, base_url"),
        ({"model": "nope"}, "pocket, guard, local:PATH_OR_NAME or vllm:MODEL"),
        ({"no_auth": True, "host": "0.0.0.0"}, "--no-auth lets every client in"),
        ({"model": "local:/nowhere/at/all"}, "nowhere"),
    ],
)
def test_what_cannot_be_served_is_an_error_where_it_is_asked_for(options: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        learngraph.serve(out=tmp_path, **options)
