"""RSNA Pneumonia Detection Challenge, stage 2: chest X-rays with or without lung opacity, and boxes around it.

Only the training images were published with labels. As in the paper, a random 25 % of them, stratified by class, are
the test images. `sexes` checks whether the sexes are distributed evenly.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from sic.data.boxes import inside, size_of
from sic.data.dataset import Box, ImageData, Sample, Skipped, require_training_images, stratified
from sic.data.images import DICOM_SUFFIXES, SUFFIXES
from sic.data.table import Row, read_table
from sic.errors import SicError

NAME = "RSNA"
CLASSES = ("no opacity", "opacity")
OPACITY = 1
LABELS, IMAGES, PATIENTS = "stage_2_train_labels.csv", "stage_2_train_images", "patients.csv"
TEST_SHARE, SEED = 0.25, 0

Corners = tuple[float, float, float, float]


def is_rsna(root: Path) -> bool:
    return (root / LABELS).is_file() and (root / IMAGES).is_dir()


def open_rsna(root: Path) -> ImageData:
    """Read RSNA: DICOM files as published, or files with the same names in another format.

    The challenge calls the number of an image `patientId`. If `patients.csv` gives the patient of each image, all
    images of a patient are in one split.
    """
    if not is_rsna(root):
        raise SicError(f"{root} is not RSNA stage 2; give the folder with {LABELS} and {IMAGES}.")
    findings, problems = _findings(root)
    files = {
        file.stem: file
        for file in sorted((root / IMAGES).iterdir())
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    }
    skipped = [
        Skipped(f"{IMAGES}/{number}", f"{LABELS} lists it but it does not exist") for number in findings.keys() - files
    ]
    skipped += [Skipped(f"{IMAGES}/{files[number].name}", f"not in {LABELS}") for number in files.keys() - findings]
    skipped.sort(key=lambda entry: entry.file)
    patients = {number: row["patient"] for number, row in _patients(root).items()}
    samples = []
    for number, found in findings.items():
        if number not in files:
            continue
        id = f"{IMAGES}/{files[number].name}"
        if len(found.targets) > 1:
            skipped.append(Skipped(id, f"{LABELS} gives it both targets"))
            continue
        (label,) = found.targets
        drawn = [Box(OPACITY, *corners) for corners in found.corners]
        boxes, odd = inside(drawn, size_of(files[number]) if drawn else None, id)
        problems += odd
        samples.append(Sample(id, files[number], (label,), boxes, patients.get(number) or None))
    train, test = stratified(samples, TEST_SHARE, SEED)
    splits = {"train": train, "test": test} if test else {"train": train}
    name = root.resolve().name
    return require_training_images(ImageData(name, root, NAME, CLASSES, splits, skipped=skipped, problems=problems))


@dataclass
class _Finding:
    """The content of the rows of one image."""

    targets: set[int] = field(default_factory=set)
    corners: list[Corners] = field(default_factory=list)


def _findings(root: Path) -> tuple[dict[str, _Finding], list[str]]:
    """Findings by image number, and the problems of the rows."""
    table = read_table(root / LABELS)
    missing = {"patientid", "x", "y", "width", "height", "target"}.difference(table.columns)
    if missing:
        raise SicError(f"{table.path} has no column {', '.join(sorted(missing))}; it is not the file of the challenge.")
    found: dict[str, _Finding] = defaultdict(_Finding)
    problems = []
    for row in table.rows:
        where = f"{row.place} of {LABELS}"
        try:
            corners = _corners(row)
        except ValueError:
            problems.append(f"{where} has a box that is not four numbers; it is ignored.")
            continue
        if not row["patientid"] or row["target"] not in ("0", "1"):
            problems.append(f"{where} has no patientId, or a Target that is not 0 or 1; it is ignored.")
            continue
        finding = found[row["patientid"]]
        finding.targets.add(int(row["target"]))
        if corners is not None and row["target"] == "0":
            problems.append(f"{where} has a box although Target is 0; the box is ignored.")
        elif corners is not None:
            finding.corners.append(corners)
        elif row["target"] == "1":
            problems.append(f"{where} has no box although Target is 1; the image is used without one.")
    return dict(found), problems


def _corners(row: Row) -> Corners | None:
    words = [row[column] for column in ("x", "y", "width", "height")]
    if not any(words):
        return None
    left, top, width, height = map(float, words)
    return left, top, left + width, top + height


def _patients(root: Path) -> dict[str, Row]:
    """Rows of `patients.csv` by image number, with columns `patient` and `sex`; empty without the file."""
    if not (root / PATIENTS).is_file():
        return {}
    table = read_table(root / PATIENTS)
    if "patientid" not in table.columns:
        raise SicError(f"{table.path} has no column patientId, the number of the image.")
    sex = next((column for column in table.columns if column in ("sex", "patient_sex", "gender", "patient_gender")), "")
    patient = next((c for c in table.columns if "patient" in c and c not in ("patientid", sex)), "")
    return {row["patientid"]: Row(row.place, {"patient": row[patient], "sex": row[sex]}) for row in table.rows}


def sexes(data: ImageData) -> tuple[dict[str, dict[str, dict[str, int]]], list[str]]:
    """The number of images by split, sex and class, and a sentence if the sexes are distributed unevenly.

    From `patients.csv` or the DICOM files; empty if neither has it. Only counts are returned.
    """
    listed = {number: row["sex"][:1].upper() for number, row in _patients(data.root).items()}
    table: dict[str, dict[str, dict[str, int]]] = {}
    for split, samples in data.splits.items():
        counts = Counter((listed.get(s.path.stem) or _dicom_sex(s.path), s.labels[0]) for s in samples)
        known = sorted({sex for sex, _ in counts if sex})
        if known:
            table[split] = {sex: {name: counts[sex, label] for label, name in enumerate(CLASSES)} for sex in known}
    return table, _uneven(table)


def _dicom_sex(path: Path) -> str:
    if path.suffix.lower() not in DICOM_SUFFIXES:
        return ""
    try:
        from pydicom import dcmread

        return str(dcmread(path, specific_tags=["PatientSex"], stop_before_pixels=True).get("PatientSex") or "")[:1]
    except Exception:  # errors are reported when the pixels are read
        return ""


def _uneven(table: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """Compare two proportions; more than three pooled standard errors are significant."""
    women, all_ = (
        [sum(sum(by_class.values()) for sex, by_class in table[split].items() if sex in which) for split in table]
        for which in ("F", "FM")
    )
    if len(table) < 2 or not all(all_):
        return []
    pooled = sum(women) / sum(all_)
    error = math.sqrt(pooled * (1 - pooled) * sum(1 / number for number in all_))
    shares = [part / number for part, number in zip(women, all_, strict=True)]
    if max(shares) - min(shares) <= 3 * error:
        return []
    by_split = ", ".join(f"{share:.0%} of {split}" for split, share in zip(table, shares, strict=True))
    return [f"The sexes are distributed unevenly over the splits (women: {by_split})."]
