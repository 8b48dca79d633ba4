"""compose.yaml: its commands are ones that our command line has, its addresses and volumes fit together, and nothing internal is public."""

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from learngraph.graphs.claas import CLaaS
from learngraph.graphs.cli.flags import parse_options_and_settings
from learngraph.graphs.cli.serve_options import ServeOptions
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.jitrl import JitRL

ROOT = Path(__file__).parents[3]
GIVEN = {"LEARNGRAPH_API_KEY": "a", "VLLM_API_KEY": "c", "POSTGRES_PASSWORD": "d", "RAY_AUTH_TOKEN": "e"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    text = (ROOT / "graphs/serving/compose.yaml").read_text(encoding="utf-8")

    def value(found: re.Match[str]) -> str:
        """A variable as Compose puts it in: required ones must be among those that the file's head exports."""
        name, operator, default = found.groups()
        return GIVEN[name] if operator == ":?" else default

    filled: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", value, text))
    assert "$" not in str({name: one.get("command") for name, one in filled["services"].items()})
    for name, one in filled["services"].items():
        for volume in one.get("volumes", []):
            assert volume.split(":")[0] in filled["volumes"], name
    exported = set(re.findall(r"(\w+)=…", text))
    assert exported == set(GIVEN)
    services: dict[str, Any] = filled["services"]
    return services


@pytest.fixture(scope="module")
def service(services: dict[str, Any]) -> ServeOptions:
    command, *args = services["service"]["command"]
    assert command == "serve"
    return parse_options_and_settings(ServeOptions, CLaaS(), args, "learngraph serve", "", "")[0]


def mounted(services: dict[str, Any], name: str, folder: str) -> str:
    """The volume that a service has at a folder, or next above it."""
    places = {volume.split(":")[1]: volume.split(":")[0] for volume in services[name]["volumes"]}
    return places[max((place for place in places if f"{folder}/".startswith(place + "/")), key=len)]


def test_service_learner_and_vllm_find_each_other(services: dict[str, Any], service: ServeOptions) -> None:
    base, vllm, ray = urlsplit(str(service.base_url)), services["vllm"]["command"], services["ray"]
    assert base.hostname == "vllm"
    assert f"--port={base.port}" in vllm
    assert service.model == f"vllm:{vllm[0]}"
    there = urlsplit(service.learner)
    assert (there.scheme, there.hostname) == ("ray", "ray")
    assert (ray["entrypoint"], ray["command"][0]) == (["ray", "start"], "--head")
    assert f"--ray-client-server-port={there.port}" in ray["command"]
    tokens = [{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "e"}] * 2
    assert [
        {n: v for n, v in services[one]["environment"].items() if n.startswith("RAY")} for one in ("service", "ray")
    ] == tokens
    assert services["service"]["depends_on"]["ray"] == {"condition": "service_healthy"}
    assert service.device == "cuda"
    assert {mounted(services, name, f"{service.out}/adapters") for name in ("service", "vllm")} == {"adapters"}
    assert mounted(services, "service", str(service.out)) == "data"
    assert f"--max-lora-rank={CLaaS().lora.rank}" in vllm
    assert services["service"]["environment"]["VLLM_API_KEY"] == services["vllm"]["environment"]["VLLM_API_KEY"] == "c"


def test_the_replay_buffer_is_in_postgres(services: dict[str, Any], service: ServeOptions) -> None:
    place, environment = urlsplit(service.buffer), services["postgres"]["environment"]
    there = ("postgres", environment["POSTGRES_USER"], "/" + environment["POSTGRES_DB"])
    assert (place.hostname, place.username, place.path) == there
    assert services["service"]["environment"]["PGPASSWORD"] == environment["POSTGRES_PASSWORD"]
    assert services["service"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_only_the_service_can_be_reached_and_from_this_machine_only(services: dict[str, Any], service: ServeOptions) -> None:
    assert {name for name, one in services.items() if "ports" in one} == {"service"}
    assert services["service"]["ports"] == [f"127.0.0.1:8080:{service.port}"]
    assert "LEARNGRAPH_API_KEY" in services["service"]["environment"]


def test_vllm_starts_as_the_engine_asks_for_it(services: dict[str, Any]) -> None:
    """The flags and the variable that the engine's own page gives."""
    page = (ROOT / "tools/serving/vllm_engine.py").read_text(encoding="utf-8")
    told = re.search(r"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve (.*?)\n    #", page, re.DOTALL)
    assert told is not None
    flags = {word for word in shlex.split(told[1].replace("\\\\\n", " ")) if word.startswith("--")}
    assert flags <= {word.partition("=")[0] for word in services["vllm"]["command"]}
    assert services["vllm"]["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert services["vllm"]["entrypoint"] == ["vllm", "serve"]


def test_agents_remember_in_chroma_and_postgres(services: dict[str, Any]) -> None:
    command, method, *args = services["play"]["command"]
    options = parse_options_and_settings(RunOptions, JitRL(), args, "learngraph run", "", "")[0]
    assert (command, method, options.memory) == ("run", "jitrl", "http://chroma:8000")
    place = urlsplit(str(options.checkpoints))
    environment = services["postgres"]["environment"]
    assert (place.hostname, place.username, place.path) == (
        "postgres",
        environment["POSTGRES_USER"],
        "/" + environment["POSTGRES_DB"],
    )
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"chromadb=={services['chroma']['image'].rpartition(':')[2]}\n" in pinned


def test_the_image_installs_extras_that_exist(services: dict[str, Any]) -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in ("service", "ray", "play"):
        recipe = services[name]["build"]["dockerfile_inline"]
        asked = re.search(r"/src\[([\w,]+)\]", recipe)
        assert asked is not None
        assert set(asked[1].split(",")) == {"serve", "train", "postgres", "ray"} <= set(extras)
        assert (ROOT / "graphs/serving" / services[name]["build"]["context"]).resolve() == ROOT
