"""One BLAS thread per process: more only take turns on a small machine, and make sums depend on scheduling."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine is no reason to fail; the same examples each time, so that a failure can be repeated.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
