"""What is broken on purpose, from ``benchmarks/mutants.txt``: modules, the tests that have to notice, breaks by hand.

The file has a line for each module, with what pytest is given to find a break in it, and under it, indented, breaks and
those of the breaks found by themselves that nobody can notice::

    dtomo/kernels/sums.py: tests/kernels/test_sums.py
        for block in sums: → for block in sums[1:]:
        equivalent: LINE → LINE because nobody can notice

A break is a text that only one line of the module has, and what it becomes; lines of equivalent breaks are whole.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from benchmarks.mutants_found import Break

FILE = Path(__file__).with_name("mutants.txt")
WHOLE = ("dtomo/kernels", "dtomo/operators")
"""Folders of which no module may be left out."""


@dataclasses.dataclass
class Module:
    """A module that is broken.

    Attributes
    ----------
    tests
        What pytest is given.
    breaks
        Text of one line, and what it becomes.
    equivalent
        Line and broken line, without the space around them: why nobody can notice.
    """

    tests: tuple[str, ...]
    breaks: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    equivalent: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)


def read(root: Path) -> dict[str, Module]:
    """The modules by their paths, in the order of the file.

    Raises
    ------
    ValueError
        A line that is neither, a module that is no longer there, or one that is left out.
    """
    found: dict[str, Module] = {}
    for line in FILE.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            name, _, tests = line.partition(": ")
            found[name] = Module(tuple(tests.split()))
            continue
        module, (before, arrow, after) = found[name], line.strip().partition(" → ")
        if not arrow:
            raise ValueError(f"{FILE.name}: {line.strip()!r} is not 'text → other text'")
        if before.startswith("equivalent: "):
            after, _, why = after.partition(" because ")
            module.equivalent[before.removeprefix("equivalent: "), after] = why
        else:
            module.breaks.append((before, after))
    there = {path.relative_to(root).as_posix() for folder in WHOLE for path in (root / folder).glob("*.py")}
    lacking = {name for name in there - found.keys() if not name.endswith("/__init__.py")}
    gone = [name for name in found if not (root / name).exists()]
    if lacking or gone:
        raise ValueError(f"{FILE.name} lacks {sorted(lacking)}; no longer there: {gone}")
    return found


def by_hand(root: Path, name: str, module: Module) -> Iterator[Break]:
    """The breaks of a module that the file has.

    Raises
    ------
    ValueError
        A text that the module does not have, or has more than once.
    """
    lines = (root / name).read_text().splitlines()
    for before, after in module.breaks:
        having = [number for number, line in enumerate(lines) if before in line]
        if len(having) != 1 or lines[having[0]].count(before) != 1:
            raise ValueError(f"{name}: {len(having)} lines have {before!r}; a break needs one")
        line = lines[having[0]]
        yield Break(name, having[0] + 1, line, line.replace(before, after))


def reason(broken: Break, module: Module) -> str:
    """Why nobody can notice a break; empty where somebody should."""
    return module.equivalent.get((broken.before.strip(), broken.after.strip()), "")
