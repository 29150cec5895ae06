"""Triton kernels. Only this package imports triton when loaded; load its modules where they are needed."""
