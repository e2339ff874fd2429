"""The user's policy wins over any search: its patterns say which ops to save and which to recompute."""

from __future__ import annotations

from planner.patterns import PRESETS as PRESETS
from planner.patterns import rule_list as rule_list
from planner.policy.policy import Policy as Policy
from planner.policy.resolve import policy_of as policy_of
