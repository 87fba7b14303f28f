"""Weights that come from other programs, and go to them."""
