"""The clinic: inspect and edit the supports of a trained model, without training again."""

from sic.clinic.clinic import Clinic
from sic.clinic.diagnostics import Finding
from sic.clinic.edits import Flip, Outcome, Record
from sic.clinic.examined import Candidate, Reliance, SupportSummary
from sic.supports import Edit

__all__ = ["Candidate", "Clinic", "Edit", "Finding", "Flip", "Outcome", "Record", "Reliance", "SupportSummary"]
