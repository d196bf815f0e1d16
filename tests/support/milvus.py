"""A Milvus server on this machine: that of Milvus Lite, which `make oracle` installs."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_server(folder):
    """Starts a server with its data in a folder; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "milvus-lite"), "server", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--data-dir", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            assert process.poll() is None, "the server has ended"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
