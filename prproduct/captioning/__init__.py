"""Image captioning: metrics, and what training and decoding need."""
