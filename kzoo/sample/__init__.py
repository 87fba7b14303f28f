"""A small parallel corpus in many languages, written for this project."""
