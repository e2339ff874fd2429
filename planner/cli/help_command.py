"""The command that prints help: a topic, which is a Markdown file beside it, or another command's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from planner.cli.console import print_json, print_lines, printing
from planner.cli.help_text import Command
from planner.cli.options import JSON, Named, options_of
from planner.text import aligned, nearest

FOLDER: Final = Path(__file__).with_name("topics")


def topics() -> list[str]:
    """Names of the topics."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


@click.command(cls=Command, examples=["planner help", "planner help shell", "planner help optimize"])
@click.argument("topic", required=False, type=Named(topics))
@options_of(JSON)
@click.pass_context
def help(context: click.Context, topic: str | None, as_json: bool) -> None:
    """Print a TOPIC, or the help of a command; without one, list the topics."""
    names = topics()
    group = context.find_root()
    if topic is None:
        titles = {name: _text(name).partition("\n")[0].lstrip("# ") for name in names}
        if as_json:
            print_json("planner-topics", {"topics": titles})
            return
        rows = aligned([list(row) for row in titles.items()], left=2)
        print_lines("planner help TOPIC prints one of these, and planner help COMMAND a command's options", *rows)
        return
    command = group.command.get_command(group, topic) if isinstance(group.command, click.Group) else None
    if topic not in names and command is None:
        near = nearest(topic, names)
        meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise click.UsageError(f"no topic {topic!r}; {meant}There are {', '.join(names)}, and every command")
    if topic in names:
        text = _text(topic)
    else:
        assert command is not None
        text = command.get_help(click.Context(command, info_name=topic, parent=group))
    if as_json:
        print_json("planner-topic", {"topic": topic, "text": text})
    elif sys.stdout.isatty() and topic in names:
        from rich.console import Console
        from rich.markdown import Markdown

        with printing():
            Console().print(Markdown(text))
    else:
        print_lines(text.rstrip("\n"))


def _text(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")
