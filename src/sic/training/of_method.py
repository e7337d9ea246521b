"""What a method decides about a fit: settings that mean nothing to it are refused, the others get its defaults."""

from typing import Any

from sic.data.dataset import Task
from sic.errors import SicError
from sic.methods import SIC, Classifier, method

OF_SOME = (
    *("temperature", "latent", "b", "backbone_b", "relu", "loss", "attribution", "neighbours"),
    *("supports_per_class", "keep_support_images", "inference_supports", "support_source", "ways"),
)
"""Settings that mean something to some methods only."""
FLAGS = {
    "supports_per_class": "supports",
    "keep_support_images": "support-images",
    "antialiased": "antialias",
    "compiled": "compile",
}
"""Where the flag is not called like the setting."""


def flag(setting: str) -> str:
    """
    >>> flag("weight_decay"), flag("supports_per_class")
    ('--weight-decay', '--supports')
    """
    return "--" + FLAGS.get(setting, setting).replace("_", "-")


def means_something(kind: type[Classifier]) -> set[str]:
    """Of `OF_SOME`, what the method has a use for."""
    used = set(kind.options)
    if "b" in used:
        used.add("backbone_b")
    if kind.with_cases:
        used |= {"supports_per_class", "keep_support_images"}
    if kind.selections:
        used.add("inference_supports")
    if kind is SIC:
        used |= {"support_source", "ways"}
    return used


def check_method(said: dict[str, Any]) -> None:
    """Refuse what the method cannot do or has no use for; a wrong choice is named with the right ones."""
    name = said.get("method", "sic")
    kind = method(name)
    for setting in OF_SOME:
        if setting in said and setting not in means_something(kind):
            raise SicError(f"{flag(setting)} means nothing to --method {name}; leave it out.")
    if "ways" in said and said.get("support_source") != "n-way":
        raise SicError("--ways goes with --support-source n-way only; add that, or leave it out.")
    allowed: dict[str, tuple[str, ...]] = {
        "form": kind.forms,
        "loss": kind.losses,
        "attribution": kind.attributions,
        "inference_supports": kind.selections,
        "backbone": kind.backbones,
    }
    for setting, choices in allowed.items():
        if choices and said.get(setting, choices[0]) not in choices:
            raise SicError(
                f"--method {name} works with {flag(setting)} {' or '.join(choices)} only, not {said[setting]}."
            )


def method_defaults(said: dict[str, Any], task: Task) -> dict[str, Any]:
    """What the method chooses where nothing is said."""
    name = said.get("method", "sic")
    kind = method(name)
    if task == "multi" and kind.losses == ("ce",):
        raise SicError(
            f"--method {name} is for one label per image: its probabilities add up to 1, so that two classes cannot "
            "both be a yes; choose another method for this data."
        )
    loss = said.get("loss", "bce" if task == "multi" else kind.losses[0])
    if task == "multi" and loss == "ce":
        raise SicError("--loss ce is for one label per image: its classes exclude each other; use --loss bce here.")
    if loss == "ce" and said.get("balance"):
        raise SicError("--balance weighs yes against no, and --loss ce asks for neither; leave one of them out.")
    defaults: dict[str, Any] = {"loss": loss}
    if kind.attributions:
        defaults["attribution"] = kind.attributions[0]
    if kind.forms == ("conventional",):
        defaults["form"] = "conventional"
    if kind.supports_per_class is not None:
        defaults["supports_per_class"] = kind.supports_per_class
    if kind.lr is not None:
        defaults["lr"] = kind.lr
    if said.get("inference_supports") == "full":
        defaults["keep_support_images"] = False  # it would be a copy of the data
    return defaults
