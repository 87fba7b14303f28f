"""The stated formula against a count of the products that a model would do."""

import math

from kzoo.training.flops import peak_flops_per_second, training_flops


def test_three_products_for_every_kernel_and_the_head_for_targets_only():
    batch, length, targets = 8, 128, 160
    width, heads, ffn, table, output, vocabulary, layers = 256, 4, 1024, 64, 768, 8000, 3
    rows = batch * length
    products = [(rows, table, width), (targets, width, output), (targets, output, vocabulary)]
    for _ in range(layers):
        products += [(rows, width, width)] * 4 + [(rows, width, ffn), (rows, ffn, width)]
        products += [(length, width // heads, length)] * (batch * heads)  # queries with keys
        products += [(length, length, width // heads)] * (batch * heads)  # with values
    assert training_flops(
        num_tokens=rows,
        num_targets=targets,
        sequence_length=length,
        num_layers=layers,
        hidden_dim=width,
        intermediate_dim=ffn,
        embedding_dim=table,
        output_embedding_dim=output,
        vocabulary_size=vocabulary,
    ) == 3 * sum(2 * math.prod(shape) for shape in products)


def test_an_embedding_as_wide_as_the_layers_has_no_projection():
    sizes = dict.fromkeys(
        ("num_tokens", "sequence_length", "hidden_dim", "embedding_dim", "vocabulary_size"), 1
    )
    sizes.update(num_targets=0, num_layers=0, intermediate_dim=1, output_embedding_dim=1)
    assert training_flops(**sizes) == 0
    assert training_flops(**{**sizes, "embedding_dim": 2}) == 12


def test_the_peak_is_measured_once():
    peak = peak_flops_per_second()
    assert peak > 1e8
    assert peak_flops_per_second() == peak
