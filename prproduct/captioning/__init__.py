"""Image captioning (docs/captioning.md): data, the paper's model, training, decoding, metrics, reports."""
