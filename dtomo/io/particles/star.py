"""STAR files as tables of text: what is not changed is written back letter by letter.

The dialect of cryo-EM (S. R. Hall, J. Chem. Inf. Comput. Sci. 31 (1991) 326, without save frames and text blocks):
``data_NAME``, then either pairs ``_label value`` or ``loop_``, labels and rows. Numbers stay the text they were,
because other readers round them to six digits when they write.
"""

import dataclasses
import re
from collections.abc import Iterable

from dtomo.errors import UserError, shown

_TOKENS = re.compile(r"""'(?:[^']|'(?!\s|$))*'(?=\s|$)|"(?:[^"]|"(?!\s|$))*"(?=\s|$)|\S+""")


@dataclasses.dataclass
class StarBlock:
    """One ``data_`` block: labels without the underscore and rows of text.

    Attributes
    ----------
    name
        After ``data_``; may be empty.
    labels, rows
        Of the table; pairs are one row.
    is_loop
        A ``loop_``, however many rows it has, or pairs.
    comments
        Lines that stood before it.
    """

    name: str
    labels: list[str]
    rows: list[list[str]]
    is_loop: bool = True
    comments: list[str] = dataclasses.field(default_factory=list)

    def column(self, label: str) -> list[str] | None:
        """Text of a column, without quotes; None: there is no such label."""
        if label not in self.labels:
            return None
        place = self.labels.index(label)
        return [unquoted(row[place]) for row in self.rows]

    def put(self, label: str, values: Iterable[str], at: Iterable[int] | None = None) -> None:
        """Replace a column, or the rows `at` of it; a new one is added at the end."""
        if label not in self.labels:
            self.labels.append(label)
            for row in self.rows:
                row.append("")
        place = self.labels.index(label)
        for index, value in zip(range(len(self.rows)) if at is None else at, values, strict=True):
            self.rows[index][place] = quoted(value)


def quoted(value: str) -> str:
    """A value that STAR reads back as one: in quotes where it is empty, has blanks, or begins like something else."""
    if value and not re.search(r"\s", value) and value[0] not in "_#'\"" and not value.startswith(("data_", "loop_")):
        return value
    return f'"{value}"' if '"' not in value else f"'{value}'"


def unquoted(token: str) -> str:
    """A value without the quotes around it."""
    return token[1:-1] if len(token) >= 2 and token[0] == token[-1] and token[0] in "'\"" else token


def parse_star(text: str, where: str) -> list[StarBlock]:
    """The blocks of a STAR file's text; `where` names it in messages.

    Raises
    ------
    UserError
        No block, a row with more or fewer values than labels.
    """
    blocks: list[StarBlock] = []
    comments: list[str] = []
    in_labels = False
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            comments += [line] if line else []
            continue
        place = f"{where}, line {number}"
        if line.startswith("data_"):
            blocks.append(StarBlock(line[5:].split("#")[0].strip(), [], [], False, comments))
            comments, in_labels = [], True
            continue
        if not blocks:
            raise UserError(f"{place}: expected data_ and a name, got {shown(repr(line))}; this is not a STAR file")
        block = blocks[-1]
        if line.split()[0] == "loop_":
            if block.labels:
                raise UserError(f"{place}: a second table in data_{shown(block.name)}; give it a data_ line of its own")
            block.is_loop = True
            line = line[5:].strip()
            if not line:
                continue
        if line.startswith("_"):
            _take_label(block, line, place, in_labels)
        else:
            in_labels = False
            _take_row(block, line, place)
        comments = []
    if not blocks:
        raise UserError(f"{where} has no data_ block; this is not a STAR file")
    return blocks


def _take_label(block: StarBlock, line: str, place: str, in_labels: bool) -> None:
    tokens = _TOKENS.findall(line)
    label = tokens[0][1:]
    if label in block.labels:
        raise UserError(f"{place}: _{shown(label)} stands twice in data_{shown(block.name)}")
    if block.is_loop:
        if not in_labels:
            raise UserError(f"{place}: _{shown(label)} comes after the first row of data_{shown(block.name)}")
        block.labels.append(label)
        return
    values = tokens[1:2]
    if not values:
        raise UserError(f"{place}: _{shown(label)} has no value, and there is no loop_ before it")
    block.labels.append(label)
    block.rows = [[*(block.rows[0] if block.rows else []), values[0]]]


def _take_row(block: StarBlock, line: str, place: str) -> None:
    values = _TOKENS.findall(line) if "'" in line or '"' in line else line.split()
    if len(values) > len(block.labels) and values[len(block.labels)].startswith("#"):
        values = values[: len(block.labels)]
    if not block.is_loop or len(values) != len(block.labels):
        raise UserError(
            f"{place}: {len(values)} values where data_{shown(block.name)} has {len(block.labels)} labels; "
            "the file is damaged or cut off"
        )
    block.rows.append(values)


def star_text(blocks: Iterable[StarBlock]) -> str:
    """The text of a STAR file, columns aligned."""
    parts: list[str] = []
    for block in blocks:
        parts += ["", *block.comments, *([""] if block.comments else []), f"data_{block.name}", ""]
        if block.is_loop:
            parts += ["loop_", *(f"_{label} #{number}" for number, label in enumerate(block.labels, 1))]
            widths = [max(map(len, column)) for column in zip(*block.rows)]
            parts += [" ".join(value.rjust(width) for value, width in zip(row, widths)) for row in block.rows]
        else:
            width = max(map(len, block.labels), default=0) + 1
            values = block.rows[0] if block.rows else []
            parts += [f"_{label}".ljust(width + 3) + value for label, value in zip(block.labels, values)]
        parts.append("")
    return "\n".join(parts) + "\n"
