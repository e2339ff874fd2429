"""Plans that make training fit in memory.

    import planner
    from planner import zoo

    graph = zoo.resnet(1001, batch=32)               # a networkx DAG: forward, backward, update
    plan = planner.optimize(graph, budget="7GB")
    print(plan.report)                               # the answer, then no recomputation beside this plan
    plan.save("plan.json")

Everything is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import allocate as allocate
    from planner.api import curve as curve
    from planner.api import explain as explain
    from planner.api import load as load
    from planner.api import optimize as optimize
    from planner.api import simulate as simulate
    from planner.errors import GraphError as GraphError
    from planner.errors import InfeasibleBudget as InfeasibleBudget
    from planner.errors import KernelCacheError as KernelCacheError
    from planner.errors import OutputError as OutputError
    from planner.errors import PlanFileError as PlanFileError
    from planner.errors import PlannerError as PlannerError
    from planner.errors import ScheduleError as ScheduleError
    from planner.errors import TimeLimit as TimeLimit
    from planner.errors import UnitError as UnitError
    from planner.errors import UnknownAllocator as UnknownAllocator
    from planner.errors import UnknownStrategy as UnknownStrategy
    from planner.errors import VerificationError as VerificationError
    from planner.footprint.estimate import Footprint as Footprint
    from planner.footprint.estimate import estimate as estimate
    from planner.graph import Graph as Graph
    from planner.graph import Op as Op
    from planner.graph import Tensor as Tensor
    from planner.lowering.differentiate import differentiate as differentiate
    from planner.lowering.onnx.importer import from_onnx as from_onnx
    from planner.lowering.schema import lower as lower
    from planner.memory import Allocation as Allocation
    from planner.memory import Buffer as Buffer
    from planner.memory import MemoryModel as MemoryModel
    from planner.packing import register_allocator as register_allocator
    from planner.plan import Plan as Plan
    from planner.planning.curve import Curve as Curve
    from planner.planning.curve import load_curve as load_curve
    from planner.problem import Problem as Problem
    from planner.problem import Proposal as Proposal
    from planner.report import Report as Report
    from planner.schedule import Compute as Compute
    from planner.schedule import Free as Free
    from planner.schedule import Schedule as Schedule
    from planner.search import register_strategy as register_strategy
    from planner.simulator import Trace as Trace
    from planner.torch.from_module import from_torch as from_torch
    from planner.training_step import TrainingStep as TrainingStep

_HOMES = {
    "api": ("allocate", "curve", "explain", "load", "optimize", "simulate"),
    "planning.curve": ("Curve", "load_curve"),
    "errors": (
        "GraphError", "InfeasibleBudget", "KernelCacheError", "OutputError", "PlanFileError", "PlannerError",
            "ScheduleError",
        "TimeLimit", "UnitError", "UnknownAllocator", "UnknownStrategy", "VerificationError",
    ),
    "footprint.estimate": ("Footprint", "estimate"),
    "graph": ("Graph", "Op", "Tensor"),
    "lowering.differentiate": ("differentiate",),
    "lowering.onnx.importer": ("from_onnx",),
    "lowering.schema": ("lower",),
    "memory": ("Allocation", "Buffer", "MemoryModel"),
    "packing": ("register_allocator",),
    "plan": ("Plan",),
    "problem": ("Problem", "Proposal"),
    "report": ("Report",),
    "schedule": ("Compute", "Free", "Schedule"),
    "search": ("register_strategy",),
    "simulator": ("Trace",),
    "torch.from_module": ("from_torch",),
    "training_step": ("TrainingStep",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
#: What needs PyTorch is not among them: a star import works without it.
__all__ = ["__version__", "zoo", *sorted(name for name in _HOME_OF if not _HOME_OF[name].startswith("torch."))]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"planner.{_HOME_OF[name]}"), name)
    if name in {"torch", "zoo"}:
        return import_module(f"planner.{name}")
    raise AttributeError(f"module 'planner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
