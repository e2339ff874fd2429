"""A plan in files that people's tools read: a table of buffers, a Chrome trace, a snapshot of PyTorch's allocator."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pickle import dumps  # writes the one format that PyTorch's viewer reads; nothing here loads a pickle
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from planner.analysis.evaluator import evaluator_of
from planner.analysis.roles import roles
from planner.graph import Op
from planner.memory import Buffer
from planner.views.course import WORDS, Course

if TYPE_CHECKING:
    from planner.plan import Plan

CSV_COLUMNS: Final = (
    "id", "lower", "upper", "size", "offset", "value", "execution", "workspace", "component", "op", "type", "phase",
    "module", "runs",
)  # fmt: skip
#: Where the arena of a snapshot begins; any address but 0 would do.
BASE_ADDRESS: Final = 1 << 40


def buffers_csv(plan: Plan) -> str:
    """One line a buffer: lifetime in steps, bytes, place above the weights, and what it is for.

    `planner pack` reads the table. Of a plan with no offsets, the column offset is empty.
    """
    component = roles(plan.graph)
    runs = Counter(plan.schedule.computes)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    placed = plan.allocation is not None
    for buffer in _buffers(plan):
        op = plan.graph.op_named[buffer.value] if buffer.workspace else plan.graph.producer[buffer.value]
        kind = "workspace" if buffer.workspace else component[buffer.value]
        identity = f"{buffer.value}#{buffer.execution}" + (" workspace" if buffer.workspace else "")
        lives = (identity, buffer.start, buffer.end, buffer.nbytes, buffer.offset if placed else "")
        made = (buffer.value, buffer.execution, int(buffer.workspace), kind)
        writer.writerow((*lives, *made, op.name, op.op or "", op.phase or "", op.module or "", runs[op.name]))
    return text.getvalue()


def chrome_trace(plan: Plan) -> bytes:
    """Ops as slices inside their phases, and the bytes of each component as a counter, as Perfetto shows them.

    One unit of cost is drawn as a second, which it is where costs are those of a device.
    """
    course = Course(plan.graph, plan.schedule, plan.memory)
    ops = [plan.graph.op_named[name] for name in course.ops]
    at_us = _times_us(ops)
    events: list[dict[str, Any]] = [_named("process_name", 0, plan.graph.name), _named("thread_name", 1, "ops")]
    runs = _runs(ops)
    phases = ["recomputation" if run else op.phase or "forward" for op, run in zip(ops, runs, strict=True)]
    step = 0
    for phase, group in groupby(phases):
        count = sum(1 for _ in group)
        events.append(_slice(phase, at_us[step], at_us[step + count], cat="phase", args={"ops": count}))
        step += count
    for step, (op, run) in enumerate(zip(ops, runs, strict=True)):
        facts = {"step": step, "type": op.op, "module": op.module, "run": run + 1}
        cat = "run again" if run else "first run"
        args = {key: value for key, value in facts.items() if value is not None}
        events.append(_slice(op.name, at_us[step], at_us[step + 1], cat=cat, args=args))
    rows = {WORDS[component]: row.tolist() for component, row in course.held.items()}
    for step in range(len(ops)):
        args = {name: row[step] for name, row in rows.items()}
        events.append({"ph": "C", "pid": 0, "name": "memory (bytes)", "ts": at_us[step], "args": args})
    other = {"graph": plan.graph.name, "peak_bytes": course.trace.peak_bytes, "cost": course.trace.cost}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def torch_snapshot(plan: Plan) -> bytes:
    """The plan as a snapshot of PyTorch's allocator: one segment, the arena, with every buffer taken and given back.

    `python -m torch.cuda._memory_viz trace_plot FILE` and pytorch.org/memory_viz read it. A plan with no offsets is
    given each buffer a place of its own, which is what its peak counts.
    """
    residents = _residents(plan)
    resident_bytes = sum(buffer.nbytes for buffer in residents)
    held = [*residents, *(_moved(buffer, resident_bytes) for buffer in _buffers(plan) if buffer.nbytes)]
    size = max((buffer.offset + buffer.nbytes for buffer in held), default=0) or 1
    ops = [plan.graph.op_named[name] for name in plan.schedule.computes]
    at_us = [round(time) for time in _times_us(ops)]
    segment = {"device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "frames": []}
    opened = _event("segment_alloc", BASE_ADDRESS, size, 0, [])
    trace = [opened, *_events(plan, held, at_us)]
    last = [buffer for buffer in held if buffer.end > len(ops) - 1]
    left = sum(buffer.nbytes for buffer in last)
    sizes = {"total_size": size, "allocated_size": left, "active_size": left, "requested_size": left}
    blocks = list(_blocks(plan, last, size))
    segments = [{**segment, "address": BASE_ADDRESS, **sizes, "blocks": blocks}]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": ""}
    content = {"segments": segments, "device_traces": [trace], "allocator_settings": settings}
    return dumps({**content, "external_annotations": []}, protocol=4)


#: By what `planner export --to` calls it.
EXPORTS: Final[Mapping[str, Callable[[Plan], bytes]]] = MappingProxyType({
    "csv": lambda plan: buffers_csv(plan).encode(), "perfetto": chrome_trace, "torch-snapshot": torch_snapshot,
})  # fmt: skip


def _buffers(plan: Plan) -> Sequence[Buffer]:
    """The plan's buffers; of a plan with no offsets, its storages one above the other."""
    if plan.allocation is not None:
        return plan.allocation.buffers
    evaluator = evaluator_of(plan.graph, plan.memory)
    names = (evaluator.encoded.value_names, evaluator.encoded.op_names)
    live = evaluator.liveness(plan.schedule)
    columns = (live.value, live.execution, live.workspace, live.nbytes, live.start, live.end)
    tops = accumulate(live.nbytes.tolist(), initial=0)
    rows = zip(*(column.tolist() for column in columns), tops, strict=False)
    return [Buffer(names[scratch][value], run, scratch, *lives) for value, run, scratch, *lives in rows]


def _residents(plan: Plan) -> list[Buffer]:
    """Weights, inputs and states as buffers that are live all the time; none where the budget leaves them out."""
    if plan.memory.scope != "total":
        return []
    tensors = [tensor for op in plan.graph.ops if op.resident for tensor in op.outputs if tensor.nbytes]
    sizes = [plan.memory.round_up(tensor.nbytes) for tensor in tensors]
    steps, tops = len(plan.schedule.computes) + 1, accumulate(sizes, initial=0)
    rows = zip(tensors, sizes, tops, strict=False)
    return [Buffer(tensor.name, 0, False, nbytes, 0, steps, top) for tensor, nbytes, top in rows]


def _moved(buffer: Buffer, by: int) -> Buffer:
    return msgspec.structs.replace(buffer, offset=buffer.offset + by)


def _times_us(ops: Sequence[Op]) -> list[float]:
    """Microseconds at which each op begins, and the last one ends; a thousandth of one is the finest."""
    return [round(1e6 * seconds, 3) for seconds in accumulate((op.cost for op in ops), initial=0.0)]


def _runs(ops: Sequence[Op]) -> list[int]:
    """For each op, how often it ran before."""
    before = Counter[str]()
    runs = []
    for op in ops:
        runs.append(before[op.name])
        before[op.name] += 1
    return runs


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": thread, "name": what, "args": {"name": name}}


def _slice(name: str, start_us: float, end_us: float, *, cat: str, args: dict[str, Any]) -> dict[str, Any]:
    lasts_us = round(end_us - start_us, 3)
    return {"ph": "X", "pid": 0, "tid": 1, "name": name, "cat": cat, "ts": start_us, "dur": lasts_us, "args": args}


def _event(action: str, address: int, size: int, time_us: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us}
    return {**event, "frames": frames}


def _frames(plan: Plan, buffer: Buffer) -> list[dict[str, Any]]:
    """Where a buffer comes from, as a stack of calls: its value, then its module."""
    op = plan.graph.op_named[buffer.value] if buffer.workspace else plan.graph.producer[buffer.value]
    name = f"workspace of {op.name}" if buffer.workspace else buffer.value
    name += f" (run {buffer.execution + 1})" if buffer.execution else ""
    calls = [name, *([op.module] if op.module else [])]
    return [{"filename": plan.graph.name, "line": buffer.start, "name": call} for call in calls]


def _events(plan: Plan, held: Sequence[Buffer], at_us: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What is given back before a step, then what is taken for it."""
    steps = len(at_us) - 1
    turns = [(buffer.start, 1, buffer) for buffer in held]
    turns += [(buffer.end, 0, buffer) for buffer in held if buffer.end < steps]
    for step, taken, buffer in sorted(turns, key=lambda turn: turn[:2]):
        address, frames = BASE_ADDRESS + buffer.offset, _frames(plan, buffer)
        for action in ("alloc",) if taken else ("free_requested", "free_completed"):
            yield _event(action, address, buffer.nbytes, at_us[step], frames)


def _blocks(plan: Plan, last: Sequence[Buffer], size: int) -> Iterator[dict[str, Any]]:
    """The segment at the end, from its first byte to its last: buffers still there, and the room between them."""
    top = 0
    for buffer in (*sorted(last, key=lambda buffer: buffer.offset), None):
        low = size if buffer is None else buffer.offset
        if low > top:
            yield _block(top, low - top, "inactive", [])
        if buffer is not None:
            top = low + buffer.nbytes
            yield _block(low, buffer.nbytes, "active_allocated", _frames(plan, buffer))


def _block(offset: int, nbytes: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    asked = nbytes if state == "active_allocated" else 0
    sizes = {"address": BASE_ADDRESS + offset, "size": nbytes, "requested_size": asked}
    return {**sizes, "state": state, "frames": frames}
