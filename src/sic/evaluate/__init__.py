"""Measuring models: one protocol per file."""
