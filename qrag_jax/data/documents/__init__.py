"""PDF, HTML, DOCX and EPUB as Markdown: told apart by their bytes, converted in a limited process of their own."""
