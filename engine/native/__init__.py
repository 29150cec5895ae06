"""The decoder on a CPU in C: compiled where it is used, for the processor that is there."""
