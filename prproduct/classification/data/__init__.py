"""Image data sets: found or downloaded, verified, held as tensors, split, and batched reproducibly."""

from prproduct.classification.data.batches import Batch, EvaluationBatches, TrainingBatches
from prproduct.classification.data.dataset import Dataset, Split, load, split

__all__ = ["Batch", "Dataset", "EvaluationBatches", "Split", "TrainingBatches", "load", "split"]
