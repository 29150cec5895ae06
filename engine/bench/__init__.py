"""Measured runs of the real engine: decode, profile, launch, prefill, throughput."""
