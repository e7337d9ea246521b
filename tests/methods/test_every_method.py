"""Every method trains, is saved, is loaded, predicts the same and explains itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import sic
import sic.data
from sic import directory
from sic.cli.main import app
from sic.data.dataset import ImageData, Sample
from sic.data.images import to_tensor
from sic.errors import SicError
from sic.methods import METHODS, Bcos, ProtoPNet
from sic.training import choose, fit
from sic.training.protopnet import ProtoPNetTraining
from tests.conftest import draw_folders

SIZE = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folders(tmp_path_factory.mktemp("data") / "birds", 3, 8, SIZE)


@pytest.fixture
def data(folders: Path) -> ImageData:
    return sic.data.open(folders)


def trained(data: ImageData, out: Path, method: str, **said: Any) -> sic.Model:
    backbone = "bagnet9" if method == "bagnet" else "resnet_tiny"
    chosen = {"method": method, "backbone": backbone, "size": SIZE, "batch_size": 8, "epochs": 2, **said}
    fit(data, choose(data, chosen)[0], out, workers=0)
    return sic.load(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("sic", {}),
        ("sic", {"relu": False, "loss": "ce", "inference_supports": "centroid"}),
        ("sic", {"inference_supports": "random", "form": "bcosified"}),
        ("sic", {"local_units": True}),
        ("blackbox", {}),
        ("blackbox", {"loss": "ce", "attribution": "integrated-gradients", "weight_decay": 1e-4}),
        ("bcos", {}),
        ("bagnet", {"epochs": 1}),
        ("nwhead", {}),
        ("nwhead", {"inference_supports": "full", "neighbours": 5}),
        ("protopnet", {"supports_per_class": 2}),
    ],
)
def test_it_comes_back_as_it_was(
    data: ImageData, folders: Path, tmp_path: Path, method: str, said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, save = [], directory.save
    monkeypatch.setattr(directory, "save", lambda *model: (kept.append(model[0]), save(*model)))
    model = trained(data, tmp_path / "model", method, **said)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (
        config["method"] == method
        and said.items() - {("form", "bcosified")} <= {**config, **config["training"]}.items()
    )
    files = sorted(folders.rglob("*.png"))
    views = torch.stack([model.tensor(file) for file in files])
    with torch.no_grad():
        assert torch.equal(model.classifier(views), kept[0](views))
    prediction = model.predict(files[0])
    total = sum(prediction.probabilities.values())
    assert total == pytest.approx(1) if config["loss"] == "ce" else total != pytest.approx(1)
    assert len(prediction.evidence) == len(model.supports) == len(model.classifier.support_labels)
    assert bool(prediction.evidence) == METHODS[method].with_supports
    explanation = model.explain(files[0], classes=["bird 0", "bird 2"])
    # The similarity of ProtoPNet is so steep near a distance of 0 (the source of a prototype) that rounding shows.
    tolerance = 1e-2 if method == "protopnet" else 1e-5
    for explained in explanation.classes:
        parts = explained.contributions
        assert parts.maps.shape == (SIZE, SIZE) and parts.weights.shape[1:] == (SIZE, SIZE)
        assert bool(explained.cases) == METHODS[method].with_supports
        assert explained.probability == pytest.approx(prediction.probabilities[explained.name], abs=tolerance)
        assert all(case.support.label == data.classes.index(explained.name) for case in explained.cases)
    assert (explanation.residual < 1e-4) == METHODS[method].complete
    assert ("add up to the score to within" in explanation.text) == METHODS[method].complete
    explanation.save(tmp_path / "why.png")
    if method != "sic":
        with pytest.raises(SicError, match=f"trained with --method {method}"):
            _ = model.sic


@pytest.mark.slow
def test_prototypes_are_parts_of_the_training_images_they_name(
    data: ImageData, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the last layer has been trained: nothing before it has moved."""
    sources: list[Any] = []
    original = ProtoPNetTraining.chosen_supports

    def chosen_supports(self: ProtoPNetTraining) -> Any:
        sources.append(self.sources.clone())
        return original(self)

    monkeypatch.setattr(ProtoPNetTraining, "chosen_supports", chosen_supports)
    model = trained(data, tmp_path / "model", "protopnet", supports_per_class=3, epochs=5)
    classifier = model.classifier
    assert isinstance(classifier, ProtoPNet)
    for support, prototype, source in zip(model.supports, classifier.prototypes, sources[0], strict=True):
        assert support.source.startswith(f"bird {support.label}/") and support.image is not None
        np.testing.assert_array_equal(to_tensor(support.image), model.tensor(folders / support.source))
        patches = classifier.patches(model.tensor(folders / support.source)[None])[0]
        _, row, column, height, width = source.tolist()
        assert patches.shape[1:] == (height, width)
        torch.testing.assert_close(patches[:, row, column], prototype, rtol=0, atol=1e-5)
        left, top, right, bottom = support.box or (0, 0, 0, 0)
        assert left <= column * SIZE / width < right and top <= row * SIZE / height < bottom


@pytest.mark.slow
def test_resuming_goes_through_the_stages(data: ImageData, tmp_path: Path) -> None:
    """Interrupted before the projection, and after it."""
    said = {"method": "protopnet", "backbone": "resnet_tiny", "size": SIZE, "batch_size": 8, "supports_per_class": 2}
    settings = choose(data, {**said, "epochs": 10})[0]
    fit(data, settings, tmp_path / "whole", workers=0)
    whole, begin = sic.load(tmp_path / "whole"), ProtoPNetTraining.on_train_epoch_start

    class Stopped(Exception):
        pass

    for stop in (8, 9):  # epoch 8, from 0, begins with the projection

        def leave(self: ProtoPNetTraining, stop: int = stop) -> None:
            if self.current_epoch == stop:
                raise Stopped
            begin(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProtoPNetTraining, "on_train_epoch_start", leave)
            with pytest.raises(Stopped):
                fit(data, settings, tmp_path / str(stop), workers=0)
        fit(data, settings, tmp_path / str(stop), workers=0, resume=True)
        again = sic.load(tmp_path / str(stop))
        for name, value in whole.classifier.state_dict().items():
            assert torch.equal(value, again.classifier.state_dict()[name]), name


@pytest.mark.slow
def test_a_method_can_start_from_the_network_of_another(data: ImageData, tmp_path: Path) -> None:
    first = trained(data, tmp_path / "first", "bcos")
    assert isinstance(first.classifier, Bcos)
    second = trained(data, tmp_path / "second", "sic", weights=str(tmp_path / "first"), lr=0.0)
    state = second.classifier.backbone.state_dict()
    same = [torch.equal(value, state[name]) for name, value in first.classifier.backbone.named_parameters()]
    assert all(same) and same
    with pytest.raises(SicError, match="needs a conventional one"):
        trained(data, tmp_path / "third", "blackbox", weights=str(tmp_path / "first"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["blackbox", "protopnet"])
def test_several_labels(data: ImageData, tmp_path: Path, method: str) -> None:
    samples = [Sample(s.id, s.path, (0, 1) if i % 5 == 4 else s.labels) for i, s in enumerate(data.splits["train"])]
    several = ImageData("d", data.root, "a table", data.classes, {"train": samples}, task="multi")
    model = trained(several, tmp_path / "model", method, **({"supports_per_class": 1} if method == "protopnet" else {}))
    assert model.config.loss == "bce" and model.config.task == "multi"
    alone = {sample.id for sample in samples if len(sample.labels) == 1}
    assert {support.source for support in model.supports} <= alone
    model.explain(samples[0].path)


@pytest.mark.slow
def test_commands_take_models_of_other_methods(folders: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [*map(str, arguments)])

    image, model = folders / "bird 1" / "002.png", tmp_path / "model"
    flags = ("--backbone", "resnet_tiny", "--size", SIZE, "--epochs", 2, "--loss", "ce", "--workers", 0, "--json")
    told = json.loads(run("train", folders, "--out", model, "--method", "blackbox", *flags).stdout)
    assert told["settings"]["method"] == "blackbox" and told["settings"]["loss"] == "ce"
    residuals = []
    for attribution in METHODS["blackbox"].attributions:
        said = run("explain", model, image, "--out", tmp_path / "why.png", "--attribution", attribution, "--json")
        residuals.append(json.loads(said.stdout)["images"][0]["residual"])
    assert len(set(residuals)) == 3
    assert json.loads(run("predict", model, image, "--json").stdout)["images"][0]["evidence"] == []
    assert run("predict", model, image).exit_code == 0
    for arguments, sentence in (
        (("explain", model, image, "--attribution", "tarot"), "choose from input-x-gradient"),
        (("verify", model, folders), "trained with --method blackbox"),
        (
            ("train", folders, "--method", "nwhead", "--temperature", 2),
            "--temperature does not apply to --method nwhead",
        ),
    ):
        assert sentence in str(run(*arguments).exception)
