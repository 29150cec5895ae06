"""The chat side: session bar, panes, transcripts, prompts."""
