"""Data for captioners: vocabularies, prepared captions, and the features of images in the usual file formats."""
