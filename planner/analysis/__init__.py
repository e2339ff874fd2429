"""Facts about a graph or a schedule."""
