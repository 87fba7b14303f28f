"""RemBERT's forward pass in float64 NumPy, from its description alone."""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x):
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def gelu_approximate(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


class NumPyRemBert:
    """The same function as a `RemBertMaskedLM`, of its variables by path."""

    def __init__(self, model):
        backbone = model.backbone
        self.weights = {v.path: np.asarray(v, np.float64) for v in model.variables}
        self.num_layers = backbone.num_layers
        self.num_heads = backbone.num_heads
        self.epsilon = backbone.layer_norm_epsilon
        self.pooler = backbone.pooler
        self.gelu = {"gelu": gelu, "gelu_approximate": gelu_approximate}[backbone.activation]

    def dense(self, name, x):
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def layer_norm(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.epsilon)
        return centred / deviation * self.weights[f"{name}/gamma"] + self.weights[f"{name}/beta"]

    def embed(self, token_ids, segment_ids):
        summed = (
            self.weights["embeddings/token_embedding/embeddings"][token_ids]
            + self.weights["embeddings/segment_embedding/embeddings"][segment_ids]
            + self.weights["embeddings/position_embedding/embeddings"][: token_ids.shape[1]]
        )
        embedded = self.layer_norm("embeddings/layer_norm", summed)
        projected = "embeddings/projection/kernel" in self.weights
        return self.dense("embeddings/projection", embedded) if projected else embedded

    def attention(self, name, x, padding_mask):
        width = x.shape[-1]
        head_dim = width // self.num_heads
        gathered = np.empty_like(x)
        for head in range(self.num_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            query, key, value = (
                self.dense(f"{name}/{part}", x)[..., columns] for part in ("query", "key", "value")
            )
            for row in range(len(x)):
                scores = query[row] @ key[row].T / math.sqrt(head_dim)
                keep = padding_mask[row].astype(bool)
                if keep.any():
                    scores[:, ~keep] = -np.inf
                else:
                    scores[:] = 0
                gathered[row, :, columns] = softmax(scores) @ value[row]
        return self.dense(f"{name}/output", gathered)

    def block(self, name, x, padding_mask):
        attended = self.attention(f"{name}/attention", x, padding_mask)
        x = self.layer_norm(f"{name}/attention_layer_norm", x + attended)
        transformed = self.dense(f"{name}/output", self.gelu(self.dense(f"{name}/intermediate", x)))
        return self.layer_norm(f"{name}/output_layer_norm", x + transformed)

    def hidden_states(self, token_ids, padding_mask, segment_ids):
        states = [self.embed(token_ids, segment_ids)]
        for index in range(self.num_layers):
            states.append(self.block(f"encoder_block_{index}", states[-1], padding_mask))
        return states

    def pool(self, hidden, padding_mask):
        if self.pooler == "dense":
            return np.tanh(self.dense("pooler/dense", hidden[:, 0]))
        if self.pooler == "first_token":
            return hidden[:, 0]
        weights = padding_mask[..., None] / padding_mask.sum(axis=1)[:, None, None]
        return (hidden * weights).sum(axis=1)

    def logits(self, hidden, mask_positions):
        gathered = np.take_along_axis(hidden, mask_positions[..., None], axis=1)
        transformed = self.gelu(self.dense("masked_lm_head/dense", gathered))
        transformed = self.layer_norm("masked_lm_head/layer_norm", transformed)
        table = self.weights.get("masked_lm_head/table")
        if table is None:
            table = self.weights["embeddings/token_embedding/embeddings"]
        return transformed @ table.T + self.weights["masked_lm_head/bias"]
