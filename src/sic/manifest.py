"""`manifest.json`: the checksums of a model's files, which show damage, and a signature of them, which shows tampering.

A checksum can be computed again by whoever changes a file. The signature (HMAC-SHA256) cannot, without its key.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sic.errors import SicError

MANIFEST = "manifest.json"
SHORTEST_KEY = 32
"""Bytes."""
Read = Callable[[str], bytes]
"""Returns the content of a file of the model by its name."""


def manifest(names: Sequence[str], read: Read, key: bytes | None = None) -> bytes:
    """The content of `manifest.json` for these files; signed, if there is a key."""
    files = {name: hashlib.sha256(read(name)).hexdigest() for name in sorted(names)}
    content: dict[str, Any] = {"files": files}
    if key is not None:
        content["signature"] = _signature(files, key)
    return json.dumps(content, indent=1).encode()


def check_manifest(folder: Path, read: Read, needed: Sequence[str], key: bytes | None = None) -> int:
    """Compare the files of a model with its manifest; returns their number.

    Raises SicError if one of them was changed, if a `needed` one is not listed, or if `key` did not sign them.
    """
    file = folder / MANIFEST
    try:
        content = json.loads(read(MANIFEST))
        files = {str(name): str(checksum) for name, checksum in content["files"].items()}
        signature = content.get("signature")
    except FileNotFoundError:
        raise SicError(f"{folder} has no {MANIFEST}: an older sic saved it, so changes cannot be detected.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SicError(f"{file} is damaged; copy the model directory again.") from None
    if key is not None:
        if signature is None:
            raise SicError(f"{file} is not signed; sign it with --sign where the model comes from.")
        if not isinstance(signature, str) or not hmac.compare_digest(
            signature.encode(), _signature(files, key).encode()
        ):
            raise SicError(f"{file} was signed with another key, or changed since; do not use this model.")
    for name in needed:
        if name not in files:
            raise SicError(f"{folder / name} is not listed in {MANIFEST}; do not use this model.")
    for name, checksum in files.items():
        try:
            same = hashlib.sha256(read(name)).hexdigest() == checksum
        except OSError:
            same = False
        if not same:
            raise SicError(f"{folder / name} is not the file that was saved; copy the model directory again.")
    return len(files)


def read_key(file: Path) -> bytes:
    """The secret that models are signed with."""
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise SicError(f"--key {file} cannot be read ({error.strerror}).") from None
    if len(key) < SHORTEST_KEY:
        raise SicError(
            f"--key {file} holds fewer than {SHORTEST_KEY} bytes; "
            "python -c 'import secrets; print(secrets.token_hex(32))' makes a key."
        )
    return key


def _signature(files: dict[str, str], key: bytes) -> str:
    return hmac.new(key, json.dumps(files, sort_keys=True).encode(), hashlib.sha256).hexdigest()
