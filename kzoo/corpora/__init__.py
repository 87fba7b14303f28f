"""From text files to batches: reading, windows, example files, masking, mixture, pipeline."""
