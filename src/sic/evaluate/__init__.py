"""Evaluation of models and their explanations: one protocol per file."""
