"""Line mode: a chat without a screen, for screen readers and pipes. Imports neither torch nor textual."""
