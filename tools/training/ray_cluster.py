"""The way to a Ray cluster: that of an address, or one that is started on this machine."""

import logging
import os
from pathlib import Path
from typing import Any

from ...memory.errors import UserError

__all__ = ["connect"]

START_TRIES = 3
"""Tries to start a cluster on this machine. Ray gives itself half a minute, which is too little where others compute."""


def connect(option: str, address: str, cores: int) -> Any:
    """The package `ray`, connected.

    Args:
        option: what the user wrote, for messages: `--learner ray`.
        address: `ray` (a cluster started here, or that of $RAY_ADDRESS) or `ray://HOST:PORT`.
        cores: cores of a cluster that is started here.

    Raises:
        UserError: Ray is not installed, no cluster answers or starts, or it refuses the token.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError(f"{option} needs a package ({error}): pip install 'learngraph[ray]'") from error
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's own advice against a warning about accelerators
    cluster = address if address.startswith("ray://") else os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster:
        try:
            ray.init(address=cluster, **quiet)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            raise UserError(f"{option}: {_why(cluster, error)}") from error
        return ray
    for left in reversed(range(START_TRIES)):
        try:
            ray.init(num_cpus=cores, include_dashboard=False, **quiet)
            break
        except Exception as error:  # Ray has no class of its own for a start that takes too long
            ray.shutdown()
            if not left:
                raise UserError(f"{option}: no Ray cluster starts on this machine ({error})") from error
    return ray


def _why(cluster: str, error: Exception) -> str:
    """The reason why a cluster takes no connection, and what would help."""
    if not isinstance(error, ConnectionError) or not cluster.startswith("ray://") or not _asks_for_token(cluster):
        return f"no Ray cluster answers ({error}); start one with 'ray start --head'"
    files = [Path(name).expanduser() for name in (os.environ.get("RAY_AUTH_TOKEN_PATH"), "~/.ray/auth_token") if name]
    if not os.environ.get("RAY_AUTH_TOKEN") and not any(file.is_file() for file in files):
        return f"the Ray cluster {cluster} asks for a token, and there is none here: set RAY_AUTH_TOKEN to the one it was started with"
    return f"the Ray cluster {cluster} asks for another token: RAY_AUTH_TOKEN must be the one it was started with"


def _asks_for_token(cluster: str) -> bool:
    """True if a cluster answers, and refuses who has no token. Ray itself only says that nothing answered in time."""
    import grpc  # type: ignore[import-untyped]

    with grpc.insecure_channel(cluster.removeprefix("ray://")) as channel:
        try:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(b"", timeout=10)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False
