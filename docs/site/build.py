"""Build the documentation site strictly, then follow its links: ``python docs/site/build.py [FOLDER]``.

Any warning of MkDocs, of mkdocstrings or of the parser of docstrings is an error, and so is a link inside the site, in
any attribute of any page, that leads to no file or to no anchor. Nothing is asked of the network.
"""

import ast
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors = {""}
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


def broken_links(folder: Path) -> list[str]:
    """Links of the pages of a folder that lead to no file in it, or to no anchor.

    Parameters
    ----------
    folder : Path
        A site of static pages.

    Returns
    -------
    list of str
        ``page: link`` for each of them, sorted.
    """
    pages = {path.resolve(): Links(path) for path in folder.rglob("*.html")}
    broken = []
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            at = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if at.is_dir():
                at /= "index.html"
            anchors = pages[at].anchors if at in pages else {""}
            if not at.exists() or unquote(parts.fragment) not in anchors:
                broken.append(f"{path.relative_to(folder.resolve())}: {target}")
    return sorted(broken)


def undocumented(folder: Path) -> list[str]:
    """Names that packages export (in ``__all__``) and that their page of the API reference does not have.

    Parameters
    ----------
    folder : Path
        The site.

    Returns
    -------
    list of str
        Dotted names, sorted.
    """
    missing = []
    for page in (folder / "reference").glob("*.html"):
        package = ROOT / "dtomo" / page.stem / "__init__.py"
        if not package.exists():
            continue
        for node in ast.parse(package.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = {f"dtomo.{page.stem}.{name}" for name in ast.literal_eval(node.value)}
                missing += names - Links(page).anchors
    return sorted(missing)


def main(folder: Path) -> int:
    """Build the site into a folder; 0 if it is whole."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    # not --quiet, with which MkDocs counts no warnings
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        print(built.stdout + built.stderr, file=sys.stderr)
        return 1
    # 404.html is served at any address, so its links are those of a server's root
    (folder / "404.html").unlink(missing_ok=True)
    faults = [f"leads nowhere: {link}" for link in broken_links(folder)]
    faults += [f"exported, but not in the API reference: {name}" for name in undocumented(folder)]
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()))
