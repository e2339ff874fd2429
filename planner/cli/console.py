"""Commands print results on standard output and errors in one line on standard error, and end with an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

import click

from planner import errors
from planner.text import printable, wrapped

EXIT_CODES = (
    (errors.InfeasibleBudget, 4),
    (errors.TimeLimit, 5),
    (errors.ScheduleError, 6),
    (errors.VerificationError, 6),
    (errors.GraphError, 3),
    (errors.PlanFileError, 3),
    (errors.PlannerError, 2),
)
#: By what a verdict says; the first that it says counts.
_COLOURS = {"Does not fit": "red", "No budget fits": "red", "Barely fits": "yellow", "Fits": "green"}


_LOUDNESS: Final = "planner.loudness"


def set_loudness(given: int) -> Callable[[click.Context, click.Parameter, bool], None]:
    """The callback of an option that makes a command quiet (-1) or verbose (1)."""

    def set_it(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and context.meta.setdefault(_LOUDNESS, given) != given:
            raise click.UsageError("--quiet and --verbose exclude each other; give one")

    return set_it


def loudness() -> int:
    """-1 under --quiet, 1 under --verbose, else 0."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else context.meta.get(_LOUDNESS, 0)


def check_output(output: str | None, *, force: bool) -> None:
    """Refuse before the work a file that cannot be written after it."""
    if output is None:
        return
    if os.path.exists(output) and not force:
        raise click.UsageError(f"{output!r} exists; overwrite it with -f, or name another file")
    folder = os.path.dirname(os.path.abspath(output))
    special = not output or (os.path.exists(output) and not os.path.isfile(output))  # no name; a folder, device, pipe
    if special or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise errors.OutputError(f"cannot write {output!r}; name a file in a folder that exists and can be written")


def check_file_or_stream(output: str | None, *, force: bool, as_json: bool) -> None:
    """The same where "-" is standard output, to which --json writes too."""
    if output == "-" and as_json:
        raise click.UsageError("--json and -o - both write to standard output; give one")
    if output != "-":
        check_output(output, force=force)


@contextmanager
def printing() -> Iterator[None]:
    """Around all writing of results: an output that cannot take them is an OutputError, whatever else may fail.

    Where the reader has left, as `head` does, the program ends with exit code 0.
    """
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich exits by itself where the reader has left
        silence()
        raise click.exceptions.Exit(0) from None
    except UnicodeEncodeError as error:
        shown = printable(error.object[error.start : error.end])
        why = f"standard output cannot show {shown!r} as {error.encoding}"
        raise errors.OutputError(f"{why}; set PYTHONIOENCODING=utf-8") from None
    except OSError as error:
        silence()
        raise errors.OutputError(f"cannot write to standard output: {error.strerror or error}") from None


def silence() -> None:
    """Send the rest of the buffer nowhere, so that the interpreter does not fail once more when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_lines(*lines: str) -> None:
    with printing():
        for line in lines:
            click.echo(shown(line))


def columns() -> int | None:
    """How wide the terminal is that standard output goes to; None where it is no terminal, and lines stay whole."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_answer(*texts: str) -> None:
    """The verdict, bold and coloured on a terminal, then the rest; prose is wrapped at the terminal's width."""
    lines = "\n".join(texts).split("\n")
    width = columns()
    if loudness() < 0:
        del lines[1:]
    if width is not None:
        lines = [part for line in lines for part in wrapped(line, width)]
        if not os.environ.get("NO_COLOR"):
            colour = next((colour for begins, colour in _COLOURS.items() if begins in lines[0]), None)
            lines[0] = click.style(lines[0], fg=colour, bold=True)
    print_lines(*lines)


def print_bytes(content: bytes) -> None:
    """A whole file on standard output, as `-o -` asks for."""
    with printing():
        click.echo(content, nl=False)


def shown(name: str) -> str:
    """A file name as text; bytes that are no text are escaped."""
    return name.encode(errors="backslashreplace").decode()


def print_json(schema: str, content: dict[str, Any]) -> None:
    import msgspec

    print_lines(msgspec.json.encode({"schema": schema, "version": 1, **content}).decode())


def exit_code(error: errors.PlannerError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def say(message: str, *, last_line: bool = False) -> None:
    """Print one line on standard error; with `last_line` the text after the last line break is a second line."""
    head, line_break, tail = message.rpartition("\n") if last_line else (message, "", "")
    lines = [head, tail] if line_break else [head or tail]
    with suppress(OSError):
        click.echo("error: " + "\n".join(printable(line) for line in lines), err=True)


def fail(kind: str, message: str, code: int, *, as_json: bool, error: errors.PlannerError | None = None) -> NoReturn:
    """Print the error and exit; with `as_json` print it as one object on standard output too."""
    say(message, last_line=isinstance(error, errors.InfeasibleBudget))
    if as_json:
        known = {} if error is None else {name: value for name, value in vars(error).items() if name != "plan"}
        facts = {name: value for name, value in known.items() if not name.startswith("_")}
        head = {"error": kind, "message": shown(message)}
        with suppress(errors.OutputError, click.exceptions.Exit):  # it has been said on standard error
            try:
                print_json("planner-error", {**head, **facts})
            except (TypeError, ValueError):  # an attribute that is no JSON
                print_json("planner-error", head)
    sys.exit(code)
