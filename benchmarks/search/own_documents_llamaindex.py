"""LlamaIndex's five-line starter over our MiniLM, as an engine of own_documents.py: a folder, questions as JSON on
stdin, and on stdout for each the files of its best nodes.

    uv venv RIVAL --python 3.11
    uv pip install --python RIVAL/bin/python --link-mode=copy -r pyproject.toml llama-index-core==0.14.25 \\
        llama-index-readers-file

Copies, since NLTK refuses to open its data in files that have several links. Readers, splitter, sizes and what is
embedded beside the text are the defaults. Ours are the encoder, so that vectors are the same, the number of nodes, and
that .md and .txt alone are read, as `qrag` does.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the clone need not be installed in that Python

from llama_index.core import SimpleDirectoryReader, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding

from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder

NUM_NODES = 50
ours = make_embedder(load_encoder("minilm"))


class Same(BaseEmbedding):
    """Our embedder behind LlamaIndex's interface."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return ours(texts).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def main() -> None:
    folder = sys.argv[1]
    reader = SimpleDirectoryReader(folder, recursive=True, required_exts=[".md", ".txt"])
    index = VectorStoreIndex.from_documents(reader.load_data(), embed_model=Same(embed_batch_size=2048))
    retriever = index.as_retriever(similarity_top_k=NUM_NODES)
    found = []
    for question in json.loads(sys.stdin.read()):
        nodes = retriever.retrieve(question)
        found.append([os.path.relpath(node.node.metadata["file_path"], os.path.realpath(folder)) for node in nodes])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
