"""A real vLLM server on the CPU, for tests and benchmarks: `make vllm` installs it in an environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from pathlib import Path

from ports import free_port
from waiting import has_ended, wait_until

PYTHON = Path(os.environ.get("VLLM_PYTHON") or Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python")
"""The Python that has vLLM; VLLM_PYTHON names another one."""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}
FLAGS = (
    *("--enable-lora", "--max-lora-rank", "16", "--max-loras", "4", "--max-cpu-loras", "4", "--dtype", "float32"),
    "--no-enable-chunked-prefill",  # else a request with a seed, read in parts, ends the engine on the CPU
    *("--enforce-eager", "--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
START_SECONDS = 300.0


class RealVllm:
    """A server of a model's folder, which it calls `name`; `folder` takes its log."""

    def __init__(self, model: str, name: str, folder: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.log = folder / "vllm.log"
        self._command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--model", model, "--served-model-name", name, *FLAGS, *flags]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("a") as log:
            process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=os.environ | ENVIRONMENT, cwd=self.log.parent, start_new_session=True
            )
        self.process = process

        def answers() -> bool:
            assert process.poll() is None, self.log.read_text()[-5000:]
            try:
                with urllib.request.urlopen(self.url.removesuffix("/v1") + "/health", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(answers, START_SECONDS)

    def kill(self) -> None:
        """End it as kill -9 does, with the process of its engine."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            wait_until(lambda: has_ended(self.process.pid))  # type: ignore[union-attr]
            self.process = None

    def __enter__(self) -> RealVllm:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
