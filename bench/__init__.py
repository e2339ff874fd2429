"""What the planner finds and how long it takes, beside the original and other peers: `python -m bench --help`, and
README.md here.
"""
