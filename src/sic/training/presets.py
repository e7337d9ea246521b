"""The paper's best settings by dataset, backbone and method: `sic train --preset NAME DATA`."""

from dataclasses import dataclass, replace
from typing import Any

from sic.backbones.weights import IMAGENET
from sic.errors import SicError
from sic.settings import Augmentation


@dataclass(frozen=True)
class Preset:
    """Settings, where they come from and what the paper reaches with them."""

    data: str
    backbone: str
    lr: float
    temperature: float | None
    epochs: int
    batch_size: int
    augmentation: Augmentation
    source: str
    reported: str
    weights: str | None = IMAGENET
    """`imagenet`: B-cos v2's, as in the paper; it does not say whether it took those of the long training."""
    size: int = 224
    method: str = "sic"
    weight_decay: float = 0.0

    def settings(self) -> dict[str, Any]:
        """The settings as a user would give them."""
        names = (
            *("method", "backbone", "lr", "weight_decay", "temperature", "epochs", "batch_size", "augmentation"),
            *("weights", "size"),
        )
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return said if self.weights is not None else {**said, "recipe": "paper"}


TABLE = "its table of best configurations (T, learning rate) and its section on optimisation (epochs, batch size)"

PRESETS: dict[str, Preset] = {
    "voc-densenet121": Preset(
        "Pascal VOC", "densenet121", 2.2e-4, 30, 50, 32, "photo", TABLE, "96.73 % per-label accuracy"
    ),
    "voc-resnet50": Preset("Pascal VOC", "resnet50", 1e-4, 30, 50, 32, "photo", TABLE, "97.00 % per-label accuracy"),
    # The paper's VitC has 81 million parameters; of B-cos v2's ViT_c networks that is the base one.
    "voc-vitc": Preset("Pascal VOC", "vitc_b", 2.2e-5, 10, 50, 32, "photo", TABLE, "96.72 % per-label accuracy"),
    "dogs-resnet50": Preset("Stanford Dogs", "resnet50", 1e-4, 10, 50, 32, "photo", TABLE, "83.46 % accuracy"),
    "rsna-densenet121": Preset(
        "RSNA", "densenet121", 3e-4, 50, 100, 64, "xray", TABLE, "79.13 % balanced accuracy", weights=None
    ),
    "funnybirds-resnet50": Preset(
        "FunnyBirds",
        "resnet50",
        1e-3,
        30,
        100,
        8,
        "none",
        "its section on optimisation: the FunnyBirds framework's defaults",
        "99 % accuracy",
        size=256,
    ),
    "cub-resnet50": Preset(
        "CUB-200-2011",
        "resnet50",
        1e-4,
        10,
        50,
        32,
        "photo",
        "ours: it gives a result on cropped birds without its settings, so these are those of Stanford Dogs",
        "79.8 % accuracy",
    ),
}

OTHERS: list[tuple[str, str, float, float, str]] = [
    ("blackbox", "voc-densenet121", 2.2e-5, 0.0, "96.42"),
    ("blackbox", "voc-resnet50", 1e-5, 0.0, "96.71"),
    ("blackbox", "voc-vitc", 1e-4, 0.0, "96.35"),
    ("blackbox", "dogs-resnet50", 1e-5, 0.0, "87.16"),
    ("blackbox", "rsna-densenet121", 3e-4, 1e-4, "79.78"),
    ("nwhead", "dogs-resnet50", 1e-5, 0.0, "85.16"),
    ("nwhead", "rsna-densenet121", 3e-4, 1e-4, "79.30"),
    ("bcos", "voc-densenet121", 1e-4, 0.0, "96.48"),
    ("bcos", "voc-resnet50", 1e-4, 0.0, "96.85"),
    ("bcos", "voc-vitc", 2.2e-5, 0.0, "96.79"),
    ("bcos", "dogs-resnet50", 1e-4, 0.0, "85.54"),
    ("bcos", "rsna-densenet121", 1e-2, 0.0, "78.73"),
]
"""The same table's rows of other methods: learning rate, weight decay, percent. ProtoPNet's have no settings, and
there are no weights for BagNets to start from."""


def _like_sic(method: str, row: str, lr: float, weight_decay: float, percent: str) -> Preset:
    """Another method on the data and backbone of a row of SIC."""
    ours = PRESETS[row]
    reported = f"{percent} % {ours.reported.partition(' % ')[2]}"
    return replace(ours, method=method, lr=lr, weight_decay=weight_decay, temperature=None, reported=reported)


PRESETS |= {f"{other[0]}-{other[1]}": _like_sic(*other) for other in OTHERS}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SicError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
