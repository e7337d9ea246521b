"""Paths of images inside tar files, which contain the offset of the image, so that nothing is unpacked."""

import re
from pathlib import Path

PLACE = re.compile(r"@\d+\+\d+")


def member_path(shard: Path, name: str, offset: int, size: int) -> Path:
    """The path of a member of a tar file.

    >>> member_path(Path("a.tar"), "x/1.jpg", 512, 99).as_posix()
    'a.tar/@512+99/1.jpg'
    """
    return shard / f"@{offset}+{size}" / Path(name).name


def is_member(path: Path) -> bool:
    """Whether a path was made by `member_path`."""
    return PLACE.fullmatch(path.parent.name) is not None and path.parent.parent.suffix == ".tar"


def member_bytes(path: Path) -> bytes | None:
    """The content of a member; None if the path is that of a file."""
    if not is_member(path):
        return None
    offset, size = map(int, path.parent.name[1:].split("+"))
    with path.parent.parent.open("rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) < size:
        raise OSError("the tar file is truncated")
    return content
