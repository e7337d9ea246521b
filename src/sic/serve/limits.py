"""How much one request may ask for, and the refusal of more."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a server; a request beyond one of them is refused."""

    upload_bytes: int = 32 * 2**20
    """Of one request, all its images together."""
    pixels: int = 40_000_000
    """Of one image, before anything of it is decoded."""
    images: int = 16
    """In one request."""
    waiting: int = 16
    """Requests that are worked on or wait for it; the next one is told to come back."""
    seconds: float = 60.0
    """Until a request is given up, once for its upload and once for its work."""
    decoding: float = 10.0
    """Seconds until the decoding of one image is given up."""


class Refused(Exception):
    """A request that is not answered: HTTP status and one sentence that says why and what would work."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})
