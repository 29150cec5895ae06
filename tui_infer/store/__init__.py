"""Chats on the disk: a SQLite database that several app processes may share. Plain data, no Textual."""
