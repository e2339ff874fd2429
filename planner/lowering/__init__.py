"""From a model to a networkx DAG, and from that to the program."""
