"""Rules of the user's, which win over any search: what must stay, and what must be computed again."""

from __future__ import annotations

from planner.policy.patterns import PRESETS as PRESETS
from planner.policy.patterns import rule_list as rule_list
from planner.policy.policy import Policy as Policy
from planner.policy.resolve import policy_of as policy_of
