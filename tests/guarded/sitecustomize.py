"""Python imports this when it starts, where tests/conftest.py has put its folder on PYTHONPATH."""

import network_guard

network_guard.install()
