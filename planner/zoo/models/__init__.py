"""One module a model, or a family of models; `planner.zoo` imports each when it is asked for."""
