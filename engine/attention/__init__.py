"""Paged attention: one interface, several back ends.

A model hands queries, keys and values of packed tokens to ``AttentionBackend.attend``; the back end
appends keys and values to the paged cache and attends over each sequence's own pages.
"""
