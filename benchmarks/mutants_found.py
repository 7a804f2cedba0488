"""Breaks of one line, found in the syntax of a module: signs, comparisons, constants, conjugates and the like."""

import ast
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
_SIGNS |= {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OTHER = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*"}
_OTHER |= {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "sin": "cos"}
_CALLS |= {"cos": "sin", "zeros": "ones", "sum": "max"}
_DROPPED = ("conj", "conjugate", "abs", "sqrt")
_ATTRIBUTES = {"real": "imag", "imag": "real", "float64": "float32", "complex128": "complex64"}


@dataclasses.dataclass(frozen=True)
class Break:
    """One line of a module, as it is and broken.

    Attributes
    ----------
    module
        Path from the root of the repository.
    line
        Number of the line, from 1.
    before, after
        The whole line.
    tests
        What pytest is given to find it; nothing: the tests of the module.
    """

    module: str
    line: int
    before: str
    after: str
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The part that differs, with a few characters beside it."""
        one, two = self.before.strip(), self.after.strip()
        start = next((i for i, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))
        rest = list(zip(one[start:][::-1], two[start:][::-1]))
        same = next((i for i, (a, b) in enumerate(rest) if a != b), len(rest))
        first, ends = max(0, start - 12), (len(one) - same + 12, len(two) - same + 12)
        return f"{one[first : ends[0]]} → {two[first : ends[1]]}"


def candidates(root: Path, module: str) -> list[Break]:
    """All the breaks of a module that this one knows to make, in the order of the lines.

    What only a device runs, and the words of messages, are left as they are.
    """
    text = (root / module).read_text()
    lines = text.splitlines()
    found = dict.fromkeys(
        (line, after)
        for node in _nodes(ast.parse(text))
        for line, after in _breaks_of(node, lines)
        if after != lines[line - 1]
    )
    return [Break(module, line, lines[line - 1], after) for line, after in sorted(found)]


def chosen(root: Path, module: str, count: int, seed: int) -> list[Break]:
    """Up to `count` of the candidates: the same ones for the same module and seed."""
    every = candidates(root, module)
    picked = random.Random(f"{seed} {module}").sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in sorted(picked)]


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that the tests on a machine without a device can reach, and that compute."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        if isinstance(tree, ast.Module) and isinstance(node, ast.Assign):
            continue
        if isinstance(node, ast.If) and _of_devices(node.test):
            for other in node.orelse:
                yield other
                yield from _nodes(other)
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for part in (*(node.args.defaults if isinstance(node, ast.FunctionDef) else ()), *node.body):
                yield part
                yield from _nodes(part)
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield node.value
                yield from _nodes(node.value)
            continue
        yield node
        yield from _nodes(node)


def _of_devices(test: ast.AST) -> bool:
    words = ast.unparse(test)
    return "on_device" in words or "is not np" in words or words.endswith(".device") or "TYPE_CHECKING" in words


def _breaks_of(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, str]]:
    """(line, what it becomes) for a node."""
    if isinstance(node, ast.BinOp):
        yield from _signs(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _signs(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.AugAssign):
        yield from _signs(node.target, node.value, node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield from _replaced(node, node.operand, lines)
    elif isinstance(node, ast.BoolOp):
        for one, two in zip(node.values, node.values[1:]):
            yield from _between(one, two, ("or", "and") if isinstance(node.op, ast.Or) else ("and", "or"), lines)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        other = not node.value if isinstance(node.value, bool) else {0: 1, 1: 0}.get(node.value, node.value - 1)
        yield from _whole(node, str(other), lines)
    elif isinstance(node, ast.Call):
        yield from _calls(node, lines)
    elif isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
        yield from _attribute(node, _ATTRIBUTES[node.attr], lines)


def _signs(left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[str]) -> Iterator[tuple[int, str]]:
    sign = _SIGNS.get(type(operator))
    if sign is not None:
        yield from _between(left, right, (sign, _OTHER[sign]), lines)


def _between(left: ast.expr, right: ast.expr, words: tuple[str, str], lines: list[str]) -> Iterator[tuple[int, str]]:
    """The word between two nodes of one line, replaced."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    data = lines[right.lineno - 1].encode()
    gap = data[left.end_col_offset : right.col_offset].decode()
    if gap.count(words[0]) == 1:
        changed = gap.replace(*words)
        yield right.lineno, (data[: left.end_col_offset] + changed.encode() + data[right.col_offset :]).decode()


def _replaced(node: ast.expr, inner: ast.expr, lines: list[str]) -> Iterator[tuple[int, str]]:
    """A node of one line, replaced by a part of it."""
    if node.lineno == node.end_lineno == inner.lineno == inner.end_lineno:
        part = lines[inner.lineno - 1].encode()[inner.col_offset : inner.end_col_offset].decode()
        yield from _whole(node, f"({part})", lines)


def _whole(node: ast.expr, new: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    if node.lineno == node.end_lineno:
        data = lines[node.lineno - 1].encode()
        yield node.lineno, (data[: node.col_offset] + new.encode() + data[node.end_col_offset :]).decode()


def _calls(node: ast.Call, lines: list[str]) -> Iterator[tuple[int, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _DROPPED:
        if len(node.args) == 1:
            yield from _replaced(node, node.args[0], lines)
        elif isinstance(node.func, ast.Attribute) and not node.args:
            yield from _replaced(node, node.func.value, lines)
    elif name in _CALLS and isinstance(node.func, ast.Attribute):
        yield from _attribute(node.func, _CALLS[name], lines)
    elif name in _CALLS:
        yield from _whole(node.func, _CALLS[name], lines)


def _attribute(node: ast.Attribute, new: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    if node.end_lineno is not None and node.end_col_offset is not None:
        data = lines[node.end_lineno - 1].encode()
        name = node.end_col_offset - len(node.attr)
        yield node.end_lineno, (data[:name] + new.encode() + data[node.end_col_offset :]).decode()
