"""Executors: a plan run on real bytes."""
