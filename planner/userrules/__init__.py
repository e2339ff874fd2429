"""Rules of the user's, which win over any search: what must stay, and what must be computed again."""

from __future__ import annotations

from planner.userrules.patterns import PRESETS as PRESETS
from planner.userrules.patterns import rule_list as rule_list
from planner.userrules.resolution import rules_of as rules_of
from planner.userrules.rules import Rules as Rules
