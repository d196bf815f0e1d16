"""Python imports this when it starts: a system without /proc, `fcntl` and `resource`."""

import network_guard
from hidden import hide

network_guard.install()
hide(("fcntl", "resource"))
