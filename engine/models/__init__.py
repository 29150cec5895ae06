"""Models: finding them, converting GGUF, loading weights, and the two ways to run them."""
