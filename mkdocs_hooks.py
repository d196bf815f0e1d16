"""The pages of the site that are not in docs/: those of the root, API, notebooks; and links among all of them."""

import json
import os.path
import re
import tomllib
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]
ROOT_PAGES = ("PAPERS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")


def on_files(files, config):
    """Adds the pages that are made: path in the site -> text."""
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in ROOT_PAGES}
    for stub in ROOT.glob("qrag_jax/**/__init__.pyi"):
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        blocks = [f"::: {package}.{name}" for name in re.findall(r" as (\w+)", stub.read_text(encoding="utf-8"))]
        pages[f"reference/api/{package}.md"] = "\n\n".join([f"# {package}", *blocks])
    for notebook in ROOT.glob("examples/notebooks/*.ipynb"):
        pages[_in_site(f"examples/notebooks/{notebook.name}")] = _as_markdown(notebook)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turns links that are right in the repository into links of the site, or to the repository."""
    here = page.file.src_uri
    folder = os.path.dirname(_in_repository(here))

    def mend(match):
        path = os.path.normpath(os.path.join(folder, match[2]))
        if files.get_file_from_path(_in_site(path)):
            target = os.path.relpath(_in_site(path), os.path.dirname(here))
        elif (ROOT / path).exists():
            target = f"{HOME}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
        else:
            target = match[2]
        return match[1] + target + match[3]

    return LINK.sub(mend, markdown)


def _in_site(path: str) -> str:
    """`docs/start.md` -> `start.md`, `examples/notebooks/a.ipynb` -> `notebooks/a.md`."""
    return re.sub(r"^examples/(.*)\.ipynb$", r"\1.md", path).removeprefix("docs/")


def _in_repository(path: str) -> str:
    """The reverse of `_in_site`."""
    notebook = re.sub(r"^(notebooks/.*)\.md$", r"examples/\1.ipynb", path)
    return path if path in ROOT_PAGES else notebook if notebook != path else f"docs/{path}"


def _as_markdown(notebook: Path) -> str:
    """The cells of a notebook, and what they gave."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell))


def _parts(cell: dict) -> list[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    return [f"```python\n{text}\n```", *map(_output, cell["outputs"])]


def _output(output: dict) -> str:
    """What Jupyter shows: HTML if there is some, else text."""
    data = output.get("data", {})
    if "text/html" in data:
        return f"<div>{''.join(data['text/html'])}</div>"
    return f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```"
