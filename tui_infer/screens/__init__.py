"""The screens of the app, one ``.tcss`` file beside each."""
