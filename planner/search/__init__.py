"""Strategies: which values stay, which are computed again and when."""

from __future__ import annotations

from planner.errors import UnknownStrategy
from planner.names import named, register
from planner.problem import Strategy
from planner.search.anneal import retention
from planner.search.auto import auto
from planner.search.binomial import binomial
from planner.search.chain import chain
from planner.search.chen import chen_budget, chen_sqrt
from planner.search.cuts import cuts
from planner.search.exact import exact
from planner.search.recursive import recursive

_STRATEGIES: dict[str, Strategy] = {
    "auto": auto,
    "chen-budget": chen_budget,
    "chen-sqrt": chen_sqrt,
    "recursive": recursive,
    "binomial": binomial,
    "chain": chain,
    "cuts": cuts,
    "retention": retention,
    "exact": exact,
}


def register_strategy(name: str, strategy: Strategy) -> None:
    """Make a strategy available by name; a later registration of the same name replaces it.

    Raises:
        PlannerError: the name is no text, or the strategy is not callable.

    >>> from functools import partial
    >>> register_strategy("chen-budget-fine", partial(chen_budget, sweeps=256))
    """
    register(name, strategy, _STRATEGIES, kind="strategy")


def strategy_names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_STRATEGIES)


def find_strategy(strategy: str | Strategy) -> tuple[str, Strategy]:
    """(name, callable) of a name or a callable.

    Raises:
        UnknownStrategy: lists the names there are.
    """
    return named(strategy, _STRATEGIES, kind="strategy", unknown=UnknownStrategy)
