"""Vectors of an index in a Milvus server.

One collection has the vectors of one index, and its properties name it. Searches are exact (index FLAT) and see all
that was written before (consistency Strong; the default of Milvus lags by seconds).
"""

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.errors import not_installed
from qrag_jax.search.dense import Ranking
from qrag_jax.search.store import StorePlace, keys_of
from qrag_jax.types import InputError, UsageError

TOKEN = "MILVUS_TOKEN"  # environment variable, because settings of an index are no place for a password
_SECONDS = 30.0  # most for an answer of the server
_MOST_FOUND = 16_384  # of a search, a limit of Milvus
_BATCH_ELEMENTS = 4_000_000  # numbers of vectors in a message: 16 MB, of at most 64
_BATCH_ROWS = 10_000
_GONE = 100  # Milvus's code of a missing collection
_INDEX, _MARK, _ROWS = "qrag.index", "qrag.mark", "qrag.rows"  # properties of a collection
_FIELDS = {"key", "document", "stamp", "vector"}


def open_milvus(place: StorePlace) -> "MilvusStore":
    """Connects to the server of an index (`names.STORES`).

    Raises:
        UsageError: pymilvus is missing, or the address has no scheme or has a password.
        InputError: the server cannot be reached, or the collection belongs to another index.
    """
    parts = urlsplit(place.uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        remedy = "give http:// or https://, the host and the port, for example http://localhost:19530"
        raise UsageError("is no address of a Milvus server", field="uri", value=place.uri, remedy=remedy)
    if parts.password is not None or parts.username is not None:
        shown = place.uri.replace(parts.netloc, f"...@{parts.hostname}")
        remedy = f"leave them out, and set the environment variable {TOKEN} to user:password"
        raise UsageError(
            "has a user and password, which the index would store", field="uri", value=shown, remedy=remedy
        )
    try:
        from pymilvus import MilvusClient  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise not_installed("pymilvus", "milvus") from error
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs every error that it also raises
    with _named(place):
        store = MilvusStore(place, MilvusClient(place.uri, token=os.environ.get(TOKEN, ""), timeout=_SECONDS))
        store.check()
    return store


@contextmanager
def _named(place: StorePlace) -> Iterator[None]:
    """Turns errors of Milvus into errors that name the server and say what to do."""
    from grpc import RpcError  # pyright: ignore[reportMissingModuleSource]
    from pymilvus.exceptions import MilvusException  # pyright: ignore[reportMissingImports]

    try:
        yield
    except (MilvusException, RpcError) as error:
        if getattr(error, "code", None) == _GONE:
            raise InputError(
                f"the Milvus server at {place.uri} has no collection {place.collection} with the vectors of "
                f"{place.folder}; `qrag index add {place.folder} PATHS...` puts them there again"
            ) from error
        said = getattr(error, "message", None) or str(error)
        raise InputError(
            f"the Milvus server at {place.uri} does not answer as it should ({said}); start it or check its address, "
            f"then try again, or leave it with `qrag index add {place.folder} PATHS... --store sqlite`"
        ) from error


class MilvusStore:
    """The collection of an index; a `Store`. The collection is made when the first vectors are put."""

    def __init__(self, place: StorePlace, client: Any) -> None:
        self._place, self._client, self._name = place, client, place.collection
        self._dim = 0  # of the collection, as far as it is known

    def check(self) -> None:
        """Refuses a collection that belongs to another index, or to another program."""
        if not self._client.has_collection(self._name):
            return
        about = self._client.describe_collection(self._name)
        owner = about.get("properties", {}).get(_INDEX)
        if owner != self._name or {field["name"] for field in about["fields"]} != _FIELDS:
            of = "another program" if owner is None else f"the index {owner}"
            raise InputError(
                f"the collection {self._name} of the Milvus server at {self._place.uri} belongs to {of}, not to "
                f"{self._place.folder}; give another server, or rename that collection there"
            )
        self._dim = next(int(field["params"]["dim"]) for field in about["fields"] if field["name"] == "vector")

    def put(self, number: int, nodes: Int[np.ndarray, " n"], vectors: Float[np.ndarray, "n dim"], stamp: int) -> None:
        """As `Store.put`."""
        with _named(self._place):
            self._make(vectors.shape[1])
            self._check_dim(vectors.shape[1])
            own = {"document": number, "stamp": stamp << 24 | len(nodes)}
            rows = [
                {"key": key, "vector": vector, **own}
                for key, vector in zip(keys_of(number, nodes).tolist(), vectors, strict=True)
            ]
            step = min(_BATCH_ROWS, max(1, _BATCH_ELEMENTS // vectors.shape[1]))
            for start in range(0, len(rows), step):
                self._client.upsert(self._name, rows[start : start + step], timeout=_SECONDS)

    def remove(self, numbers: Collection[int]) -> None:
        """As `Store.remove`."""
        with _named(self._place):
            if numbers and self._client.has_collection(self._name):
                self._client.delete(self._name, filter=_among("in", numbers), timeout=_SECONDS)

    def search(
        self,
        query: Float[np.ndarray, " dim"],
        k: int,
        only: Collection[int] | None = None,
        exclude: Collection[int] = (),
    ) -> Ranking:
        """As `Store.search`; at most 16,384 keys, a limit of Milvus."""
        masks = [_among("in", only)] if only is not None else []
        masks += [_among("not in", exclude)] if exclude else []
        with _named(self._place):
            self._check_dim(len(query))
            (found,) = self._client.search(
                self._name,
                [query],
                filter=" and ".join(masks),
                limit=min(k, _MOST_FOUND),
                output_fields=["key"],
                search_params={"metric_type": "IP"},
                consistency_level="Strong",
                timeout=_SECONDS,
            )
        keys, scores = [hit["key"] for hit in found], [hit["distance"] for hit in found]
        return np.array(keys, np.int64), np.array(scores, np.float64)

    def read(self, keys: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dim"]:
        """As `Store.read`."""
        found: dict[int, Any] = {}
        with _named(self._place):
            for start in range(0, len(keys), _BATCH_ROWS):
                some = keys[start : start + _BATCH_ROWS].tolist()
                rows = self._client.get(self._name, some, output_fields=["key", "vector"], timeout=_SECONDS)
                found |= {row["key"]: row["vector"] for row in rows}
        return np.array([found[key] for key in keys.tolist()], np.float32)

    def stamps(self) -> dict[int, int]:
        """As `Store.stamps`."""
        rows: Counter[tuple[int, int]] = Counter()
        with _named(self._place):
            if self._client.has_collection(self._name):
                found = self._client.query_iterator(
                    self._name,
                    _BATCH_ROWS,
                    filter="key >= 0",
                    output_fields=["document", "stamp"],
                    consistency_level="Strong",
                )
                with closing(found):
                    while some := found.next():
                        rows.update((row["document"], row["stamp"]) for row in some)
        whole = {number: stamp >> 24 for (number, stamp), size in rows.items() if size == stamp & 0xFFFFFF}
        return dict.fromkeys((number for number, _ in rows), -1) | whole

    def is_settled(self, mark: str) -> bool:
        """As `Store.is_settled`."""
        with _named(self._place):
            if not self._client.has_collection(self._name):
                return False
            known = self._client.describe_collection(self._name).get("properties", {})
            return (known.get(_MARK), known.get(_ROWS)) == (mark, str(self._num_rows()))

    def settle(self, mark: str) -> None:
        """As `Store.settle`."""
        with _named(self._place):
            if self._client.has_collection(self._name):
                marks = {_MARK: mark, _ROWS: str(self._num_rows())}
                self._client.alter_collection_properties(self._name, marks)

    def _num_rows(self) -> int:
        (row,) = self._client.query(self._name, output_fields=["count(*)"], consistency_level="Strong")
        return row["count(*)"]

    def _check_dim(self, dim: int) -> None:
        if self._dim not in (0, dim):
            raise InputError(
                f"the collection {self._name} of the Milvus server at {self._place.uri} has vectors of {self._dim} "
                f"numbers, those of {self._place.folder} have {dim}; drop that collection there, then run `qrag index "
                f"add {self._place.folder} PATHS...`"
            )

    def _make(self, dim: int) -> None:
        """Makes the collection if it is missing, for vectors of `dim` numbers."""
        from pymilvus import DataType  # pyright: ignore[reportMissingImports]

        if self._dim or self._client.has_collection(self._name):
            return
        self._dim = dim
        schema = self._client.create_schema(enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("document", DataType.INT64)
        schema.add_field("stamp", DataType.INT64)  # the document's, and the number of its rows
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._client.create_collection(
            self._name, schema=schema, index_params=index, consistency_level="Strong", properties={_INDEX: self._name}
        )


def _among(how: str, numbers: Collection[int]) -> str:
    return f"document {how} {sorted(numbers)}"
