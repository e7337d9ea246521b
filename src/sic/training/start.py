"""What a fit starts from: published weights, a file, or a model of ours."""

from pathlib import Path

from sic import directory
from sic.backbones import Load
from sic.backbones.weights import loader
from sic.errors import SicError
from sic.methods import Classifier, Comparing
from sic.settings import Settings
from sic.training.history import Reporter


def origin(weights: str | None) -> str | None:
    """Where the weights come from in the end: a model that started from ImageNet's hands that on."""
    if weights is None or not Path(weights).is_dir():
        return weights
    return directory.read_config(Path(weights))[0].training.get("origin")


def published_weights(settings: Settings, reporter: Reporter) -> Load | None:
    """What fills the network with the weights of a file, downloaded first where they are only named."""
    if settings.weights is None or Path(settings.weights).is_dir():
        return None
    return loader(
        settings.weights,
        settings.backbone,
        settings.form,
        lambda done, total: reporter.advance("downloading", done, total),
    )


def start_from(classifier: Classifier, folder: Path, settings: Settings) -> None:
    """Take over the backbone of a model of ours, of the same method its whole encoder; its classes do not matter."""
    trained, config, _ = directory.load(folder)
    whole = config.method == settings.method and isinstance(classifier, Comparing)
    names = ["backbone", "form", *(["latent"] if whole else [])]
    if any(getattr(config, name) != getattr(settings, name) for name in [*names, "antialiased"]):
        said = " ".join(f"--{name} {getattr(config, name)}" for name in names)
        raise SicError(
            f"{folder} was trained with {said} --{'' if config.antialiased else 'no-'}antialias; start from it "
            "with the same, or leave these out."
        )
    part = "encoder" if whole else "backbone"
    state = trained.get_submodule(part).state_dict()
    classifier.get_submodule(part).load_state_dict(state, strict=False)
