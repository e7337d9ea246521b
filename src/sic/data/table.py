"""Read tables: CSV with commas, semicolons or tabs, with or without a BOM, and Parquet."""

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sic.errors import SicError

SUFFIXES = frozenset([".csv", ".tsv", ".parquet"])


@dataclass(frozen=True)
class Row:
    """One row: text by column name; a missing cell is empty."""

    place: str
    """`Line 7`, or `Row 6` in a file without lines."""
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells.get(column, "")


@dataclass(frozen=True)
class Table:
    """`columns` are lower-case, with `_` for spaces and hyphens."""

    path: Path
    columns: tuple[str, ...]
    rows: list[Row]


def read_table(path: Path) -> Table:
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)


def columns_of(path: Path) -> tuple[str, ...]:
    """The columns of a table; empty if the file cannot be read as a table."""
    try:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]

            return tuple(map(_column, pyarrow.parquet.read_schema(path).names))
        with path.open("rb") as file:
            text = _decode(file.read(1 << 16), errors="replace")
        return next((tuple(map(_column, cells)) for _, cells in _lines(text)), ())
    except (ImportError, OSError, ValueError, csv.Error):
        return ()


def _read_csv(path: Path) -> Table:
    try:
        text = _decode(path.read_bytes())
    except UnicodeDecodeError:
        raise SicError(f"{path} is not UTF-8 text; save it as CSV (UTF-8).") from None
    try:
        (_, header), *body = list(_lines(text)) or [(0, [])]
    except csv.Error as error:
        raise SicError(f"{path} cannot be read as a table ({error}).") from None
    columns = tuple(map(_column, header))
    rows = [
        Row(f"Line {line}", dict(zip(columns, map(str.strip, cells), strict=False)))
        for line, cells in body
        if any(map(str.strip, cells))
    ]
    return Table(path, columns, rows)


def _decode(content: bytes, errors: str = "strict") -> str:
    """Excel's "Unicode text" is UTF-16, its "CSV UTF-8" starts with a BOM."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig", errors)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Numbered lines, split at the most frequent of comma, semicolon and tab in the first line."""
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    for cells in reader:
        yield reader.line_num, cells


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise SicError(f"{path} is Parquet, which needs pyarrow: pip install 'sic[parquet]'.") from None
    try:
        content = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise SicError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}).") from None
    columns = tuple(map(_column, content.column_names))
    rows = [
        Row(f"Row {number}", dict(zip(columns, map(_cell, values), strict=True)))
        for number, values in enumerate(zip(*(column.to_pylist() for column in content.columns), strict=True), 1)
    ]
    return Table(path, columns, rows)


def _column(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _cell(value: Any) -> str:
    """A Parquet value as text: lists joined by `|`, whole numbers without a decimal point."""
    if isinstance(value, list):
        return "|".join(map(_cell, value))
    if value is None or value != value:  # NaN is how pandas writes an empty cell
        return ""
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value).strip()
