"""Image classification: models, data and recipes of the paper's experiments."""
