"""Addresses and keys that are refused, without repeating what is secret."""

import pytest

from qrag_jax.llm.server.http import check_base_url, check_key, hide, is_openai, is_secret, is_this_machine
from qrag_jax.types import UsageError


@pytest.mark.parametrize(
    ("url", "checked"),
    [
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/v1"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_addresses(url, checked):
    assert check_base_url(url) == checked


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://host:0",
        "http://host:99999",
        "http://[::1",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="base_url .* is not"):
        check_base_url(url)


@pytest.mark.parametrize("url", ["http://host/a b", "http://host/\n", "http://höst/v1"])
def test_letters_that_no_address_has(url):
    with pytest.raises(UsageError, match="is not the address of a server"):
        check_base_url(url)


@pytest.mark.parametrize("url", ["http://user:sesame@host/v1", "http://host/v1?key=sesame", "http://host/v1#sesame"])
def test_secrets_in_an_address_are_refused_and_not_repeated(url):
    with pytest.raises(UsageError, match="write http://HOST") as caught:
        check_base_url(url)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(("environment", "key"), [({}, None), ({"KEY": ""}, None), ({"KEY": "sk-1"}, "sk-1")])
def test_keys(environment, key):
    assert check_key(environment, "KEY") == key


@pytest.mark.parametrize("key", ["sesame\n", " sesame", "ses ame", "sesamé"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(key):
    with pytest.raises(UsageError, match="environment variable KEY: ") as caught:
        check_key({"KEY": key}, "KEY")
    assert "sesam" not in str(caught.value)


def test_hiding_a_key():
    assert hide("key sk-12345678!", "sk-12345678") == "key ***!"
    assert hide(b"key sk-12345678!", "sk-12345678") == b"key ***!"
    assert hide("EMPTY hands", "EMPTY") == "EMPTY hands"


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("sk-12345678a", True),
        ("abcdefghijklmnopqrstu", True),  # longer than any word
        ("correct-horse-battery-staple", True),
        ("aZbYcXdW", True),
        ("pass--word", True),
        ("whatever", False),
        ("Whatever", False),
        ("WHATEVER", False),
        ("sk-no-key-required", False),
        ("finish_reason", False),
        ("20241022", False),
        ("a1b2c3d", False),  # too short
    ],
)
def test_a_key_that_is_a_word_is_no_secret(key, secret):
    assert is_secret(key) == secret


@pytest.mark.parametrize(
    ("url", "is_theirs"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://api.openai.com.evil.org/v1", False),
        ("http://127.0.0.1/api.openai.com", False),
    ],
)
def test_hosts_of_openai(url, is_theirs):
    assert is_openai(url) is is_theirs


@pytest.mark.parametrize(
    ("host", "is_here"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), ("h", False)],
)
def test_this_machine(host, is_here):
    assert is_this_machine(host) is is_here


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.1", "0x7f.1", "2130706433", "localhost.", "::ffff:127.0.0.1"])
def test_other_spellings_of_this_machine(host):
    """Prompts on the way to them went to the proxy of the environment."""
    assert is_this_machine(host)


@pytest.mark.parametrize("host", ["256.1.1.1", "[v1.x]"])
def test_hosts_that_are_none_are_no_fault_of_proxies(host):
    with pytest.raises(UsageError, match="base_url .* is not the address of a server"):
        check_base_url(f"http://{host}:8080/v1")
