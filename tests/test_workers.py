"""Sweeps on a cluster: joblib's context says where searches run, and the curve is the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner import MemoryModel, Problem, Proposal, curve, zoo
from planner.errors import TimeLimit
from planner.search.chen import chen_budget


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers of `distributed`, processes of their own."""
    from distributed import Client, LocalCluster

    options: dict[str, Any] = {"processes": True, "dashboard_address": None, "silence_logs": 50}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as workers, Client(workers):
        yield workers


def test_within_joblibs_context_a_curve_is_found_on_the_cluster_and_is_as_found_here(
    cluster: Any, tmp_path: Path
) -> None:
    import joblib

    folder = str(tmp_path)

    def noted(problem: Problem) -> Proposal:
        """As "chen-budget", and leaves a file named by its process."""
        Path(folder, str(os.getpid())).touch()
        return chen_budget(problem)

    options: dict[str, Any] = {
        "strategies": ("cuts", noted),
        "memory": MemoryModel(alignment=64, reserve=1000),
        "effort": 0.01,
    }
    graph = zoo.chain(12, nbytes=100)
    here = curve(graph, 5, **options)
    assert {path.name for path in tmp_path.iterdir()} == {str(os.getpid())}
    (tmp_path / str(os.getpid())).unlink()
    with joblib.parallel_config(backend="dask"):
        there = curve(graph, 5, **options)
    assert there == here
    pids = {worker.pid for worker in cluster.workers.values()}
    assert {int(path.name) for path in tmp_path.iterdir()} <= pids
    assert len(pids) == 2
    assert [there.plan(point).schedule for point in there.best] == [here.plan(point).schedule for point in here.best]


def test_a_time_limit_and_ctrl_c_reach_the_cluster_and_lose_no_plan(cluster: Any, tmp_path: Path) -> None:
    import joblib

    folder = str(tmp_path)

    def slow(problem: Problem) -> Proposal:
        """As "chen-budget" for the least peak; for a budget it waits until it is stopped, and has no plan."""
        if problem.budget is None:
            return chen_budget(problem)
        Path(folder, str(problem.budget)).touch()
        while not problem.stop.now:
            time.sleep(0.02)
        raise TimeLimit("stopped")

    def interrupt() -> None:
        while not any(tmp_path.iterdir()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    # the middle is asked first, then both ends
    with joblib.parallel_config(backend="dask"):
        late = curve(zoo.chain(12), [7, 8, 9], strategies=(slow, chen_budget), time_limit=1.0, effort=0.01)
        for path in tmp_path.iterdir():
            path.unlink()
        heard = threading.Thread(target=interrupt)
        heard.start()
        stopped = curve(zoo.chain(12), [7, 8, 9], strategies=(slow, chen_budget), effort=0.01)
        heard.join()
    assert {path.name for path in tmp_path.iterdir()} == {"8"}
    for found in (late, stopped):
        # keep-all takes 13; the plan of least peak, 7, was in hand before
        assert [point.arena_bytes for point in found.of("slow")] == [7, 7, 7]
        assert [point.cut_short for point in found.of("slow")][1:] == [True, True]  # at 7 that plan is proven cheapest
        assert [point.status for point in found.of("chen_budget")] == ["fits"] * 3


def test_without_a_context_and_within_one_of_threads_the_curve_is_the_same() -> None:
    import joblib

    options: dict[str, Any] = {"strategies": ("chen-budget", "chen-sqrt"), "effort": 0.01}
    one = curve(zoo.chain(12), [7, 8, 9, 10], **options)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert curve(zoo.chain(12), [7, 8, 9, 10], **options) == one
