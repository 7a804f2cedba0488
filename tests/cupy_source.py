"""What our source asks of CuPy and its relatives, read from the syntax tree, looked up in the installed packages.

Nothing of ours is run, and no GPU is needed. What is followed: imports (also inside functions), ``xp =
array_module(...)``, parameters and attributes called ``xp``, functions of ours that return a module, objects made by
classes and functions of CuPy, aliases of all these. Calls of NumPy's functions that reach CuPy by dispatch are checked
where the caller says that a file works on device arrays.
"""

import ast
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOTS = ("cupy", "cupyx", "cufinufft", "dask_cuda")
MADE = "()"
"""In a path: what the thing before it returns when called."""

_NAMES = (
    "arange array asarray ascontiguousarray concatenate empty empty_like full full_like ones ones_like stack zeros"
    " zeros_like"
)
RETURNS = {
    "cupy.get_default_memory_pool": "cupy.cuda.MemoryPool",
    "cupy.get_default_pinned_memory_pool": "cupy.cuda.PinnedMemoryPool",
    "cupy.cuda.get_current_stream": "cupy.cuda.Stream",
    "cupy.cuda.alloc_pinned_memory": "cupy.cuda.PinnedMemoryPointer",
    "cupy.cuda.Stream.record": "cupy.cuda.Event",
    "cupy.cuda.Event.record": "cupy.cuda.Event",
    "cupy.fft.config.get_plan_cache": "cupy.fft._cache.PlanCache",
} | {f"cupy.{name}": "cupy.ndarray" for name in _NAMES.split()}


@dataclass(frozen=True)
class Use:
    """A name that the source uses, and how it is called (None: it is not)."""

    line: int
    path: str
    positional: int | None = None
    keywords: tuple[str, ...] = ()


def module_functions(trees: list[ast.Module]) -> dict[str, str]:
    """Functions that return a module of `ROOTS`: name -> module."""
    found = {"array_module": "cupy", "get_array_module": "cupy"}
    for tree in trees:
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or function.name in found:
                continue
            reader = _Reader({})
            reader.visit(function)
            for path in reader.returned:
                if MADE not in path and isinstance(_installed(path), types.ModuleType):
                    found[function.name] = path
    return found


def uses(tree: ast.Module, functions: dict[str, str], numpy: bool = False) -> list[Use]:
    """All uses of `ROOTS` in a file; with `numpy` also of NumPy's functions that dispatch, as ``numpy.…``."""
    reader = _Reader(functions, numpy)
    reader.visit(tree)
    return reader.uses


class _Reader(ast.NodeVisitor):
    """Walks through a file in order, and knows which names stand for what."""

    def __init__(self, functions: dict[str, str], numpy: bool = False) -> None:
        self.functions, self.roots = functions, (*ROOTS, "numpy") if numpy else ROOTS
        self.scopes: list[dict[str, str | None]] = [{}]
        self.uses: list[Use] = []
        self.returned: list[str] = []

    # names

    def bind(self, target: ast.AST, path: str | None) -> None:
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = path

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            if name.name.split(".")[0] in self.roots:
                self.uses.append(Use(node.lineno, name.name))
                self.scopes[-1][name.asname or name.name.split(".")[0]] = (
                    name.name if name.asname else name.name.split(".")[0]
                )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and node.module.split(".")[0] in self.roots:
            for name in node.names:
                path = f"{node.module}.{name.name}"
                self.uses.append(Use(node.lineno, path))
                self.scopes[-1][name.asname or name.name] = path

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for outside in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(outside)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.scopes.append({a.arg: "cupy" if a.arg == "xp" else None for a in arguments})
        for statement in node.body:
            self.visit(statement)
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for name, value in zip(target.elts, node.value.elts):
                    self.bind(name, self.path(value))
            elif isinstance(target, ast.Name):
                self.bind(target, self.path(node.value))
            else:
                self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.bind(node.target, self.path(node.value))

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, self.path(item.context_expr))
        for statement in node.body:
            self.visit(statement)

    # uses

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.visit(node.value)
            path = self.path(node.value)
            if path is not None:
                self.returned.append(path)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self.path(node)
        if path is not None and path.split(".")[0] in self.roots and not path.startswith("numpy."):
            self.uses.append(Use(node.lineno, path))
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        path = self.path(node.func)
        if path is not None:
            known = all(k.arg for k in node.keywords)
            spread = not known or any(isinstance(a, ast.Starred) for a in node.args)
            keywords = tuple(k.arg for k in node.keywords if k.arg)
            self.uses.append(Use(node.lineno, path, -1 if spread else len(node.args), keywords))
        self.generic_visit(node)

    def path(self, node: ast.AST) -> str | None:
        """What an expression stands for, as a dotted path; None: something else."""
        match node:
            case ast.Name(id=name):
                return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
            case ast.Attribute(attr="xp"):
                return "cupy"
            case ast.Attribute(value=value, attr=name):
                before = self.path(value)
                return None if before is None else f"{before}.{name}"
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                return self.functions[name]
            case ast.Call(func=ast.Attribute(attr=name)) if name in self.functions:
                return self.functions[name]
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if name.split(".")[0] in self.roots:
                return name if ast.unparse(function).endswith(("import_module", "modules.get")) else None
            case ast.Call(func=function):
                before = self.path(function)
                return None if before is None else before + MADE
            case ast.Subscript(value=value, slice=ast.Constant(value=str(name))) if name.split(".")[0] in self.roots:
                return name if ast.unparse(value).endswith("modules") else None
            case ast.IfExp(body=body, orelse=otherwise):
                return self.path(body) or self.path(otherwise)
            case ast.NamedExpr(target=target, value=value):
                path = self.path(value)
                self.bind(target, path)
                return path
        return None


def problems(use: Use) -> Iterator[str]:
    """What the installed packages lack of a use."""
    if use.path.startswith("numpy."):
        yield from _dispatched(use)
        return
    try:
        found = _installed(use.path)
    except AttributeError as error:
        yield f"line {use.line}: {use.path}: {error}"
        return
    if use.positional is not None and found is not None:
        yield from _refused(found, use)


def _dispatched(use: Use) -> Iterator[str]:
    """The same for a function of NumPy's: only those count that hand a device array on to CuPy."""
    found: Any = np
    for name in use.path.split(".")[1:]:
        found = getattr(found, name, None)
    dispatcher = type(np.sum)
    if use.positional is None or not isinstance(found, dispatcher | np.ufunc):
        return
    place = "cupy" + found.__module__.removeprefix("numpy") if isinstance(found, dispatcher) else "cupy"
    yield from problems(Use(use.line, f"{place}.{found.__name__}", use.positional, use.keywords))


def _installed(path: str) -> Any:
    """The object that a path leads to; None where that cannot be known without running it."""
    steps = path.replace(MADE, f".{MADE}").split(".")
    name, found = steps[0], importlib.import_module(steps[0])
    for step in steps[1:]:
        if step == MADE:
            made = RETURNS.get(name)
            name = name if isinstance(found, type) else made or ""
            if not name:
                return None
            found = _installed(name)
            continue
        name = f"{name}.{step}"
        if isinstance(found, types.ModuleType):
            found = getattr(found, step) if hasattr(found, step) else _submodule(name)
        elif isinstance(found, type):
            found = getattr(found, step) if hasattr(found, step) else _set_by_instances(found, step)
            if found is None:
                return None
        else:
            return None
    return found


def _submodule(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise AttributeError("there is no such name") from None


def _set_by_instances(kind: type, name: str) -> None:
    """Attributes that no class has, but its objects: of Python from the source, of compiled ones from their text."""
    for base in kind.__mro__[:-1]:
        try:
            text = inspect.getsource(base)
        except (TypeError, OSError):
            text = base.__doc__ or ""
        if re.search(rf"self\.{name}\b[^=\n]*=[^=]|^\s+(~\w+\.)?{name} \(", text, re.MULTILINE):
            return
    raise AttributeError(f"{kind.__name__} has no {name!r}")


def _refused(found: Any, use: Use) -> Iterator[str]:
    """Arguments that a function does not take."""
    signature = _signature(found)
    if signature is None:
        yield f"line {use.line}: {use.path}: its arguments are not known"
        return
    parameters = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for keyword in use.keywords:
        if keyword not in parameters or parameters[keyword].kind is inspect.Parameter.POSITIONAL_ONLY:
            yield f"line {use.line}: {use.path}: it takes no {keyword!r}, but {signature}"
            return
    if use.positional is not None and use.positional >= 0:
        try:
            signature.bind(*range(use.positional), **dict.fromkeys(use.keywords))
        except TypeError as error:
            yield f"line {use.line}: {use.path}: {error}; it takes {signature}"


def _signature(found: Any) -> inspect.Signature | None:
    """Of Python functions from themselves, of compiled ones from the first lines of their documentation."""
    if type(found).__name__ != "ufunc":
        try:
            signature = inspect.signature(found)
        except (TypeError, ValueError):
            return _documented(found)
        parameters = list(signature.parameters.values())
        method = bool(parameters) and parameters[0].name == "self"
        return signature.replace(parameters=parameters[1:] if method else parameters)
    return _documented(found)


def _documented(found: Any) -> inspect.Signature | None:
    text = re.match(r"\s*([\w.]+)\((.*?)\)\s*(?:->.*)?$", found.__doc__ or "", re.MULTILINE)
    if text is None:
        return None
    kinds, parameters = inspect.Parameter, []
    kind: Any = kinds.POSITIONAL_OR_KEYWORD
    for part in filter(None, re.split(r",\s*(?![^(\[]*[)\]])", text[2].replace("\\", ""))):
        if part == "/":
            parameters = [p.replace(kind=kinds.POSITIONAL_ONLY) for p in parameters]
        elif part == "*":
            kind = kinds.KEYWORD_ONLY
        elif part.startswith("**"):
            parameters.append(kinds(part[2:], kinds.VAR_KEYWORD))
        elif part.startswith("*"):
            parameters.append(kinds(part[1:], kinds.VAR_POSITIONAL))
            kind = kinds.KEYWORD_ONLY
        else:
            name, _, default = part.partition("=")
            name = re.sub(r"\s*:.*", "", name).split()[-1]
            if name != "self":
                parameters.append(kinds(name, kind, default=default if default else kinds.empty))
    return inspect.Signature(parameters)


def read(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), str(path))
