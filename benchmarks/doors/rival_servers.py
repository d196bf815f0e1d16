"""Servers of txtai and LlamaIndex over vectors that are there; runs in their environment (benchmarks/rivals.txt).

    PYTHON rival_servers.py build FOLDER MODEL             # the folder of a txtai application
    PYTHON rival_servers.py llamaindex FOLDER MODEL PORT
    PYTHON rival_servers.py llamaindex_faiss FOLDER MODEL PORT

FOLDER has texts.json and vectors.npy; MODEL is the encoder as a folder.
"""

import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np

TOP_K = 5
_PACKAGES = ("torch", "transformers", "txtai", "llama-index-core", "faiss-cpu", "fastapi", "uvicorn")


def read(folder: Path) -> tuple[list[str], np.ndarray]:
    return json.loads((folder / "texts.json").read_text()), np.load(folder / "vectors.npy", allow_pickle=False)


def build(folder: Path, model: str) -> None:
    """Makes `txtai` with its defaults and `txtai_flat`, which looks at all vectors, and prints versions."""
    from txtai import Embeddings

    texts, vectors = read(folder)
    for name, options in {"txtai": {}, "txtai_flat": {"faiss": {"components": "IDMap,Flat"}}}.items():
        rows = iter(vectors)

        def next_vectors(batch: list[str], rows=rows) -> np.ndarray:
            return np.stack([next(rows) for _ in batch])

        embeddings = Embeddings(method="external", transform=next_vectors, content=True, **options)
        embeddings.index((place, text, None) for place, text in enumerate(texts))
        del embeddings.config["transform"], embeddings.config["method"]  # a question is embedded by the model
        embeddings.config["path"] = model
        embeddings.save(str(folder / name))
        (folder / f"{name}.yml").write_text(json.dumps({"path": str(folder / name), "embeddings": {"path": model}}))
    print(json.dumps({name: importlib.metadata.version(name) for name in _PACKAGES}))


def serve_llamaindex(folder: Path, model: str, port: int, with_faiss: bool) -> None:
    """The retriever of a VectorStoreIndex behind FastAPI, since LlamaIndex's core has no server."""
    import uvicorn
    from fastapi import FastAPI
    from llama_index.core import StorageContext, VectorStoreIndex
    from llama_index.core.schema import TextNode
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    texts, vectors = read(folder)
    nodes = [
        TextNode(id_=str(place), text=text, embedding=vector.tolist())
        for place, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    storage = None
    if with_faiss:
        import faiss
        from llama_index.vector_stores.faiss import FaissVectorStore

        store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(vectors.shape[1]))
        storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes, storage_context=storage, embed_model=HuggingFaceEmbedding(model, device="cpu"))
    del nodes, vectors
    retriever, app = index.as_retriever(similarity_top_k=TOP_K), FastAPI()

    @app.get("/search")
    def search(query: str) -> list[dict]:
        return [
            {"id": hit.node_id, "text": hit.text, "score": float(hit.score or 0)} for hit in retriever.retrieve(query)
        ]

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def main() -> None:
    what, folder, model, *port = sys.argv[1:]
    if what == "build":
        build(Path(folder), model)
    else:
        serve_llamaindex(Path(folder), model, int(port[0]), what == "llamaindex_faiss")


if __name__ == "__main__":
    main()
