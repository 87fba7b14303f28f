"""Strategies, step, optimizer, loop, checkpoints, metrics."""
