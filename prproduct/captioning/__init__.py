"""Image captioning (docs/captioning.md): data, the paper's model, training, decoding, metrics, reports.

data/                           captions, features and pictures as files; batches of them
world.py  scenes.py             a toy data set without files
dataset.py                      either of these, by the names that a user gives
encoder.py                      from a picture to features
model.py  layers.py  losses.py  the paper's captioner
configuration.py  training.py   its training, in two phases; command.py, reproduce.py: the commands
decoding/                       greedy, sampling, beam search
metrics/                        scores of captions, and CIDEr-D as a reward
inference.py  results.py        captions by a trained captioner; those of a split, with scores, in its folder
use/  ready/                    captions of a user's own pictures, by captioners that come with the package
report/  paper.py               pages on runs, beside the paper's numbers
input_files.py                  checks of files that others wrote
"""
