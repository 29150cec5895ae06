"""The app: several chats at once, and the engine's insides beside them. Never imports torch."""
