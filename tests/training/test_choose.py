"""The settings that are chosen for data, weights and methods, and sentences for those that do not fit."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sic.data import open as open_data
from sic.data.dataset import ImageData, Sample
from sic.data.images import Preprocessing
from sic.directory import Config, build
from sic.errors import SicError
from sic.methods import METHODS
from sic.model import Model
from sic.settings import RECIPES, Settings, from_json, table, to_json
from sic.supports import Support
from sic.training.choose import choose, loader_workers, typical_size
from sic.training.search import default_axes


def data(
    folder: Path, size: tuple[int, int] = (40, 40), per_class: int = 5, classes: int = 2, layout: str = "class folders"
) -> ImageData:
    folder.mkdir(exist_ok=True)
    path = folder / f"{size[0]}x{size[1]}.png"
    Image.new("L", size).save(path)
    samples = [Sample(f"{c}/{i}.png", path, (c,)) for c in range(classes) for i in range(per_class)]
    return ImageData("d", folder, layout, tuple(map(str, range(classes))), {"train": samples})


def start(folder: Path) -> str:
    """A model directory to start from."""
    config = Config("resnet_tiny", ["a", "b"], "single", Preprocessing(24, 24, "squash"), 1, 2.5, latent=8)
    classifier = build(config, 2)
    classifier.set_supports(torch.zeros(2, 8), torch.tensor([0, 1]))
    Model(classifier, config, [Support(0, "a", None), Support(1, "b", None)]).save(folder / "start")
    return str(folder / "start")


def chosen(data: ImageData, gpu: bool = False, **said: Any) -> Settings:
    return choose(data, said, gpu=gpu)[0]


def notes(data: ImageData, gpu: bool = False, **said: Any) -> str:
    return "; ".join(choose(data, said, gpu=gpu)[1])


@pytest.mark.parametrize(
    ("side", "gpu", "size", "backbone"),
    [
        (20, False, 32, "resnet_small"),
        (32, False, 32, "resnet_small"),
        (63, False, 32, "resnet_small"),
        (64, False, 64, "resnet_small"),
        (1000, False, 96, "resnet_small"),
        (130, True, 128, "resnet_small"),
        (160, True, 160, "resnet18"),
        (1000, True, 224, "resnet18"),
    ],
)
def test_the_size_follows_the_images_and_the_machine(
    tmp_path: Path, side: int, gpu: bool, size: int, backbone: str
) -> None:
    found = data(tmp_path, (side, side + 30))
    settings = chosen(found, gpu)
    assert Preprocessing.of(settings) == Preprocessing(size, size, "squash") and settings.backbone == backbone
    assert f"image size {size} px (images are about {side} px" in notes(found, gpu)
    assert ("96 px suit a CPU" in notes(found, gpu)) == (side > 96 and not gpu)


def test_a_folder_that_cannot_be_read_gets_a_reason(tmp_path: Path) -> None:
    """A folder from a phone may hold HEIC alone."""
    for name in ("a/1.jpg", "b/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    with pytest.raises(SicError, match=r"can be read \(a/1.jpg: (HEIC, which|cannot be decoded|not an)"):
        chosen(open_data(tmp_path))


def test_said_values_win(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "size": 48, "fit": "squash", "backbone": "resnet_tiny", "epochs": 3, "lr": 0.5, "temperature": 7.0,
        "batch_size": 5, "recipe": "paper", "augmentation": "affine", "supports_per_class": 1, "latent": 16, "b": 1.5,
        "backbone_b": 1.25,
        "seed": 9, "validation": 0.3, "weights": start(tmp_path), "keep_support_images": False,
        "form": "bcos", "antialiased": False, "padding": "zeros", "balance": True, "allow_leaks": True,
        "drop_leaks": False, "preset": "voc-resnet50",
        "method": "sic", "loss": "bce", "relu": False, "inference_supports": "random", "weight_decay": 0.25,
        "local_units": True, "compared": 5, "misplaced": 0.7, "ambiguous": "share",
        "compiled": True, "hold_out": True, "support_source": "n-way", "ways": 2, "check_every": 3,
    }  # fmt: skip
    before = dict(said)
    settings = choose(data(tmp_path), said)[0]
    assert said == before
    fields = asdict(settings)
    assert fields.pop("resize") == 48
    assert (fields.pop("attribution"), fields.pop("neighbours")) == (None, None)  # of other methods
    assert (fields.pop("teacher"), fields.pop("head_lr")) == (None, None)
    assert fields == said


def test_none_means_not_said(tmp_path: Path) -> None:
    found = data(tmp_path)
    said = dict.fromkeys(table())
    assert choose(found, said) == choose(found, {})
    assert chosen(found, seed=0, keep_support_images=False).keep_support_images is False


def test_the_recipe_depends_on_the_weights(tmp_path: Path) -> None:
    found = data(tmp_path)
    scratch, paper = chosen(found), chosen(found, weights=start(tmp_path), temperature=30.0)
    for settings, name in ((scratch, "scratch"), (paper, "paper")):
        recipe = RECIPES[name]  # type: ignore[index]
        assert settings.recipe == name
        assert (settings.lr, settings.temperature) == (recipe.lr, {"scratch": 1, "paper": 30}[name])
        assert (settings.guided, settings.clip) == (recipe.guided, recipe.clip)
        assert settings.augmentation == recipe.augmentation
    assert scratch.guided and not paper.guided
    assert (paper.lr, paper.temperature) == (1e-4, 30)
    assert chosen(found, weights=start(tmp_path), recipe="scratch").recipe == "scratch"


def test_what_the_weights_need_is_taken_from_them(tmp_path: Path) -> None:
    settings = chosen(data(tmp_path), weights=start(tmp_path))
    assert (settings.backbone, settings.latent, settings.temperature) == ("resnet_tiny", 8, 2.5)
    assert Preprocessing.of(settings) == Preprocessing(24, 24, "squash")
    assert chosen(data(tmp_path), weights=start(tmp_path), size=32).size == 32
    with pytest.raises(SicError, match="no such file or folder"):
        chosen(data(tmp_path), weights=str(tmp_path / "nowhere"))


def test_biases_of_a_bcosified_network_fade_while_b_rises_to_2(tmp_path: Path) -> None:
    found, said = data(tmp_path), {"form": "bcosified", "recipe": "bcosify"}
    settings = chosen(found, **said)
    assert (settings.b, settings.backbone_b, settings.fading) == (2, None, 0.4)
    assert "biases fade over the first 40% of the steps; `sic distill` converts" in notes(found, **said)
    assert chosen(found, **said, backbone_b=1.5).backbone_b == 1.5
    assert chosen(found).fading == 0 and "distill" not in notes(found)


@pytest.mark.parametrize(("form", "biases"), [("bcos", "carried"), ("bcosified", "removed"), ("bcosified", "carried")])
def test_runs_recorded_when_biases_could_be_carried(tmp_path: Path, form: str, biases: str) -> None:
    """They go on, unless their biases were carried."""
    settings = chosen(data(tmp_path), form=form)
    record = json.loads(json.dumps({**to_json(settings), "biases": biases}))
    if (form, biases) != ("bcosified", "carried"):
        assert from_json(record) == settings
        return
    with pytest.raises(SicError, match="started with carried biases, which sic no longer has; start it again"):
        from_json(record)


def test_long_fits_on_a_gpu_are_compiled(tmp_path: Path) -> None:
    """Counting supports, and small images less."""
    found = data(tmp_path, per_class=100)
    long = {"size": 224, "epochs": 900, "batch_size": 6}  # 200 images and as many supports
    assert chosen(found, True, **long).compiled and "--no-compile" in notes(found, True, **long)
    for change in ({"size": 112}, {"epochs": 500}, {"supports_per_class": 1}, {"support_source": "bank"}):
        assert not chosen(found, True, **{**long, **change}).compiled
    assert not chosen(found, False, **long).compiled and not chosen(found, True, **long, compiled=False).compiled


def test_rendered_birds_are_seen_whole(tmp_path: Path) -> None:
    found = data(tmp_path, layout="FunnyBirds")
    assert chosen(found).fit == "squash"
    assert chosen(found).augmentation == "affine"
    assert chosen(found, recipe="paper").augmentation == "none"
    assert chosen(found, recipe="paper", augmentation="photo").augmentation == "photo"
    assert chosen(found, fit="crop").fit == "crop"


@pytest.mark.parametrize("per_class", [2, 10, 100, 400, 3000])
def test_batches_and_epochs_suit_the_number_of_images(tmp_path: Path, per_class: int) -> None:
    settings = chosen(data(tmp_path, per_class=per_class))
    number = 2 * per_class
    assert 8 <= settings.batch_size <= 64 and (settings.batch_size <= number / 8 or settings.batch_size == 8)
    assert 20 <= settings.epochs <= 100
    steps = settings.epochs * number / settings.batch_size
    assert abs(steps - 1500) < 20 or settings.epochs in (20, 100)


def test_notes_say_what_was_chosen_and_not_what_was_said(tmp_path: Path) -> None:
    found = data(tmp_path)
    words = notes(found)
    assert "image size 32 px" in words and "backbone resnet_small" in words and "epochs of 10 training images" in words
    assert "recipe scratch: T = 1, learning rate 0.003, batches of 8" in words
    words = notes(found, size=64, backbone="resnet_tiny", epochs=2, lr=0.25)
    assert "image size" not in words and "backbone" not in words and "epochs" not in words
    assert "learning rate 0.25" in words


def test_warnings_appear_when_they_should(tmp_path: Path) -> None:
    found = data(tmp_path)
    assert "collapses" in notes(found, recipe="paper")
    assert "collapses" not in notes(found, recipe="paper", weights=start(tmp_path))
    assert "collapses" not in notes(found)


def test_the_typical_size_is_the_median_short_side_of_the_readable(tmp_path: Path) -> None:
    samples = []
    for i, size in enumerate([(10, 90), (70, 20), (30, 30), (300, 400), (500, 500)]):
        Image.new("L", size).save(tmp_path / f"{i}.png")
        samples.append(Sample(f"{i}.png", tmp_path / f"{i}.png", (0,)))
    for name in ("broken.png", "gone.png"):
        samples.append(Sample(name, tmp_path / name, (0,)))
    (tmp_path / "broken.png").write_text("x")
    assert typical_size(ImageData("d", tmp_path, "class folders", ("a",), {"train": samples})) == 30
    with pytest.raises(SicError, match="None of the images"):
        typical_size(ImageData("d", tmp_path, "class folders", ("a",), {"train": samples[-2:]}))


def test_settings_come_back_from_json(tmp_path: Path) -> None:
    settings = chosen(data(tmp_path), fit="squash", seed=4)
    record = json.loads(json.dumps(to_json(settings)))
    assert from_json(record) == settings
    # As older versions wrote them.
    old = {name: value for name, value in record.items() if name not in ("size", "resize", "fit")}
    old["preprocessing"] = {"size": settings.size, "resize": settings.resize, "fit": settings.fit}
    assert from_json(old) == settings


def test_a_misspelt_setting_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SicError, match="no setting called 'epoch'"):
        choose(data(tmp_path), {"epoch": 3})


def test_workers_are_between_one_and_eight() -> None:
    assert 1 <= loader_workers() <= 8


def test_the_papers_recipe_looks_at_the_central_224_of_256(tmp_path: Path) -> None:
    photos, birds = data(tmp_path, (300, 300)), data(tmp_path, (300, 300), layout="FunnyBirds")
    assert Preprocessing.of(chosen(photos, gpu=True, recipe="paper")) == Preprocessing(224, 256, "crop")
    assert Preprocessing.of(chosen(birds, gpu=True, recipe="paper")) == Preprocessing(224, 224, "squash")
    assert chosen(birds, gpu=True, recipe="paper").lr == 1e-3


VALUES: dict[str, Any] = {"head_lr": 1e-2, "misplaced": 0.7,
    "temperature": 2.0, "latent": 16, "b": 1.5, "backbone_b": 1.5, "relu": False, "loss": "ce", "neighbours": 3,
    "supports_per_class": 2, "local_units": True,
    "keep_support_images": False, "support_source": "bank",
}  # fmt: skip


def multi(folder: Path) -> ImageData:
    return replace(data(folder), task="multi")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", VALUES)
def test_a_setting_means_something_or_is_refused(tmp_path: Path, method: str, setting: str) -> None:
    if METHODS[method].uses(setting):
        assert getattr(chosen(data(tmp_path), method=method, **{setting: VALUES[setting]}), setting) == VALUES[setting]
    else:
        with pytest.raises(SicError, match=f"does not apply to --method {method}; leave it out"):
            chosen(data(tmp_path), method=method, **{setting: VALUES[setting]})


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, "varied"),
        ({"inference_supports": "nearest"}, "nearest"),
        ({"recipe": "paper"}, "nearest"),
        ({"method": "nwhead"}, "nearest"),
        ({"method": "nwhead", "recipe": "scratch"}, "nearest"),
        ({"method": "blackbox", "recipe": "scratch"}, "nearest"),
    ],
)
def test_cases_from_scratch_differ_where_the_method_can_choose_so(
    tmp_path: Path, said: dict[str, Any], expected: str
) -> None:
    settings = chosen(data(tmp_path), **said)
    assert settings.inference_supports == expected
    assert said or settings.recipe == "scratch"


def test_every_option_of_a_method_is_a_setting_of_some() -> None:
    special = {name for name, option in table().items() if option.special}
    assert {name for kind in METHODS.values() for name in (*kind.options, *kind.fit_options)} == special
    assert {*VALUES, "attribution", "inference_supports", "ways", "teacher"} == special


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("sic", {"form": "bcos", "loss": "bce", "supports_per_class": 3, "temperature": 1.0, "attribution": None}),
        ("blackbox", {"form": "conventional", "loss": "bce", "attribution": "input-x-gradient", "temperature": 1.0}),
        ("bcos", {"form": "bcos", "loss": "bce", "temperature": 0.1}),
        ("bagnet", {"form": "conventional", "loss": "bce", "backbone": "bagnet17"}),
        ("nwhead", {"form": "conventional", "loss": "ce", "inference_supports": "nearest", "supports_per_class": 3}),
        ("protopnet", {"form": "conventional", "loss": "ce", "supports_per_class": 10, "attribution": "enlarged"}),
    ],
)
def test_defaults(tmp_path: Path, method: str, expected: dict[str, Any]) -> None:
    settings = chosen(data(tmp_path), method=method)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert METHODS[method].collapses == (method == "sic")
    assert ("T = " in notes(data(tmp_path), method=method)) == (method in ("sic", "bcos"))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"method": "tarot"}, "choose one of sic, blackbox"),
        ({"form": "conventional"}, "--method sic works with --form bcos or bcosified only"),
        ({"method": "blackbox", "form": "bcos"}, "--method blackbox works with --form conventional only"),
        ({"method": "nwhead", "loss": "bce"}, "--method nwhead works with --loss ce only"),
        ({"method": "blackbox", "attribution": "box"}, "works with --attribution input-x-gradient or"),
        ({"method": "sic", "inference_supports": "full"}, "works with --inference-supports nearest or"),
        ({"method": "sic", "inference_supports": "best"}, "--inference-supports must be one of"),
        ({"method": "bagnet", "backbone": "resnet_tiny"}, "works with --backbone bagnet17 or"),
        ({"method": "protopnet", "inference_supports": "random"}, "--inference-supports does not apply"),
        ({"method": "blackbox", "loss": "ce", "balance": True}, "--balance weights positives against negatives"),
        ({"support_source": "all"}, "--support-source must be one of exact, bank, n-way"),
        ({"ways": 2}, "--ways goes with --support-source n-way only"),
        ({"method": "nwhead", "ways": 2}, "--ways does not apply to --method nwhead"),
        ({"weight_decay": -1.0}, "--weight-decay must be a number from 0 up"),
        ({"method": "blackbox", "preset": "voc-resnet50"}, "is for --method sic"),
        ({"preset": "blackbox-voc-resnet50", "temperature": 3.0}, "--temperature does not apply to --method blackbox"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SicError, match=sentence):
        chosen(data(tmp_path), **said)


def test_a_preset_brings_its_method(tmp_path: Path) -> None:
    settings = chosen(data(tmp_path), preset="blackbox-voc-resnet50", attribution="grad-cam")
    assert (settings.method, settings.attribution) == ("blackbox", "grad-cam")


def test_several_labels_need_yes_and_no(tmp_path: Path) -> None:
    found = multi(tmp_path)
    with pytest.raises(SicError, match="--method nwhead is for one label per image"):
        chosen(found, method="nwhead")
    with pytest.raises(SicError, match="--loss ce is for one label per image"):
        chosen(found, method="blackbox", loss="ce")
    assert chosen(found, method="protopnet", balance=True).loss == "bce"


def test_all_images_as_supports_are_not_copied_unless_said(tmp_path: Path) -> None:
    assert not chosen(data(tmp_path), method="nwhead", inference_supports="full").keep_support_images
    assert chosen(
        data(tmp_path), method="nwhead", inference_supports="full", keep_support_images=True
    ).keep_support_images


@pytest.mark.parametrize("method", ["blackbox", "nwhead", "protopnet"])
def test_published_weights_of_conventional_networks(tmp_path: Path, method: str) -> None:
    settings = chosen(data(tmp_path), method=method, backbone="timm/tf_efficientnet_lite0", weights="imagenet")
    assert (settings.form, settings.recipe) == ("conventional", "paper")
    assert chosen(data(tmp_path), method=method, weights="imagenet").backbone == "resnet50"
    with pytest.raises(SicError, match="no weights called imagenet-long for a conventional resnet50"):
        chosen(data(tmp_path), method=method, backbone="resnet50", weights="imagenet-long")
    with pytest.raises(SicError, match="needs a conventional one"):
        chosen(data(tmp_path), method=method, weights=start(tmp_path))


def test_bagnets_start_from_files_of_bagnets(tmp_path: Path) -> None:
    file = tmp_path / "bagnet.pth"
    file.touch()
    assert chosen(data(tmp_path), method="bagnet", weights=str(file)).backbone == "bagnet17"
    with pytest.raises(SicError, match="There are no weights called imagenet for a conventional bagnet17"):
        chosen(data(tmp_path), method="bagnet", weights="imagenet")


def test_another_method_inherits_the_network_and_not_the_temperature(tmp_path: Path) -> None:
    settings = chosen(data(tmp_path), method="bcos", weights=start(tmp_path))
    assert (settings.backbone, settings.size, settings.temperature) == ("resnet_tiny", 24, 1.0)


def test_a_search_tries_temperatures_where_they_are_sics(tmp_path: Path) -> None:
    axes = {name: default_axes(chosen(data(tmp_path), method=name), kind) for name, kind in METHODS.items()}
    assert len(axes["sic"]["temperature"]) > 1
    assert axes["bcos"]["temperature"] == (0.1,)
    assert "temperature" not in axes["blackbox"]


def test_the_supports_of_many_classes_are_remembered(tmp_path: Path) -> None:
    many, few, weights = data(tmp_path / "many", classes=12), data(tmp_path / "few"), start(tmp_path / "start")
    assert chosen(many, weights=weights).support_source == "bank"
    assert "--support-source exact" in notes(many, weights=weights)
    assert chosen(many, weights=weights, supports_per_class=1, batch_size=12).support_source == "exact"
    for other in ({"support_source": "exact"}, {"support_source": "n-way"}, {"recipe": "scratch"}):
        assert chosen(many, weights=weights, **other).support_source == other.get("support_source", "exact")
    assert chosen(many, weights=weights, gpu=True, batch_size=9).support_source == "exact"  # 36 supports, 9 queries
    assert chosen(many, weights=weights, gpu=True, batch_size=8).support_source == "bank"
    assert chosen(few, weights=weights).support_source == chosen(many).support_source == "exact"
