"""Build the documentation site strictly, then follow its links: ``python docs/site/build.py [FOLDER]``.

Any warning of MkDocs, of mkdocstrings or of the parser of docstrings is an error, and so is a link inside the site, in
any attribute of any page, that leads to no file or to no anchor. Nothing is asked of the network.
"""

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


def main(folder: Path) -> int:
    """Build the site into a folder; 0 if it is whole."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        return 1
    # 404.html is served at any address, so its links are those of a server's root
    (folder / "404.html").unlink(missing_ok=True)
    broken = broken_links(folder)
    for link in broken:
        print(f"leads nowhere: {link}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()))
