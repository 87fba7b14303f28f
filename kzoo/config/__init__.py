"""The schema of a run, and how YAML files and `--set` become one checked object."""
