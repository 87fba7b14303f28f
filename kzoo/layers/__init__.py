"""Keras layers: factorized embeddings, encoder block, masked-LM head, vocabulary loss."""
