"""RSNA stage 2, in miniature: the challenge's CSV, PNG or DICOM files, and patients where they are known."""

from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

import sic.data
from sic.data.dataset import Box, ImageData, Skipped
from sic.data.layouts.rsna import open_rsna, sexes
from sic.errors import SicError

ILL, HEALTHY = 40, 120


def numbers() -> list[str]:
    return [f"{i:04x}-aa" for i in range(ILL + HEALTHY)]


def rows() -> list[str]:
    boxed = [f"{number},10.0,20.0,30.0,40.5,1" for number in numbers()[:ILL]]
    return boxed + [f"{number},,,,,0" for number in numbers()[ILL:]]


def label(root: Path, *lines: str) -> None:
    (root / "stage_2_train_labels.csv").write_text("\n".join(["patientId,x,y,width,height,Target", *lines, ""]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    label(tmp_path, *rows())
    (tmp_path / "stage_2_train_images").mkdir()
    for number in numbers():
        Image.new("L", (64, 64)).save(tmp_path / "stage_2_train_images" / f"{number}.png")
    return tmp_path


def counts(data: ImageData) -> dict[str, dict[int, int]]:
    return {split: dict(Counter(sample.labels[0] for sample in samples)) for split, samples in data.splits.items()}


def test_a_quarter_of_each_class_is_for_testing(root: Path) -> None:
    data = sic.data.open(root)
    assert data.layout == "RSNA" and data.task == "single" and data.classes == ("no opacity", "opacity")
    assert counts(data) == {"train": {0: 90, 1: 30}, "test": {0: 30, 1: 10}}
    assert data == sic.data.open(root)
    assert data.skipped == [] and data.problems == []
    for sample in data.splits["train"] + data.splits["test"]:
        assert sample.boxes == ((Box(1, 10, 20, 40, 60.5),) if sample.labels == (1,) else ())
        assert sample.group is None


def test_several_rows_are_several_boxes(root: Path) -> None:
    label(root, *rows(), f"{numbers()[0]},1.0,2.0,3.0,4.0,1")
    (twice,) = (s for samples in open_rsna(root).splits.values() for s in samples if len(s.boxes) == 2)
    assert twice.path.stem == numbers()[0] and twice.boxes[1] == Box(1, 1, 2, 4, 6)


def test_patients_are_not_split_apart(root: Path) -> None:
    patients = [f"{number},{i % 50:08d}" for i, number in enumerate(numbers())]
    (root / "patients.csv").write_text("\n".join(["patientId,nih_patient", *patients]))
    data = open_rsna(root)
    train, test = ({sample.group for sample in data.splits[split]} for split in ("train", "test"))
    assert not train & test and len(train | test) == 50
    assert counts(data)["test"][1] == 10
    assert counts(data)["test"][0] == pytest.approx(30, abs=2)


def test_all_problems_are_listed(root: Path) -> None:
    first, second, third, fourth, fifth, *others = rows()
    bad = ["gone,,,,,0", ",1,1,1,1,1", "0000-aa,,,,,2", "0002-aa,here,1,1,1,1"]
    label(
        root,
        first.replace("30.0", "300.0"),
        second.replace(",1", ",0"),
        third,
        fourth.replace("10.0,20.0,30.0,40.5", ",,,"),
        fifth,
        fifth.replace("10.0,20.0,30.0,40.5,1", ",,,,0"),
        *others[:-1],
        *bad,
    )
    data = open_rsna(root)
    assert data.skipped == [
        Skipped("stage_2_train_images/009f-aa.png", "not in stage_2_train_labels.csv"),
        Skipped("stage_2_train_images/gone", "stage_2_train_labels.csv lists it but it does not exist"),
        Skipped("stage_2_train_images/0004-aa.png", "stage_2_train_labels.csv gives it both targets"),
    ]
    line = "of stage_2_train_labels.csv has"
    assert data.problems == [
        f"Line 3 {line} a box although Target is 0; the box is ignored.",
        f"Line 5 {line} no box although Target is 1; the image is used without one.",
        f"Line 163 {line} no patientId, or a Target that is not 0 or 1; it is ignored.",
        f"Line 164 {line} no patientId, or a Target that is not 0 or 1; it is ignored.",
        f"Line 165 {line} a box that is not four numbers; it is ignored.",
        "The box 10, 20, 310, 60.5 of stage_2_train_images/0000-aa.png extends beyond the image (64×64) and "
        "is clipped.",
    ]


def test_columns_and_folders_must_be_there(root: Path) -> None:
    (root / "stage_2_train_labels.csv").write_text("id,label\n1,2\n")
    with pytest.raises(SicError, match="has no column height, patientid, target"):
        open_rsna(root)
    with pytest.raises(SicError, match="is not RSNA stage 2"):
        open_rsna(root / "stage_2_train_images")


def test_sexes_from_the_table(root: Path) -> None:
    table = ["patientId,Patient Gender", *(f"{number},{'FM'[i % 2]}" for i, number in enumerate(numbers()))]
    (root / "patients.csv").write_text("\n".join(table))
    data = open_rsna(root)
    found, problems = sexes(data)
    assert all(sample.group is None for sample in data.splits["train"])
    for split, samples in data.splits.items():
        seen = Counter(("FM"[int(s.path.stem[:4], 16) % 2], data.classes[s.labels[0]]) for s in samples)
        assert found[split] == {sex: {name: seen[sex, name] for name in data.classes} for sex in "FM"}
    assert problems == []


def test_uneven_sexes_are_a_problem(root: Path) -> None:
    test = {sample.path.stem for sample in open_rsna(root).splits["test"]}
    table = ["patientId,sex", *(f"{number},{'female' if number in test else 'male'}" for number in numbers())]
    (root / "patients.csv").write_text("\n".join(table))
    (said,) = sexes(open_rsna(root))[1]
    assert "women: 0% of train, 100% of test" in said


def test_nothing_is_said_of_sexes_that_are_not_known(root: Path) -> None:
    assert sexes(open_rsna(root)) == ({}, [])


def test_dicom_files_as_published(root: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    for i, number in enumerate(numbers()):
        dataset = pydicom.Dataset()
        dataset.file_meta = pydicom.dataset.FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        dataset.SOPClassUID, dataset.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, f"1.2.{i}"
        dataset.PatientSex, dataset.Rows, dataset.Columns = "MF"[i % 2], 1024, 1024
        dataset.save_as(root / "stage_2_train_images" / f"{number}.dcm", enforce_file_format=True)
        (root / "stage_2_train_images" / f"{number}.png").unlink()
    label(root, "0000-aa,1000,1000,100,100,1", *rows()[1:])
    data = open_rsna(root)
    assert counts(data) == {"train": {0: 90, 1: 30}, "test": {0: 30, 1: 10}}
    assert [said.partition("the image ")[2] for said in data.problems] == ["(1024×1024) and is clipped."]
    found, problems = sexes(data)
    assert sum(n for by_sex in found.values() for n in by_sex["F"].values()) == 80 and problems == []
