"""The data sets: found or fetched, verified, held as one tensor, split, shuffled and augmented by keys."""

from prproduct.classification.data.batches import Batch, EvaluationBatches, TrainingBatches
from prproduct.classification.data.dataset import Dataset, load
from prproduct.classification.data.splits import Split, split

__all__ = ["Batch", "Dataset", "EvaluationBatches", "Split", "TrainingBatches", "load", "split"]
