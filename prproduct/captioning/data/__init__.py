"""What captions are learned from: words, references and the features of images, in the files that people have."""
