"""papers/chen2016/reproduce.py: the original's tables are copied right, and our numbers are equal to them.

The quick part: up to 203 layers and 64 time steps. `python papers/chen2016/reproduce.py` does the rest.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

SCRIPT = Path(__file__).resolve().parents[1] / "papers/chen2016/reproduce.py"
#: The only cells where ours is another number, and the words that say why.
DIFFERENT = {
    ("ResNet, recomputing by operator, MB", "resnet 3-4-6-3", "MXNET_BACKWARD_DO_MIRROR=1"): "one live instance",
    ("Planned graphs, MB", "resnet 3-4-6-3, plan", "port"): "approximation",
    ("Planned graphs, MB", "resnet 3-24-36-3, plan", "port"): "approximation",
    ("Planned graphs, MB", "resnet 3-24-36-3, B = 0", "port"): "approximation",
}


@cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chen2016_reproduce", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def result() -> Any:
    return script().reproduce(quick=True)


def ours(table: str) -> dict[tuple[str, str], str]:
    return {(cell.row, cell.column): cell.ours for cell in result().cells if cell.table == table}


# our numbers


def test_every_cell_equals_the_originals_but_those_that_say_why() -> None:
    measured = [cell for cell in result().cells if cell.measured]
    assert len(measured) == 161
    different = {(cell.table, cell.row, cell.column): cell.reason for cell in measured if not cell.equal}
    assert different.keys() == DIFFERENT.keys()
    assert all(DIFFERENT[place] in reason for place, reason in different.items())


def test_a_resnet_of_203_layers_has_the_original_row() -> None:
    row = [value for (name, _), value in ours("ResNet, MB").items() if name.startswith("203")]
    assert row == ["28279", "20450", "10400", "10610", "7988", "1957@576", "5.3"]


def test_dropping_batch_norm_and_activation_takes_what_mxnet_takes_of_the_same_list() -> None:
    dropped = [value for (_, column), value in ours("ResNet, MB").items() if column == "drop bn-relu"]
    assert dropped == ["2843", "4093", "5636", "7988"]


def test_wired_as_the_paper_has_it_dropping_them_saves_a_sixth_more() -> None:
    rows = ours("ResNet, recomputing by operator, MB")
    found = [int(value) for (_, column), value in rows.items() if column.startswith("bn-relu")]
    assert found == [2354, 3396, 4682, 6642]
    assert int(rows["resnet 3-24-36-3", "bn-relu, Alg. 2 as written"]) < 0.84 * 7988


def test_recomputing_activations_alone_takes_more_than_keeping_everything() -> None:
    rows = ours("ResNet, recomputing by operator, MB")
    kept = {name: value for (name, column), value in ours("Match range R, MB").items() if column == "R=16"}
    assert all(int(rows[name, "LeakyReLU"]) > int(kept[name]) for name in ("resnet 3-4-6-3", "resnet 3-8-36-3"))


def test_the_search_makes_the_original_trials_in_their_order() -> None:
    trials = [value for (_, network), value in ours("memonger's search, B:MB").items() if network == "resnet 3-24-36-3"]
    assert " ".join(trials) == "0:2941 889:1992 576:1957 707:2105 748:2191 789:2191 830:1992 871:1992 912:1992"


def test_the_search_is_many_times_faster_than_the_original() -> None:
    assert result().seconds["resnet 3-24-36-3"] < 2  # the original took 8 s


# the tables are the originals


def tables_of(shared: Path, first_column: str) -> list[list[str]]:
    """Rows of the table of original.md whose heading begins so."""
    lines = iter((shared / "original.md").read_text().splitlines())
    next(line for line in lines if line.startswith(f"| {first_column} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def without_ours(values: str) -> list[str]:
    """A row of the script as the notes have it: what was measured for the script alone is not in them."""
    return ["-" if value.endswith("†") else value for value in values.split()]


def noted(row: list[str]) -> list[str]:
    """A row of the notes in the script's form: best B after the megabytes."""
    return [cell.replace("B=", "").replace(" (", "@").removesuffix(")") for cell in row]


def test_the_resnet_table_is_that_of_the_notes(shared: Path) -> None:
    rows = {tuple(map(int, row[0].split(","))): (row[1], noted(row[2:])) for row in tables_of(shared, "blocks")}
    for stages, (layers, values) in script().RESNET.items():
        unfinished = ["-", "-"] if "†" in values.split()[5] else []  # the notes did not let this search finish
        expected = [*rows[stages][1][:5], *(unfinished or rows[stages][1][5:])]
        assert (str(layers), without_ours(values)) == (rows[stages][0], expected)
    assert rows.keys() == script().RESNET.keys()


def test_the_lstm_table_is_that_of_the_notes(shared: Path) -> None:
    rows = {int(row[0]): noted(row[1:]) for row in tables_of(shared, "steps")}
    assert {steps: values.split() for steps, values in script().LSTM.items()} == rows


def read(path: Path) -> dict[str, Any]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    parsed = json.loads(content)
    assert isinstance(parsed, dict)
    return parsed


def test_traces_and_bytes_are_those_of_the_stored_files(shared: Path) -> None:
    for name in ["resnet 3-4-6-3", "resnet 3-8-36-3", "resnet 15-120-180-15", "lstm 64"]:
        folder = shared / "data/mxnet"
        kind, size = name.split()
        stem = f"lstm_4x1024_t{size}" if kind == "lstm" else f"{kind}_{size}"
        trace = read(next(folder.glob(f"alg3_{stem}.json*")))["trace"]
        assert script().TRACES[name].split() == [f"{trial['B_MB']}:{trial['cost_MB']}" for trial in trace]
        for row, plan in ((name, "sharing"), (f"{name}, plan", "memonger")):
            for path in folder.glob(f"{stem}_{plan}.json*"):
                golden = read(path)["golden"]
                keys = ("no_sharing_total_bytes", "shared_total_bytes", "live_peak_bytes", "live_peak_inplace_bytes")
                assert script().BYTES[row].split() == [str(golden[key]) for key in keys]
                swept = dict(zip(script().RANGES, script().SWEEPS[row].split(), strict=True))
                assert {r: mb for r, mb in swept.items() if mb != "-"} == {
                    int(r): str(found["reported_MB"]) for r, found in golden["by_match_range"].items()
                }


# the command, the figures


def test_quick_prints_every_cell_and_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = result()
    monkeypatch.setattr(script(), "reproduce", lambda **_: found)
    run = CliRunner().invoke(script().main, ["--quick"])
    assert run.exit_code == 0, run.output
    assert "157 of 161 cells equal" in run.output
    assert "1957@576 = 1957@576" in run.output
    assert "4078 ≠ 4069" in run.output


def test_a_difference_nobody_can_explain_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = result()._replace(cells=[script().Cell("a", "b", "c", "1", "2")])
    monkeypatch.setattr(script(), "reproduce", lambda **_: wrong)
    run = CliRunner().invoke(script().main, ["--quick"])
    assert run.exit_code == 1
    assert "UNEXPLAINED" in run.output


def test_networks_of_the_figure_have_its_depth_and_the_examples_shares() -> None:
    for depth in [128, 256, 512, 1024]:
        layers, stages = script().deepened(depth)
        assert abs(layers - depth) <= 2
        assert stages[2] == pytest.approx(1.5 * stages[1], abs=1.5)
        assert script().deepened(203) == (203, (3, 24, 36, 3))
        assert script().deepened(995)[1] == (15, 120, 180, 15)


def test_figures_have_the_originals_points_and_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = {name: [(128, 1.0 + k), (1000, 3.0 + k)] for k, name in enumerate(script().LINES)}
    for draw in (script().figure5, script().figure6):
        for folder in (tmp_path / "a", tmp_path / "b"):
            folder.mkdir(exist_ok=True)
            script().save_figure(draw(lines), folder, draw.__name__)
        for suffix in ("svg", "png"):
            first, second = ((tmp_path / folder / f"{draw.__name__}.{suffix}").read_bytes() for folder in "ab")
            assert first == second
    points = script().original_points({995: (script().RESNET_COLUMNS, script().RESNET[15, 120, 180, 15][1])}, 128)
    assert points["sublinear (memonger)"] == [(995, 4091 / 1024)]
    assert points["drop bn-relu"] == [(995, 36528 / 1024)]
