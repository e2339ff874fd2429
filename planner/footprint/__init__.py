"""What a training step holds: estimated, inspected, measured, and what to do where it is too much."""
