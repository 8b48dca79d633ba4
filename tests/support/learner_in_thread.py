"""The server of `learngraph learner` in a thread of the test."""

import threading
import time

import uvicorn

from learngraph.tools.serving.learner_server import LearnerWork, learner_app


class Server:
    """A learner's server in a thread. `work` may be replaced: then it was started anew."""

    def __init__(self, work: LearnerWork, key: str) -> None:
        self.work = work
        app = learner_app(work, key)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
