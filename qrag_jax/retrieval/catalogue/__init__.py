"""An index that lasts: documents, chunks and vectors in a folder that grows and mends document by document."""
