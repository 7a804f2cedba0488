"""What MkDocs is told beside its settings: pages that lie elsewhere, links to them, fences of other readers."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
"""Pages that lie in the folder of the repository, and their names on the site."""
NOTEBOOKS = ROOT / "examples" / "notebooks"
"""They are on the site too, to be taken from there."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Draw fences of the language ``math``, LaTeX, as MathML: browsers need no script for it, and GitHub reads both."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": _math})
    return config


def _math(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="math">{convert(source.strip(), display="block")}</div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages of the repository's folder into the site, and the one of the commands."""
    sys.path.insert(0, str(ROOT))
    commands = runpy.run_path(str(ROOT / "docs" / "site" / "commands.py"))
    files.append(File.generated(config, "reference/commands.md", content=commands["page"]()))
    for name, page in FROM_ROOT.items():
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        for other, there in FROM_ROOT.items():
            text = text.replace(f"]({other}", f"]({there}")
        files.append(File.generated(config, page, content=text))
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.name}", content=path.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of the repository's folder to those of the site; take marks of tests off fences."""
    for name, target in FROM_ROOT.items():
        up = "../" * page.file.src_uri.count("/")
        markdown = markdown.replace(f"](../{up}{name}", f"]({up}{target}")
    markdown = markdown.replace("](../examples/notebooks/", "](notebooks/")
    return re.sub(r"^(```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)
