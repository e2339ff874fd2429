"""Answers begin with the verdict and fit the terminal: prose is wrapped with an indent, columns go with a note."""

from __future__ import annotations

import pytest

from planner.cli import console, model_commands, plan_commands
from planner.text import wrapped

COMMANDS = (
    ("optimize chain:12 --budget 8", "Fits 8 B, "),
    ("curve chain:12 --budgets 3,8,10 --strategies chen-sqrt,chen-budget", " without recomputation"),
    ("estimate mlp:64-64-64-64 --batch 64 --fits 1KiB", "Does not fit 1.00 KiB"),
    ("estimate mlp:64-64-64-64 --batch 64 --fits t4", "Fits t4"),
    ("estimate mlp:64-64-64-64 --batch 64", "Peak "),
    ("estimate mlp:64-64-64-64 --batch 8,64 --fits t4", "Fits t4 at every batch"),
)


def test_every_answer_begins_with_its_verdict_and_keeps_to_80_and_60_columns(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = []
    for width in (80, 60):
        for module in (console, model_commands, plan_commands):
            monkeypatch.setattr(module, "columns", lambda width=width: width)
        for command, verdict in COMMANDS:
            lines = run(*command.split()).out.splitlines()
            wrong += [f"{width} {command}: {line}" for line in lines if len(line) > width and "▁" not in line]
            wrong += [] if verdict in " ".join(lines[:2]) else [f"{command}: begins with {lines[0]}"]
    assert wrong == []


def test_a_narrow_table_says_which_columns_it_left_out(run, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["estimate", "mlp:64-64", "--batch", "8,64"]
    whole = run(*command).out
    for module in (console, model_commands):
        monkeypatch.setattr(module, "columns", lambda: 60)
    narrow = run(*command).out
    (note,) = (line for line in narrow.splitlines() if "Left out in 60 columns" in line)
    names = note.partition(": ")[2].partition(";")[0].split(", ")
    assert names
    heads = [next(line for line in text.splitlines() if line.startswith("  batch ")) for text in (whole, narrow)]
    assert all(name in heads[0] and name not in heads[1] for name in names)


def test_wrapping_loses_no_word_cuts_none_and_indents_what_follows() -> None:
    line = "  Peak at op " + "a" * 50 + " of block, weights " + "and inputs " * 12
    parts = wrapped(line, 40)
    assert " ".join(parts).split() == line.split()
    assert all(len(part) <= 40 or len(part.split()) == 1 for part in parts)
    assert all(part.startswith("    ") and part[4] != " " for part in parts[1:])
    assert wrapped("  conv1    4 B    12", 10) == ["  conv1    4 B    12"]  # a row of a table
