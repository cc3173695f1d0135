"""What a trained captioner is for: captions of a person's own pictures, or of a whole split."""
