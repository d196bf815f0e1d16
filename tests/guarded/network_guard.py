"""Nothing but this machine is ever asked for: whoever asks for another place is stopped, and written down.

An audit hook of Python, in the test processes (tests/conftest.py) and in those that they start (sitecustomize.py beside
this, by PYTHONPATH). Sockets of C++ and Rust are not seen by it. Imports nothing that Python has not loaded by now.
"""

import os
import sys

LOG = "QRAG_JAX_TESTS_NETWORK"  # the file that names what was asked for
_PLACE = {  # which argument of an event is the place
    "socket.connect": 1,
    "socket.bind": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
}


class NetworkAsked(BaseException):
    """No `except Exception` of the code under test hides it."""


def is_here(host: object) -> bool:
    """True if a name or number is of this machine; None is, and what is no host."""
    host = host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else host
    if not isinstance(host, str):
        return True
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def install() -> None:
    """For good: a hook cannot be taken away."""
    sys.addaudithook(_hook)


def asked() -> list[str]:
    """What was asked for since the last time."""
    path = os.environ.get(LOG, "")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        found = file.read().splitlines()
    os.unlink(path)
    return found


def _hook(event: str, args: tuple) -> None:
    argument = _PLACE.get(event)
    if argument is None:
        return
    if argument == 1:  # an address: of another family than the internet's it is a path, or numbers
        host = args[1][0] if isinstance(args[1], tuple) and args[1] else None
    else:
        host = args[0]
    if is_here(host):
        return
    what = f"{event} {args[argument]!r}"
    if LOG in os.environ:
        with open(os.environ[LOG], "a", encoding="utf-8") as file:
            file.write(f"{what}\n")
    raise NetworkAsked(f"{what}: tests reach nothing but this machine")
