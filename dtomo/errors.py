"""Errors that speak to the person at the keyboard: one sentence each, with the exit code of the command line."""


class DtomoError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1


class UserError(DtomoError, ValueError):
    """Bad input or a refused request: nothing was touched.

    The message is one sentence: which file, which dataset, what was expected, what to do.
    """

    exit_code = 2


class StoppedError(DtomoError, RuntimeError):
    """A run that stopped part-way and can be resumed; the message says how."""

    exit_code = 3


def shown(value: object, limit: int = 60) -> str:
    """`value` for a message: its text, with the end left out where it is longer than `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
