"""What is drawn on the screen; none of it holds the truth."""
