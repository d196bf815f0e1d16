"""LlamaIndex's AutoMergingRetriever over given trees, as an engine of auto_merge.py: parents of nodes and the leaves
that are found, best first, as JSON on stdin; CPU seconds of the best of two merges, the nodes it gives, and its version
as JSON on stdout.
"""

import json
import sys
import time

import llama_index.core
from llama_index.core import QueryBundle, StorageContext
from llama_index.core.retrievers import AutoMergingRetriever, BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, TextNode


class Found(BaseRetriever):
    """Gives what it was given."""

    def __init__(self, nodes: list[NodeWithScore]) -> None:
        super().__init__()
        self._nodes = nodes

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return list(self._nodes)


def main() -> None:
    given = json.load(sys.stdin)
    nodes = [TextNode(text="word " * 50, id_=str(number)) for number in range(len(given["parents"]))]
    children: dict[int, list] = {}
    for node, parent in zip(nodes, given["parents"], strict=True):
        if parent is not None:
            node.relationships[NodeRelationship.PARENT] = nodes[parent].as_related_node_info()
            children.setdefault(parent, []).append(node.as_related_node_info())
    for parent, own in children.items():
        nodes[parent].relationships[NodeRelationship.CHILD] = own
    storage = StorageContext.from_defaults()
    storage.docstore.add_documents(nodes)
    found = [NodeWithScore(node=nodes[leaf], score=1 / rank) for rank, leaf in enumerate(given["leaves"], start=1)]
    retriever, seconds, merged = AutoMergingRetriever(Found(found), storage), [], []
    for _ in range(2):
        start = time.process_time()
        merged = retriever._retrieve(QueryBundle("why"))
        seconds.append(time.process_time() - start)
    print(json.dumps({"seconds": min(seconds), "nodes": len(merged), "version": llama_index.core.__version__}))


if __name__ == "__main__":
    main()
