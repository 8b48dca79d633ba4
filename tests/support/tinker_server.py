"""A server on 127.0.0.1 that mimics the Tinker API as the client of the package `tinker` 0.38 speaks it, and trains in this process.

with TinkerServer(model) as server:
    server.url       # for tinker.ServiceClient(base_url=…)
    server.requests  # (path, JSON body or the decoded protobuf) in order

Futures, sessions, protobuf bodies and answers are those of the client's own code. The losses are those of Tinker's documentation
(sums over the tokens), computed with torch on the network that it is given; new adapters start as those of our learner, by their seed.
"""

import copy
import io
import json
import math
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from app_in_thread import AppInThread
from tinker.proto import tinker_public_pb2 as pb

from learngraph.memory.claas.settings import LoRA
from learngraph.tools.training.learner import _clone_sharing_weights
from learngraph.tools.training.lora import attach_lora, lora_parameters, write_adapter

KEY = "tml-secret"


class TinkerServer(AppInThread):
    """`fails`: error category of the next gradient's future (`user`, `server`); `waits`: answers of "try again" before each result."""

    def __init__(self, model: Any, rank: int = 4) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.fails = ""
        self.waits = 0
        self.exports_more: dict[str, bytes] = {}
        """Files of an export besides the adapter's."""
        self.has_exports = True
        """False: as SkyRL's server, which has archives of what it samples with."""
        self._network = _clone_sharing_weights(model.network)
        self._wrapper = attach_lora(self._network, LoRA(rank=rank))
        live = lora_parameters(self._network)
        self._weights = {name: live[name] for name in sorted(live)}
        self._models: dict[str, dict[str, Any]] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self._exports: dict[str, dict[str, bytes]] = {}
        self._futures: dict[str, Any] = {}
        self._polls: dict[str, int] = {}
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str) -> list[Any]:
        return [body for at, body in self.requests if at == f"/api/v1/{path}"]

    # The wire

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/files/{id}/{name}", self._file)
        app.router.add_route("*", "/api/v1/{path:.*}", self._answer)
        return app

    async def _file(self, request: web.Request) -> web.Response:
        return web.Response(body=self._exports[request.match_info["id"]][request.match_info["name"]])

    async def _answer(self, request: web.Request) -> web.Response:
        path, raw = request.match_info["path"], await request.read()
        if request.headers.get("x-api-key") != KEY:
            return web.json_response({"detail": "wrong key"}, status=401)
        if request.content_type == "application/x-protobuf":
            body: Any = pb.ForwardBackwardRequest()
            body.ParseFromString(raw)
        else:
            body = json.loads(raw) if raw else {}
        self.requests.append((request.path, body))
        if path == "retrieve_future":
            return self._retrieve(body["request_id"])
        if path.endswith("/external_weights_urls"):
            id = path.split("/")[-2]
            urls = {name: f"{self.url}/files/{id}/{name}" for name in self._exports[id]}
            return web.json_response({"urls": urls, "expires": "2100-01-01T00:00:00Z"})
        if path.endswith("/archive"):
            raise web.HTTPFound(f"/api/v1/{path.removesuffix('archive')}download")
        if path.endswith("/download"):
            return web.Response(body=_archive(self._exports[path.split("/")[-2]]), content_type="application/octet-stream")
        if path == "save_weights_external" and not self.has_exports:
            return web.json_response({"detail": "Not Found"}, status=404)
        work: Callable[[Any], Any] | None = getattr(self, f"_{path}", None)
        if work is None:  # configuration, heartbeats, telemetry: nothing depends on them
            return web.json_response({"status": "accepted"})
        answer = work(body)
        if path in ("create_session", "get_info", "get_server_capabilities"):
            return web.json_response(answer)
        id = f"future-{len(self._futures)}"
        self._futures[id] = answer
        return web.json_response({"request_id": id})

    def _retrieve(self, id: str) -> web.Response:
        self._polls[id] = self._polls.get(id, 0) + 1
        if self._polls[id] <= self.waits:
            return web.json_response({"type": "try_again", "request_id": id, "queue_state": "active"})
        answer = self._futures[id]
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/x-protobuf")
        return web.json_response(answer)

    # Calls

    def _create_session(self, body: Any) -> Any:
        return {"session_id": "session", "type": "create_session"}

    def _get_server_capabilities(self, body: Any) -> Any:
        return {"supported_models": [{"model_name": "pocket"}]}

    def _create_model(self, body: Any) -> Any:
        generator, tensors = torch.Generator().manual_seed(body["lora_config"]["seed"]), {}
        for name, like in self._weights.items():
            bound = 1 / math.sqrt(like.shape[1])
            drawn = torch.rand(like.shape, generator=generator) * 2 * bound - bound
            tensors[name] = drawn if "lora_A" in name else torch.zeros(like.shape)
        return self._new({"tensors": tensors, "optimizer": None}, body["model_seq_id"], "create_model")

    def _load_weights(self, body: Any) -> Any:
        assert body["optimizer"]
        return self._new(self._states[body["path"]], body["model_seq_id"], "load_weights")

    def _new(self, state: dict[str, Any], number: int, kind: str) -> Any:
        id = f"session:train:{number}"
        self._models[id] = dict(state)
        return {"model_id": id, "type": kind}

    def _get_info(self, body: Any) -> Any:
        return {"model_id": body["model_id"], "model_data": {"model_name": "pocket"}, "is_lora": True}

    def _copy(self, id: str) -> None:
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(self._models[id]["tensors"][name])
                weight.grad = self._models[id].get("grads", {}).get(name)

    def _forward_backward(self, body: Any) -> Any:
        if self.fails:
            category, self.fails = self.fails, ""
            return {"error": "it went wrong", "category": category}
        self._copy(body.model_id)
        bounds = dict(body.loss_fn_config)
        logprobs, total = [], torch.zeros(())
        with torch.set_grad_enabled(not body.forward_only):
            for datum in body.data:
                tokens = np.concatenate([np.frombuffer(c.encoded_text.tokens, np.int32) for c in datum.model_input])
                given = {name: _tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()}
                logits = self._network(input_ids=torch.tensor(tokens.astype(np.int64))[None]).logits[0].float()
                logp = logits.log_softmax(-1).gather(1, given["target_tokens"][:, None])[:, 0]
                total = total + _loss(body.loss_fn, logp, given, bounds)
                logprobs.append(logp.detach())
            if not body.forward_only:
                total.backward()  # type: ignore[no-untyped-call]
                self._models[body.model_id]["grads"] = {name: weight.grad.clone() for name, weight in self._weights.items()}
        answer = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": float(total.detach())})
        record = answer.loss_fn_outputs.add(num_datums=len(logprobs))
        values = torch.cat(logprobs).numpy()
        offsets = np.cumsum([0, *(4 * len(one) for one in logprobs)]).astype(np.int64)
        record.fields["logprobs"].CopyFrom(
            pb.BatchedTensor(data=values.tobytes(), offsets=offsets.tobytes(), dtype=pb.DTYPE_FLOAT32)
        )
        return answer.SerializeToString()

    def _optim_step(self, body: Any) -> Any:
        wanted, state = body["adam_params"], self._models[body["model_id"]]
        self._copy(body["model_id"])
        optimizer = torch.optim.AdamW(
            list(self._weights.values()),
            lr=wanted["learning_rate"],
            betas=(wanted["beta1"], wanted["beta2"]),
            eps=wanted["eps"],
            weight_decay=wanted["weight_decay"],
        )
        if state["optimizer"] is not None:
            lr = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": copy.deepcopy(state["optimizer"]), "param_groups": lr})  # it keeps the tensors
        torch.nn.utils.clip_grad_norm_(list(self._weights.values()), wanted["grad_clip_norm"] or math.inf)
        optimizer.step()
        moments = {
            key: {name: value.clone() for name, value in each.items()} for key, each in optimizer.state_dict()["state"].items()
        }
        tensors = {name: weight.detach().clone() for name, weight in self._weights.items()}
        state |= {"tensors": tensors, "optimizer": moments, "grads": {}}
        return {"type": "optim_step"}

    def _save_weights(self, body: Any) -> Any:
        path = f"tinker://{body['model_id'].replace(':', '-')}/weights/{body['path']}"
        self._states[path] = dict(self._models[body["model_id"]])
        return {"path": path, "type": "save_weights"}

    def _save_weights_external(self, body: Any) -> Any:
        self._copy(body["model_id"])
        with tempfile.TemporaryDirectory() as folder:
            write_adapter(self._wrapper, Path(folder), None)
            found = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        self._exports[body["path"]] = found | self.exports_more
        return {"path": f"tinker://run/external_weights/{body['path']}", "type": "save_weights_external"}

    def _save_weights_for_sampler(self, body: Any) -> Any:
        self._save_weights_external(body)
        return {"path": f"tinker://run/sampler_weights/{body['path']}", "type": "save_weights_for_sampler"}


def _archive(files: dict[str, bytes]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return found.getvalue()


def _tensor(message: Any) -> torch.Tensor:
    kind = np.int64 if message.dtype == pb.DTYPE_INT64 else np.float32
    return torch.from_numpy(np.frombuffer(message.dense, kind).copy())


def _loss(name: str, logp: torch.Tensor, given: dict[str, torch.Tensor], bounds: dict[str, float]) -> torch.Tensor:
    """A loss as Tinker documents it: a sum over the tokens."""
    if name == "cross_entropy":
        return -(logp * given["weights"]).sum()
    ratio = (logp - given["logprobs"]).exp()
    if name == "importance_sampling":
        return -(ratio * given["advantages"]).sum()
    assert name == "ppo"
    clipped = ratio.clamp(bounds["clip_low_threshold"], bounds["clip_high_threshold"])
    return -torch.minimum(ratio * given["advantages"], clipped * given["advantages"]).sum()
