"""The clinic: a model's supports looked at, examined and changed, without training again."""

from sic.clinic.clinic import Clinic
from sic.clinic.edits import Flip, Outcome, Record
from sic.clinic.examined import Candidate, Reliance, SupportInfo
from sic.clinic.findings import Finding
from sic.supports import Edit

__all__ = ["Candidate", "Clinic", "Edit", "Finding", "Flip", "Outcome", "Record", "Reliance", "SupportInfo"]
