"""Live panels that show what the engine does, step by step."""
