"""Rules of the user's, which win over any search: what must stay, and what must be computed again."""

from __future__ import annotations

from planner.policy.patterns import PRESETS as PRESETS
from planner.policy.patterns import rule_list as rule_list
from planner.policy.policy import Rules as Rules
from planner.policy.resolve import rules_of as rules_of
