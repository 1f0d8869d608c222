"""A Datasette that really serves, in a process of its own."""

import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing

from datasette_agent_memory.cli import _free_port


class Server:
    """A Datasette of its own process."""

    def __init__(self, arguments, says=""):
        self.port = _free_port(0)
        self.says = says
        command = [sys.executable, "-m", "datasette", *map(str, arguments), "--port", str(self.port)]
        # A pipe that nobody reads would be full of its log after some hundred requests.
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        with self.log:
            self.log.seek(0)
            output = self.log.read()
        assert self.says in output
        assert "Traceback" not in output, output
