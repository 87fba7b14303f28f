"""Backbone, masked language model, and the table of presets."""
