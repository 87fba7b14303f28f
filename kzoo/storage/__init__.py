"""Paths that are URLs: object storage, which TensorFlow's `tf.io.gfile` reads and writes."""
