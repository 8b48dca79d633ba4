"""CLaaS's learner on a Tinker service: hosted, or a server of one's own that speaks its API (`pip install tinker`).

    learner = TinkerLearner("Qwen/Qwen3-8B", folder, write, LoRA(rank=16), Objective(kind="reinforce"))

The service trains; here are the minibatches, the advantages and the importance weights. A version's folder has the adapter, fetched for
the engine, and in `learner.json` the address of the state on the service that learning goes on from (`tinker://…`), which is kept there
for `STATE_DAYS` days. TINKER_API_KEY is the key, TINKER_BASE_URL the address of another server than the hosted one.

Of the losses those map exactly that need log-probabilities of the reply's own tokens only. With w and A computed here and N tokens:

    reinforce, one update       importance_sampling, -(pi / q) a, with q = pi_old and a = w A / N. At pi = pi_old this has the gradient of
                                -w A log pi / N: of every correction, with and without the clip, which is not active there
    reinforce, more updates     ppo with the same q and a, the clip's bounds as they are set; not for `truncated`, whose w follows pi,
                                nor with a dual clip
    AdamW                       Tinker's, with betas of 0.9 and 0.999, epsilon 1e-8, decay and the longest gradient as they are set

The others are refused, and say why: `sdpo` and `mixed` compare whole distributions of two models, `ppo` has a critic, KL and entropy in
the loss need all logits. So do the gate's bounds on KL and entropy, and scaling a step back to them. Two steps from one state are equal
only as far as the service's arithmetic is.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import shutil
import tarfile
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...memory.claas.settings import LoRA, Objective
from ...memory.errors import UserError
from ...memory.records import Correction, Exchange, Measured, Minibatch, Update
from .calls import VersionError, scratch_folder
from .examples import ExampleReader, TrainingExample
from .learner import measure_staleness
from .losses import RewardMoments, compute_advantages, importance_weights
from .version_files import ADAPTER_FILE, CONFIG_FILE, NOTES_FILE

__all__ = ["TinkerLearner", "find_unmapped_setting"]

log = logging.getLogger(__name__)

STATE_DAYS = 90
"""Days that the service keeps the state behind a version; a rollback to an older one cannot be learned on from."""
EXPORT_SECONDS = 3600
"""Seconds that the service keeps the adapter for the download, the shortest time that it takes."""
MAX_CLIENTS = 3
"""Versions that are open on the service at a time."""
DOWNLOAD_TIMEOUT = 600.0
WAIT_SECONDS = 0.5
"""Seconds between two looks whether the learner was closed."""
FILE_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def find_unmapped_setting(objective: Objective, lora: LoRA) -> str:
    """The reason why a Tinker service cannot take these steps; empty: it can."""
    policy = objective.policy
    if objective.kind != "reinforce":
        why = {
            "ppo": "has a critic, and the service trains none",
            "sdpo": "compares the distributions of two models over many tokens; the service returns log-probabilities of the reply's own",
        }
        why["mixed"] = f"teaches words by sdpo, which {why['sdpo']}"
        return f"the loss {objective.kind!r} {why[objective.kind]}: --loss.kind reinforce learns from rewards"
    if objective.teacher.hint_weight > 0:
        return "hints need a teacher that reads the feedback: --loss.teacher.hint-weight 0"
    if objective.kl_weight > 0 or objective.entropy_weight > 0 or policy.reward_kl_weight > 0:
        return "KL and entropy in the loss need all logits: --loss.kl-weight, --loss.entropy-weight and --loss.policy.reward-kl-weight 0"
    if objective.updates_per_batch > 1 and (math.isfinite(policy.dual_clip) or objective.correction.kind == "truncated"):
        return (
            "several updates of a minibatch map to the service's clip with --loss.policy.dual-clip inf, and not to the correction "
            "'truncated'; or --loss.updates-per-batch 1"
        )
    if lora.alpha is not None or lora.targets != "all-linear":
        return "the service chooses alpha, and adapts all linear layers: no --lora.alpha, --lora.targets all-linear"
    return ""


@dataclass(frozen=True)
class _ServedModel:
    """The base model, which is not here: prompts come as the tokens that were served."""

    window: int = 1 << 31

    def _refuse(self, *_: Any) -> Any:
        raise UserError("a Tinker learner reads tokens as they were served, and has no tokenizer for texts")

    chat_ids = reply_ids = get_token_ids = _refuse


class TinkerLearner:
    """Gradient steps on a Tinker service. Calls run one at a time.

    Args:
        model: name of the base model on the service.
        folder: label -> its folder.
        write: (minibatch, finished folder, the step's statistics) -> label.
        lora: rank of the adapters.
        objective: loss, correction and optimizer.
        url: of the service; empty: TINKER_BASE_URL, or the hosted one.
        scratch: where folders are made; best on the versions' file system.

    Raises:
        UserError: the package or the key is missing, or the service cannot take such steps.
    """

    def __init__(
        self,
        model: str,
        folder: Callable[[str], Path],
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        lora: LoRA,
        objective: Objective,
        *,
        url: str = "",
        scratch: Path | None = None,
    ) -> None:
        if problem := find_unmapped_setting(objective, lora):
            raise UserError(f"a Tinker service cannot take these steps: {problem}")
        try:
            import tinker
        except ImportError as error:
            raise UserError("a Tinker learner needs the package tinker: pip install tinker") from error
        self._tinker: Any = tinker
        self.base = f"tinker:{model}"
        """Name of the base model. The service does not show its weights."""
        self._model, self._lora, self._objective = model, lora, objective
        self._folder, self._write, self._scratch = folder, write, scratch
        self._reader = ExampleReader(_ServedModel(), self.base, objective, "$feedback", 1 << 31)  # type: ignore[arg-type]
        self._url = url or os.environ.get("TINKER_BASE_URL", "")
        self._exports = True
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._open: OrderedDict[str, Any] = OrderedDict()  # training clients by version, and by seed for new adapters
        with self._errors("open a session"):
            key = os.environ.get("TINKER_API_KEY")  # None: the client looks where `tinker auth login` keeps it
            self._service = tinker.ServiceClient(base_url=url or None, api_key=key)
            self._rest = tinker.RestClient(base_url=url or None, api_key=key)
            self._wait(self._rest.get_server_capabilities())

    def correct(self, batch: Minibatch) -> Correction:
        """See `AdapterLearner.correct`."""
        examples, dropped = self._examples(batch)
        if not examples:
            return Correction((), tuple(dropped.items()))
        with self._lock, self._errors("compute log-probabilities"):
            old = self._logprobs(self._client(batch), examples)
        ids = [example.exchange.id for example in examples]
        return measure_staleness(ids, old, _behaviour(examples, old), dropped, self._objective)

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `AdapterLearner.step`."""
        if correction.max_kl < math.inf or correction.min_entropy_share > 0:
            raise RuntimeError("a Tinker learner cannot scale its steps back to the gate's bounds on KL and entropy; set none")
        began, objective, kept = perf_counter(), self._objective, set(correction.kept)
        examples = [example for example in self._examples(batch)[0] if example.exchange.id in kept]
        if not examples:
            return Update("", "nothing of the minibatch can be learned from")
        notes = self._notes(batch.parent)
        moments = {family: RewardMoments(*numbers) for family, numbers in notes.get("rewards", {}).items()}
        computed = compute_advantages(
            [example.reward for example in examples],
            [len(example.example.reply) for example in examples],
            objective,
            families=[example.exchange.family for example in examples],
            moments=moments if objective.policy.baseline == "family" else None,
        )
        if computed is None:
            return Update("", "all rewards are alike, and as they were to be expected: there is nothing to learn")
        updates = int(notes.get("updates", 0))
        warmup = min(1.0, (updates + 1) / objective.warmup_steps) if objective.warmup_steps else 1.0
        rate = objective.learning_rate * warmup * correction.scale
        with self._lock, self._errors("take a step"), scratch_folder(self._scratch) as out:
            client = self._client(batch)
            self._open.pop(_key(batch), None)  # from here on it is no longer the parent
            old = self._logprobs(client, examples)
            losses = self._update(client, examples, old, computed.advantages, rate)
            state = self._wait(client.save_state(_name(batch), ttl_seconds=STATE_DAYS * 86400, overwrite=True)).path
            client = self._export(client, batch, state, out)
            after = {family: list(astuple(one)) for family, one in sorted((dict(computed.moments) or moments).items())}
            about: dict[str, Any] = {
                "base": self.base,
                "lora": {"rank": self._lora.rank},
                "objective": asdict(objective),
                "batch": batch.id,
            }
            about |= {"parent": batch.parent, "seed": batch.seed, "step": batch.step, "updates": updates + 1, "rewards": after}
            (out / NOTES_FILE).write_text(
                json.dumps(about | {"tinker": state}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
            tokens = sum(len(example.example.reply) for example in examples)
            update = Update("", loss=losses[0], rate=rate, tokens=tokens, seconds=perf_counter() - began)
            statistics = {"rate": rate, "seconds": update.seconds, "losses": losses, "tokens": float(tokens)}
            label = self._write(batch, out, statistics)
            self._keep_open(label, client)
        return replace(update, version=label)

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """Log-probabilities of a version (empty: the base model) on the replies of exchanges. Entropy and KL are not measured: 0."""
        examples = [TrainingExample(exchange, self._reader.example(exchange), None, None) for exchange in exchanges]
        if not examples:
            return Measured((), ())
        with self._lock, self._errors("compute log-probabilities"):
            found = self._logprobs(self._version_client(label) if label else self._new_client(0), examples)
        sums = tuple(float(one.double().sum()) for one in found)
        return Measured(tuple(total / len(one) for total, one in zip(sums, found, strict=True)), sums)

    def close(self) -> None:
        """End the session. A call that is under way fails."""
        self._closed.set()
        self._service.close("success")

    def _wait(self, pending: Any) -> Any:
        """The result of a future of the client's. Those that are pending when its session ends would never have one."""
        future = pending.future()
        while not self._closed.is_set():
            if wait([future], WAIT_SECONDS).done:
                return future.result()
        raise OSError(errno.ECANCELED, "the learner is closed")

    # Parts of a step

    def _examples(self, batch: Minibatch) -> tuple[list[TrainingExample], dict[str, str]]:
        """As `ExampleReader.training_examples`, without replies at another temperature than 1."""
        found, dropped = self._reader.training_examples(batch)
        bent = [example for example in found if example.temperature != 1]
        for example in bent:
            why = f"was drawn at temperature {example.temperature:g}; the service computes log-probabilities at 1"
            dropped[example.exchange.id] = why
        return [example for example in found if example.temperature == 1], dropped

    def _update(
        self, client: Any, examples: Sequence[TrainingExample], old: Sequence[Tensor], advantages: Sequence[Tensor], rate: float
    ) -> list[float]:
        """The updates of a minibatch; their losses, per token."""
        objective, policy, types = self._objective, self._objective.policy, self._tinker.types
        total = sum(len(one) for one in advantages)
        behaviour = _behaviour(examples, old)
        data = []
        for example, now, then, advantage in zip(examples, old, behaviour, advantages, strict=True):
            share = importance_weights(now, then, objective.correction) * advantage / total  # (T,)
            data.append(self._datum(example, logprobs=now, advantages=share))
        loss, bounds = "importance_sampling", None
        if objective.updates_per_batch > 1:
            loss = "ppo"
            bounds = {"clip_low_threshold": 1 - policy.clip_low, "clip_high_threshold": 1 + policy.clip_high}
        optimizer = types.AdamParams(
            learning_rate=rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=objective.weight_decay,
            grad_clip_norm=objective.max_grad_norm,
        )
        losses = []
        for _ in range(objective.updates_per_batch):
            gradient, stepped = client.forward_backward(data, loss, bounds), client.optim_step(optimizer)
            losses.append(float(self._wait(gradient).metrics.get("loss:sum", math.nan)))
            self._wait(stepped)
        return losses

    def _logprobs(self, client: Any, examples: Sequence[TrainingExample]) -> list[Tensor]:
        """log pi of the replies' tokens, (T_i,) each."""
        data = [self._datum(example, weights=torch.ones(len(example.example.reply))) for example in examples]
        outputs = self._wait(client.forward(data, "cross_entropy")).loss_fn_outputs
        found = []
        for example, output in zip(examples, outputs, strict=True):
            values = torch.tensor(output["logprobs"].tolist(), dtype=torch.float32)  # (P + T - 1,)
            if len(values) != len(example.example) - 1 or not bool(torch.isfinite(values[-len(example.example.reply) :]).all()):
                raise OSError(
                    errno.EIO, f"the Tinker service returned {len(values)} log-probabilities, or some that are not finite"
                )
            found.append(values[-len(example.example.reply) :])
        return found

    def _datum(self, example: TrainingExample, **of_reply: Tensor) -> Any:
        """Prompt and reply as the service takes them: position i predicts token i + 1, values are 0 on the prompt."""
        tokens, size = [*example.example.prompt, *example.example.reply], len(example.example.reply)
        inputs: dict[str, Any] = {"target_tokens": tokens[1:]}
        for name, values in of_reply.items():
            inputs[name] = [0.0] * (len(tokens) - 1 - size) + values.tolist()
        return self._tinker.types.Datum(self._tinker.types.ModelInput.from_ints(tokens[:-1]), inputs)

    def _export(self, client: Any, batch: Minibatch, state: str, out: Path) -> Any:
        """Fetch the adapter into an empty folder, in PEFT's format; returns the client that goes on.

        Servers of one's own (SkyRL) may not have exports, but archives of what they sample with: that is found out once.
        """
        if self._exports:
            try:
                path = self._wait(client.save_weights_external(_name(batch), ttl_seconds=EXPORT_SECONDS)).path
            except self._tinker.NotFoundError:
                self._exports = False
                client = self._wait(self._service.create_training_client_from_state_with_optimizer(state))
        if self._exports:
            urls = self._wait(self._rest.get_external_weights_urls(path)).urls
            for name, url in urls.items():
                if not FILE_PATTERN.fullmatch(name) or not url.startswith(("http://", "https://")):
                    raise OSError(errno.EINVAL, f"the Tinker service exported a file {name!r}")
                with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as source, (out / name).open("wb") as file:
                    shutil.copyfileobj(source, file)
            with self._ignoring("delete an export"):
                self._wait(self._rest.delete_checkpoint_from_tinker_path(path))
        else:
            self._fetch_archive(self._wait(client.save_weights_for_sampler(_name(batch))).path, out)
        if not {CONFIG_FILE, ADAPTER_FILE} <= (found := {path.name for path in out.iterdir()}):
            raise OSError(
                errno.EIO, f"the Tinker service exported {sorted(found)}; an adapter has {CONFIG_FILE} and {ADAPTER_FILE}"
            )
        return client

    def _fetch_archive(self, path: str, out: Path) -> None:
        """Unpack the adapter of a state that a server samples with, `tinker://RUN/sampler_weights/NAME`, into a folder."""
        run, _, name = path.removeprefix("tinker://").split("/")
        url = f"{self._url.rstrip('/')}/api/v1/training_runs/{run}/checkpoints/{name}/archive"
        request = urllib.request.Request(url, headers={"X-API-Key": os.environ.get("TINKER_API_KEY", "")})
        with (
            urllib.request.urlopen(request, timeout=DOWNLOAD_TIMEOUT) as source,
            tarfile.open(fileobj=source, mode="r|*") as archive,
        ):
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in (CONFIG_FILE, ADAPTER_FILE):
                    file = archive.extractfile(member)
                    assert file is not None  # a plain file
                    with (out / name).open("wb") as copy:
                        shutil.copyfileobj(file, copy)
        with self._ignoring("delete an archive"):
            self._wait(self._rest.delete_checkpoint_from_tinker_path(path))

    # Versions on the service

    def _client(self, batch: Minibatch) -> Any:
        """The training client of a minibatch's parent."""
        return self._version_client(batch.parent) if batch.parent else self._new_client(batch.seed)

    def _version_client(self, label: str) -> Any:
        if label not in self._open:
            state = self._notes(label).get("tinker")
            if not state:
                raise VersionError(f"version {label} was not learned on a Tinker service; nothing can go on from it there")
            self._keep_open(label, self._wait(self._service.create_training_client_from_state_with_optimizer(state)))
        self._open.move_to_end(label)
        return self._open[label]

    def _new_client(self, seed: int) -> Any:
        """The training client of a new adapter, which answers as the base model does."""
        key = f"new {seed}"
        if key not in self._open:
            new = self._service.create_lora_training_client(
                self._model, rank=self._lora.rank, seed=seed % 2**31, train_unembed=False
            )
            self._keep_open(key, self._wait(new))
        return self._open[key]

    def _keep_open(self, key: str, client: Any) -> None:
        self._open[key] = client
        while len(self._open) > MAX_CLIENTS:
            self._open.popitem(last=False)

    def _notes(self, label: str) -> dict[str, Any]:
        """`learner.json` of a version; empty for the base model."""
        if not label:
            return {}
        try:
            notes: dict[str, Any] = json.loads((self._folder(label) / NOTES_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise VersionError(f"version {label}: {NOTES_FILE} cannot be read: {error}") from error
        if notes.get("base") != self.base:
            raise VersionError(f"version {label} is of another base model ({notes.get('base')}); this one is {self.base}")
        return notes

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """The client's errors: what the service says is wrong with a request is the minibatch's fault, all else the machine's."""
        try:
            yield
        except (UserError, OSError):
            raise
        except Exception as error:  # connections, futures that failed, answers that cannot be read
            self._open.clear()  # a client whose request failed takes no more
            log.warning("the Tinker service could not %s: %s", doing, error)
            category = getattr(error, "category", None)
            if category is not None and str(category) == "user":
                raise UserError(f"the Tinker service refuses to {doing}: {error}") from error
            raise OSError(errno.EIO, f"the Tinker service could not {doing}") from error

    @contextmanager
    def _ignoring(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            log.info("the Tinker service did not %s: %s", doing, error)


def _key(batch: Minibatch) -> str:
    return batch.parent or f"new {batch.seed}"


def _name(batch: Minibatch) -> str:
    """The name of a step's states on the service."""
    return f"{batch.tenant}-{batch.adapter}-{batch.step:06d}"


def _behaviour(examples: Sequence[TrainingExample], old: Sequence[Tensor]) -> list[Tensor]:
    """log mu of the replies; of those that were not drawn, log pi_old."""
    return [
        now if example.behaviour_logprobs is None else example.behaviour_logprobs
        for example, now in zip(examples, old, strict=True)
    ]
