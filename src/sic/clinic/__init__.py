"""The clinic: a model's supports looked at, examined and changed, without training again."""

from sic.clinic.clinic import Clinic
from sic.clinic.findings import Finding
from sic.clinic.history import Record
from sic.clinic.look import Candidate, Reliance, SupportInfo
from sic.clinic.outcome import Flip, Outcome
from sic.supports import Edit

__all__ = ["Candidate", "Clinic", "Edit", "Finding", "Flip", "Outcome", "Record", "Reliance", "SupportInfo"]
