"""A model's step as one graph of ATen calls, captured on fake tensors: nothing is allocated and nothing is run."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from planner.errors import GraphError, PlannerError
from planner.torch import unstable
from planner.torch.lines import is_users, quoted
from planner.torch.meanings import Constant, Gradient, Parameter, Result, Source, Tangent
from planner.torch.root import Call, Results, Root
from planner.torch.strided import Forward

#: Hooks of these modules are part of the computation, and are captured with it.
_COMPUTES: Final = ("torch.nn.utils", "torch.ao")


@final
@dataclass(frozen=True)
class Capture:
    """Forward and backward of one call.

    Args:
        graph: functional ATen calls; every node knows its fake value.
        sources: what each placeholder is.
        results: what the graph hands out, and what that is; in the order of the graph.
        shape: the form of the model's own results, without the tensors.
        first_name: the first path of a parameter that has several.
    """

    graph: torch.fx.Graph
    sources: Mapping[torch.fx.Node, Source]
    results: tuple[tuple[torch.fx.Node, Result], ...]
    shape: Results
    first_name: Mapping[str, str]


def capture(root: Root, call: Call) -> Capture:
    """The joint graph of a call in the modes that the caller is in: training flags, autocast, what requires gradients.

    Raises:
        GraphError: the model asks for values, changes its inputs, or does what no graph of tensors can say; names the
            line of the model and the way out.
        PlannerError: nothing requires a gradient, or an inner hook would not run in a planned step.
    """
    if not torch.is_grad_enabled():
        raise PlannerError("gradients are switched off here: plan a step outside no_grad and inference_mode")
    if not any(tensor.requires_grad for tensor in (*root.parameters(), *call.tensors)):
        raise PlannerError("no parameter and no input requires a gradient: there is no backward pass to plan")
    _refuse_hooks(root)
    fakes = FakeTensorMode()
    with unstable.unwatched(), fake_state(root, fakes), torch.random.fork_rng(devices=[]):
        tensors = [fake(tensor, fakes) for tensor in call.tensors]
        try:
            graph, shape, differentiable = _traced(root, call, tensors, fakes)
        except _ASKS_FOR_VALUES:
            with unstable.said_to_compile():
                graph, shape, differentiable = _explained(root, call, tensors, fakes)
        except PlannerError:
            raise
        except Exception as error:
            raise _refusal(error) from error
    names: dict[int, str] = {}
    named = [(path, id(parameter)) for path, parameter in root.named_parameters(remove_duplicate=False)]
    first_name = {path: names.setdefault(identity, path) for path, identity in named}
    found = _read(graph, shape, first_name)
    reached = {source.output for source in found.sources.values() if isinstance(source, Tangent)}
    for k in sorted(differentiable - reached):
        what = f"result {k} is an input, a parameter, or on the storage of another result"
        raise GraphError(f"{what}, and a gradient could not come back to it: return a copy (clone)")
    return found


_Traced = tuple[Any, Results, frozenset[int]]
_ASKS_FOR_VALUES: Final = (
    torch._subclasses.fake_tensor.DataDependentOutputException,
    torch._subclasses.fake_tensor.DynamicOutputShapeException,
    torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode,
)


def _explained(root: Root, call: Call, tensors: list[Any], fakes: FakeTensorMode) -> _Traced:
    try:
        return _traced(root, call, tensors, fakes)
    except PlannerError:
        raise
    except Exception as error:
        raise _refusal(error) from error


def _traced(root: Root, call: Call, tensors: list[Any], fakes: FakeTensorMode) -> _Traced:
    shapes: list[Results] = []

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.root = root

        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            args, kwargs = call.arguments(given)
            before = _attributes(root)
            with Forward():
                found = Results.of(self.root(*args, **kwargs))
            _refuse_new_attributes(root, before)
            shapes.append(found)
            return found.tensors

    with _names_of_modules(root):
        graph = unstable.joint_graph(Flat(), tensors, fakes)
    shape = shapes[-1]
    differentiable = frozenset(k for k, tensor in enumerate(shape.tensors) if tensor.requires_grad)
    return graph, Results((), shape.fixed, shape.spec), differentiable


Attributes = dict[tuple[int, str, str], Any]


def _attributes(root: Root) -> Attributes:
    """Every tensor that a module has, by its place."""
    tables = ("_buffers", "_parameters", "__dict__")
    return {
        (id(module), table, name): value
        for module in root.modules()
        for table in tables
        for name, value in getattr(module, table).items()
        if isinstance(value, torch.Tensor)
    }


def _refuse_new_attributes(root: Root, before: Attributes) -> None:
    """Refuse a forward that binds a tensor to a module: it would do so at capture and in no step."""
    paths = {id(module): path for path, module in root.model.named_modules()}
    modules = {id(module): module for module in root.modules()}
    for (module, table, name), value in _attributes(root).items():
        old = before.get((module, table, name))
        if old is not value:
            if old is None:
                del getattr(modules[module], table)[name]
            else:
                getattr(modules[module], table)[name] = old
            if _is_computed(modules[module], name):
                continue
            where = ".".join(part for part in (paths.get(module), name) if part)
            fix = "write into a buffer (copy_), or return the tensor"
            raise GraphError(f"the forward binds a tensor to {where!r}, which no planned step would do: {fix}")


def _is_computed(module: torch.nn.Module, name: str) -> bool:
    """True for a weight that a hook of PyTorch's own makes anew before each forward, as weight_norm does."""
    hooks = module._forward_pre_hooks.values()
    return any(type(hook).__module__.startswith(_COMPUTES) and getattr(hook, "name", None) == name for hook in hooks)


def fake(tensor: torch.Tensor, fakes: FakeTensorMode) -> Any:
    """A tensor of the same shape, strides and flags without storage, and without a gradient."""
    if tensor.layout is not torch.strided:
        raise GraphError(f"a tensor of layout {tensor.layout} cannot be planned: make it dense (to_dense())")
    if tensor.device.type != "meta":
        made = fakes.from_tensor(tensor, static_shapes=True)
    else:
        with fakes:  # a model without storage is meant for a host: "meta" itself takes other ops than any device
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        made.requires_grad_(tensor.requires_grad)
    if made.is_leaf:
        made.grad = None
    return made


@contextmanager
def fake_state(root: Root, fakes: FakeTensorMode) -> Iterator[None]:
    """Parameters and buffers are fake inside, those of several names once; put back afterwards."""
    saved: list[tuple[dict[str, Any], str, Any]] = []
    twins: dict[int, Any] = {}
    try:
        for module in root.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in list(table.items()):
                    if tensor is None:
                        continue
                    if id(tensor) not in twins:
                        twin = fake(tensor, fakes)
                        if isinstance(tensor, torch.nn.Parameter) and not isinstance(twin, torch.nn.Parameter):
                            twin = torch.nn.Parameter(twin, tensor.requires_grad)
                        twins[id(tensor)] = twin
                    saved.append((table, name, tensor))
                    table[name] = twins[id(tensor)]
        yield
    finally:
        for table, name, tensor in saved:
            table[name] = tensor


@contextmanager
def _names_of_modules(root: Root) -> Iterator[None]:
    """Every op that is captured inside knows the module that made it."""
    handles = []
    for path, module in root.named_modules():
        opened: list[ExitStack] = []

        def enter(*_: Any, path: str = path, opened: list[ExitStack] = opened) -> None:
            stack = ExitStack()
            stack.enter_context(unstable.annotated(module=path))
            opened.append(stack)

        def leave(*_: Any, opened: list[ExitStack] = opened) -> None:
            opened.pop().close()

        handles.append(module.register_forward_pre_hook(enter, prepend=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_hooks(root: Root) -> None:
    """Warn of the user's own hooks inside the model: they run once, at capture, and never in a planned step."""
    for path, module in root.model.named_modules():
        tables = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        for hook in (hook for table in tables for hook in table.values()):
            home = getattr(hook, "__module__", None) or type(hook).__module__
            if path and not str(home).startswith(_COMPUTES):
                fix = "return what it should see as an output, or remove it"
                what = f"the hook on module {path!r} runs when the step is planned, not when it is run: {fix}"
                warnings.warn(what, stacklevel=4)
                return


def _read(module: torch.fx.GraphModule, shape: Results, first_name: Mapping[str, str]) -> Capture:
    graph = module.graph
    sources: dict[torch.fx.Node, Source] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            sources[node] = _unprefixed(unstable.source_of(node))
        elif node.op == "get_attr":
            tensor: Any = module
            for part in str(node.target).split("."):
                tensor = getattr(tensor, part)
            if not isinstance(tensor, torch.Tensor):
                raise GraphError(f"the model has control flow of its own ({node.name}): write it as plain Python")
            node.meta.setdefault("val", tensor)
            sources[node] = Constant(tensor)
    last = next(node for node in graph.nodes if node.op == "output")
    made = last.args[0]
    results = [
        (node, _unprefixed(unstable.result_of(described)))
        for node, described in zip(tree_leaves(made), last.meta["desc"], strict=True)
        if isinstance(node, torch.fx.Node)
    ]
    return Capture(graph, sources, tuple(results), shape, first_name)


def _unprefixed(meaning: Any) -> Any:
    """A meaning with the path as the root has it, not the module that was captured."""
    if hasattr(meaning, "path"):
        return type(meaning)(meaning.path.removeprefix("root."))
    if isinstance(meaning, Gradient) and isinstance(meaning.of, Parameter):
        return Gradient(_unprefixed(meaning.of))
    return type(meaning)(_unprefixed(meaning.buffer)) if hasattr(meaning, "buffer") else meaning


def _refusal(error: Exception) -> GraphError:
    """What stopped the capture, at which line of the user's, and the way out."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = quoted(f"{frames[-1].filename}:{frames[-1].lineno}") if frames else "the model"
    first = str(error).strip().split("\n")[0] or type(error).__name__
    if "convert all Tensors to FakeTensors" in first:
        fix = "keep it with register_buffer, or give it as an input"
        return GraphError(f"{where} reads a tensor that is no parameter, no buffer and no input: {fix}")
    if "SparseTensorImpl" in first:
        return GraphError(f"{where} makes a sparse tensor, which cannot be planned: make it dense (sparse=False)")
    if isinstance(error, _ASKS_FOR_VALUES):
        fix = "write it without asking for values (torch.where, a mask), or keep it out of the planned module"
        return GraphError(f"{where} asks for the value of a tensor ({first}): {fix}")
    return GraphError(f"{where} cannot be captured: {first}; keep this part out of the planned module")
