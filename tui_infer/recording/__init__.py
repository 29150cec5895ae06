"""Recordings: what the engine said and what its user did, as a file, and the app playing on it."""
