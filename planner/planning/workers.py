"""Searches in other processes: our own children, or whatever joblib's context names, as a cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from itertools import takewhile
from typing import NamedTuple

from planner import mxnet
from planner.graph import Graph
from planner.planning.searches import Answer, Search, Task, answered
from planner.planning.session import Session
from planner.problem import Allocator, Request, Stop


class Parcel(NamedTuple):
    """A sweep's question as it is sent to another process, which may be on another machine.

    Args:
        folder: of the sender, gone when the sweep is over; a file `stop` in it says that Ctrl-C came.
        sender: the process that sends it.
        graph_json: the graph as bytes, which travel faster than objects.
        allocate: a callable of the user's, or None for the one registered by the request's name.
        deadline: `time.time()` seconds, or None: machines share no other clock.
    """

    folder: str
    sender: int
    graph_json: bytes
    request: Request
    allocate: Allocator | None
    deadline: float | None

    @classmethod
    def of(cls, session: Session, *, folder: str, allocate: Allocator | None) -> Parcel:
        """The question of a session."""
        deadline = session.stop.deadline
        until = None if deadline is None else time.time() + deadline - time.monotonic()
        return cls(folder, os.getpid(), session.graph.to_json(), session.request, allocate, until)


class _Unpacked(threading.local):
    """The last parcel that a thread was sent: a cluster's workers have several threads."""

    folder = ""
    session: Session


_unpacked = _Unpacked()


def answers(
    parcel: Parcel, searches: Sequence[Search], *, jobs: int | None, stop: Stop
) -> Iterator[tuple[Task, Answer]]:
    """Each task with its answer, as soon as its search ends; once `stop.now`, no more are sent out.

    Args:
        jobs: processes of our own; None: joblib's context says where, and how many at once.
    """
    from joblib import Parallel, delayed

    ours = {} if jobs is None else {"backend": "loky"}
    try:
        run = Parallel(n_jobs=jobs, return_as="generator_unordered", **ours)
    except ValueError:  # ray's backend answers all at once
        run = Parallel(n_jobs=jobs, **ours)
    try:
        sent = takewhile(lambda search: not stop.now, searches)
        yield from run(delayed(_answered_elsewhere)(parcel, search) for search in sent)
    except BrokenExecutor:  # a child that was just starting did not ignore Ctrl-C yet
        if not stop.interrupted:
            raise


def elsewhere(jobs: int | None) -> bool:
    """True if searches run in other processes, False if here, one after another; `jobs` as for `answers`."""
    if jobs is not None:
        return jobs != 1
    if "joblib" not in sys.modules:  # then nobody has entered a context of its
        return False
    from joblib import effective_n_jobs

    return bool(effective_n_jobs(None) > 1)


def _answered_elsewhere(parcel: Parcel, search: Search) -> tuple[Task, Answer]:
    """`answered` in another process, which unpacks a graph once for all its tasks."""
    if parcel.folder != _unpacked.folder:
        stop = Stop.after(None if parcel.deadline is None else parcel.deadline - time.time())
        own_child = os.getppid() == parcel.sender and threading.current_thread() is threading.main_thread()
        if own_child:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and says so
        mxnet.register()
        threading.Thread(target=_heed, args=(parcel, stop, own_child), daemon=True).start()
        graph = Graph.from_json(parcel.graph_json)
        _unpacked.session = Session(graph, parcel.request, allocate=parcel.allocate, stop=stop)
        _unpacked.folder = parcel.folder
    return search.task, answered(_unpacked.session, search)


def _heed(parcel: Parcel, stop: Stop, own_child: bool) -> None:
    """End the searches when the sender says so, and a child of its own with it; until the sweep is over."""
    while os.path.isdir(parcel.folder):
        if own_child and os.getppid() != parcel.sender:
            os._exit(1)
        if os.path.exists(os.path.join(parcel.folder, "stop")):
            stop.interrupt()
        time.sleep(0.1)
