"""A command that runs beside us: its process tree, its signals, and what its Pythons report."""
