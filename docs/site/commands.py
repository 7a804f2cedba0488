"""The page of all commands and options, made from dtomo's own parser."""

from collections.abc import Iterator
from typing import Any

import typer

from dtomo.cli.commands import app

HEAD = """# Commands

What `dtomo COMMAND --help` says. Exit codes: 0 done; 2 bad input or refused, nothing was touched; 3 stopped part-way,
to be resumed; 130 interrupted.
"""


def page() -> str:
    """The page, as Markdown: a section for each command, a table for each group of options."""
    return HEAD + "".join(_sections(typer.main.get_command(app), "dtomo"))


def _sections(command: Any, name: str) -> Iterator[str]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from _sections(inner, f"{name} {word}")
    if not hasattr(command, "commands"):
        yield f"\n## {name}\n\n{_plain(command.help)}\n"
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        yield f"\n```text\n{name} {' '.join(map(_place, arguments))} [options]\n```\n"
        groups: dict[str, list[Any]] = {}
        for one in command.params:
            if not one.hidden and one.name != "help":
                title = "Arguments" if one in arguments else getattr(one, "rich_help_panel", None) or "Options"
                groups.setdefault(title, []).append(one)
        for title, members in groups.items():
            rows = (f"| {_names(one)} | {_meaning(one)} |\n" for one in members)
            yield f"\n**{title}**\n\n| name | what it is |\n|---|---|\n{''.join(rows)}"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def _place(argument: Any) -> str:
    return _metavar(argument) if argument.required else f"[{_metavar(argument)}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _meaning(parameter: Any) -> str:
    default = parameter.default
    shown = isinstance(default, int | float | str | tuple) and not isinstance(default, bool)
    return _plain(parameter.help) + (f" Default {_plain(str(default))}." if shown else "")


def _plain(text: str | None) -> str:
    """Text that Markdown leaves as it is, in one line."""
    words = " ".join((text or "").split())
    for sign in ("\\", "|", "*", "_", "<", "["):
        words = words.replace(sign, f"\\{sign}")
    return words
